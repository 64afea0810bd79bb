"""Frozen opponents: earlier versions of the policies, served for as long as the pool may draw them."""

from collections.abc import Collection, Sequence

from selfplay.config import Config
from selfplay.core.files import remove_directory
from selfplay.population.model_pool import ModelPool
from selfplay.population.pool_members import checkpoint_uid
from selfplay.training.run_directory import RunDirectory
from selfplay.training.serving import Serving


class FrozenOpponents:
    """Keep a copy of every policy version that the pool may draw, and serve the active ones.

    ``keeps_copies`` is whether the sample mode draws any.

    Args:
        config: the run's configuration.
        pool: the pool that the copies join.
        policies: the policies that are frozen at regular intervals.
        serving: serves the copies.
        directory: the run's directory.
    """

    def __init__(
        self,
        config: Config,
        pool: ModelPool,
        policies: Sequence[str],
        serving: Serving,
        directory: RunDirectory,
    ) -> None:
        self.pool = pool
        self.policies = policies
        self.serving = serving
        self.directory = directory
        self.started = config.start.keys()
        self.every = config.population.add_every
        self.keeps_copies = config.keeps_copies

    async def begin(self) -> None:
        """Add what the policies start from to the pool if the sample mode draws checkpoints."""
        if self.keeps_copies:
            for policy in self.policies:
                starts = policy in self.started
                path = await self.serving.freeze(checkpoint_uid(0, policy), policy) if starts else None
                self.pool.add_checkpoint(path, 0, policy)
            self.serve_active()

    def is_due(self, step: int) -> bool:
        """Whether copies are frozen after update ``step``, and are not yet."""
        return self.keeps_copies and step % self.every == 0 and bool(self._missing(step))

    async def freeze(self, step: int, in_play: Collection[str] = ()) -> None:
        """Add a copy of what training has produced by now of each policy to the pool.

        Copies that are ``in_play`` are served until the next time, even if they retire.
        """
        await self.freeze_copies(self._missing(step), step)
        self.serve_active(in_play)

    async def freeze_copies(self, policies: Sequence[str], step: int) -> None:
        """Add copies of these policies to the pool; they are served from :meth:`serve_active` on."""
        for policy in policies:
            path = await self.serving.freeze(checkpoint_uid(step, policy), policy)
            self.pool.add_checkpoint(path, step, policy)

    def delete_retired(self, oldest_step: int) -> None:
        """Delete copies that were retired by ``oldest_step``, the oldest step that can be resumed."""
        for model in self.pool.opponents():
            path = self.directory.population / model.uid
            if model.retired is not None and model.retired <= oldest_step and path.exists():
                remove_directory(path)

    def serve_active(self, in_play: Collection[str] = ()) -> None:
        """Serve exactly those checkpoints that have a copy and are active or in play."""
        wanted = {*self.pool.active_checkpoints(), *in_play}
        copies = [one for one in self.pool.opponents() if one.kind == "checkpoint"]
        newest = max((one.iteration or 0 for one in copies), default=0)
        paths = {one.uid: one.path_or_name for one in copies if one.path_or_name is not None}
        # Should the newest update be lost, a resume serves again what retired with the newest copies.
        kept = [one.uid for one in copies if one.retired is None or one.retired >= newest]
        self.serving.serve_copies(
            {uid: path for uid, path in paths.items() if uid in wanted},
            [paths[uid] for uid in kept if uid in paths],
        )

    def _missing(self, step: int) -> list[str]:
        """Return the policies of which the pool has no copy of update ``step``."""
        known = {one.uid for one in self.pool.opponents()}
        return [policy for policy in self.policies if checkpoint_uid(step, policy) not in known]
