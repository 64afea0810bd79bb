"""Members of a run's pool that are not trained: fixed opponents, averages, and frozen copies of policies."""

from collections.abc import Sequence
from typing import Any

from sparring.collection.pool import Copies
from sparring.config import Config
from sparring.core.files import remove_directory
from sparring.population.pool_members import checkpoint_uid
from sparring.run.assembly import evaluated_uid, fixed_members
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import Serving


class FrozenOpponents:
    """Keep a copy of every policy version that the pool may draw, and serve the active ones.

    ``keeps_copies`` is whether the sample mode draws any. A repeated call of any method changes nothing.

    Args:
        config: the run's configuration.
        pool: a handle of the pool that the copies join.
        policies: the policies that are trained.
        copied: those of them that are frozen at regular intervals.
        serving: serves the copies.
        directory: the run's directory.
    """

    def __init__(
        self,
        config: Config,
        pool: Any,
        policies: Sequence[str],
        copied: Sequence[str],
        serving: Serving,
        directory: RunDirectory,
    ) -> None:
        self.config = config
        self.pool = pool
        self.policies = policies
        self.copied = copied
        self.serving = serving
        self.directory = directory
        self.keeps_copies = config.keeps_copies

    async def begin(self) -> None:
        """Fill the pool of a new run: with what its policies start from, if the sample mode draws copies."""
        for policy in self.policies if self.config.envs else ():
            await self.pool.add_policy.remote(evaluated_uid(self.config, policy))
        for one in fixed_members(self.config):
            await self.pool.add_fixed.remote(one.name, kind=one.kind, active=one.active, policy=one.policy)
        if self.keeps_copies:
            for policy in self.copied:
                starts = policy in self.config.start
                path = await self.serving.freeze(checkpoint_uid(0, policy), policy) if starts else None
                await self.pool.add_checkpoint.remote(path, 0, policy)
            await self.serve()

    async def freeze_if_due(self, step: int) -> bool:
        """Add a copy of what training has produced by now of each policy to the pool, if that is due.

        Returns whether copies were added. They are served from :meth:`serve` on.
        """
        missing = await self.missing(step)
        for policy in missing:
            await self.freeze(policy, step)
        return bool(missing)

    async def missing(self, step: int) -> list[str]:
        """Return the policies of which a copy is due after update ``step``, and is not in the pool yet."""
        if not self.keeps_copies or not step or step % self.config.population.add_every:
            return []
        known = await self.pool.copies_of.remote(step)
        return [policy for policy in self.copied if policy not in known]

    async def freeze(self, policy: str, step: int) -> None:
        """Add a copy of what training has produced by now of a policy."""
        path = await self.serving.freeze(checkpoint_uid(step, policy), policy)
        await self.pool.add_checkpoint.remote(path, step, policy)

    async def serve(self, in_play: Sequence[str] = ()) -> None:
        """Serve exactly those copies that are active or in play."""
        copies: Copies = await self.pool.copies.remote(in_play)
        self.serving.serve_copies(copies.served, copies.kept)

    async def delete_retired(self, oldest_step: int) -> None:
        """Delete copies that were retired by ``oldest_step``, the oldest step that can be resumed."""
        for uid in await self.pool.retired_by.remote(oldest_step):
            path = self.directory.population / uid
            if path.exists():
                remove_directory(path)
