"""Frozen opponents: earlier versions of the policy, on disk and in the engine."""

import shutil

from selfplay.config import Config
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.checkpoints import load_adapter, save_adapter
from selfplay.learning.policy import PolicyModel
from selfplay.population.model_pool import ModelPool
from selfplay.training.run_directory import RunDirectory

MODES_WITHOUT_COPIES = ("mirror", "fixed")


class FrozenOpponents:
    """Keep a copy of every policy version that the pool may draw, and serve the active ones.

    ``keeps_copies`` is whether the sample mode draws any.
    """

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

    def add_untrained(self) -> None:
        """Add the untrained model to the pool as ``ckpt-0`` if the sample mode draws checkpoints."""
        if self.keeps_copies:
            self.pool.add_checkpoint(None, 0)

    def freeze(self, step: int, adapter: str) -> None:
        """Add a copy of ``adapter`` in its present state to the pool as ``ckpt-{step}``."""
        uid = f"ckpt-{step}"
        save_adapter(self.directory.population / uid, self.policy, self.config.model.name, adapter)
        self.pool.add_checkpoint(f"population/{uid}", step)
        self.serve_active()

    def delete_retired(self, oldest_step: int) -> None:
        """Delete copies that were retired by ``oldest_step``, the oldest step that can be resumed."""
        for model in self.pool.opponents():
            path = self.directory.population / model.uid
            if model.retired is not None and model.retired <= oldest_step and path.exists():
                shutil.rmtree(path, ignore_errors=True)

    def serve_active(self) -> None:
        """Serve exactly those of the pool's active checkpoints that have a copy."""
        active = {uid for uid in self.pool.active_checkpoints() if (self.pool.ckpt_path(uid) or ("",))[0]}
        for uid in sorted(self._served - active):
            self.engine.withdraw(uid)
            self.policy.drop_adapter(uid)
        for uid in sorted(active - self._served):
            weights, _ = load_adapter(self.directory.population / uid)
            self.policy.load_adapter_state(weights, uid)
            self.engine.publish(uid, uid, int(uid.removeprefix("ckpt-")))
        self._served = active
