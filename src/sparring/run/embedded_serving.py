"""EmbeddedServing: the engine of a run in one process."""

from collections.abc import Collection, Mapping

from sparring.core.adapters import BASE
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import PolicyModel
from sparring.population.pool_members import iteration_of
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.run_directory import RunDirectory


class EmbeddedServing:
    """See :class:`sparring.run.serving.Serving`. The engine shares the weights with the learners, which
    change them in place.

    Args:
        engine: the engine.
        results: see :class:`Serving`.
        model: the model with the adapters of all policies.
        directory: the run's directory.
        base_name: name of the base model, for the copies' configuration.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        results: dict[str, str],
        model: PolicyModel,
        directory: RunDirectory,
        base_name: str,
    ) -> None:
        self.engine = engine
        self.results = results
        self.model = model
        self.directory = directory
        self.base_name = base_name
        self._published = PublishedAdapters(engine)
        self._copies: set[str] = set()
        engine.publish(BASE, BASE, 0)

    async def publish(self, saved: Saved) -> None:
        """See :class:`Serving`."""
        for policy, version in saved.versions.items():
            self.engine.publish(policy, policy, version)
            self.engine.publish(self.results[policy], self.results[policy], version)

    async def freeze(self, uid: str, policy: str) -> str | None:
        """See :class:`Serving`."""
        save_adapter(self.directory.population / uid, self.model, self.base_name, self.results[policy])
        return f"population/{uid}"

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """See :class:`Serving`; nothing here deletes files."""
        for uid in sorted(self._copies - paths.keys()):
            self._published.withdraw(uid)
        for uid in sorted(paths.keys() - self._copies):
            self._published.publish(uid, self.directory.path / paths[uid], iteration_of(uid))
        self._copies = set(paths)

    async def publish_results(self) -> None:
        """See :class:`Serving`; they are served already."""

    def check(self) -> None:
        """See :class:`Serving`; the engine's errors reach the caller."""

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """See :class:`Serving`."""
        stats = self.engine.stats
        metrics.log(
            {
                "time/generated_tokens_per_second": stats.generated_tokens / max(play_seconds, 1e-9),
                "inference/generated_tokens": float(stats.generated_tokens),
                "inference/computed_tokens": float(stats.computed_tokens),
                "inference/forward_passes": float(stats.forward_passes),
                "inference/spelled_control_tokens": float(stats.spelled_control_tokens),
            }
        )
        self.engine.reset_stats()

    def reset(self) -> None:
        """See :class:`Serving`."""
        self.engine.reset_stats()

    def forget(self) -> None:
        """See :class:`Serving`."""
        self.engine.forget_contexts()

    async def close(self) -> None:
        """See :class:`Serving`; the engine ends with the process."""
