"""Frozen opponents: earlier versions of the policy, on disk and in the engine."""

from selfplay.config.settings import Config
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.checkpoints import load_adapter, save_adapter
from selfplay.learning.policy import PolicyModel
from selfplay.population.model_pool import ModelPool
from selfplay.runtime.run_directory import RunDirectory

MODES_WITHOUT_COPIES = ("mirror", "fixed")


class FrozenOpponents:
    """Keeps a copy of every policy version that the pool may draw, and serves the active ones."""

    def __init__(
        self,
        config: Config,
        pool: ModelPool,
        policy: PolicyModel,
        engine: EmbeddedEngine,
        directory: RunDirectory,
    ) -> None:
        self.config = config
        self.pool = pool
        self.policy = policy
        self.engine = engine
        self.directory = directory
        self.keeps_copies = config.population.sample_mode not in MODES_WITHOUT_COPIES
        self._served: set[str] = set()

    def add_policy(self, step: int, adapter: str) -> None:
        """Register the policy as it is now; keep a copy of ``adapter`` where opponents are drawn."""
        if not self.keeps_copies:
            self.pool.add_checkpoint(None, step)
            return
        uid = f"ckpt-{step}"
        save_adapter(self.directory.population / uid, self.policy, self.config.model.name, adapter)
        self.pool.add_checkpoint(f"population/{uid}", step)
        self.serve_active()

    def serve_active(self) -> None:
        """Serve exactly the pool's active checkpoints that have a copy."""
        active = {uid for uid in self.pool.active_checkpoints() if (self.pool.ckpt_path(uid) or ("",))[0]}
        for uid in sorted(self._served - active):
            self.engine.withdraw(uid)
            self.policy.drop_adapter(uid)
        for uid in sorted(active - self._served):
            weights, _ = load_adapter(self.directory.population / uid)
            self.policy.load_adapter_state(weights, uid)
            self.engine.publish(uid, uid, int(uid.removeprefix("ckpt-")))
        self._served = active
