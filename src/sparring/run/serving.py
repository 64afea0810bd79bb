"""Who answers a run's model calls: engines that are told which weights to play with."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sparring.core.adapters import BASE
from sparring.population.pool_members import iteration_of
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from sparring.engine.published_adapters import PublishedAdapters
    from sparring.learn.policy import PolicyModel


class Serving(ABC):
    """Serves each policy by its name, and the adapter that its training produces by another."""

    results: dict[str, str]
    """The served name of the adapter that training produces, by policy: the average if any."""

    async def start(self) -> None:
        """Start the engines; called once, before anything is published."""

    @abstractmethod
    async def publish(self, saved: Saved) -> None:
        """Answer with these weights from now on."""

    @abstractmethod
    async def freeze(self, uid: str, policy: str) -> str | None:
        """Keep a copy of what the training of a policy has produced by now; return its path.

        A relative path is below the run's directory; ``None`` is the untrained model.
        """

    @abstractmethod
    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """Serve exactly these copies, given as paths by uid; files at the paths ``kept`` stay."""

    async def publish_results(self) -> None:
        """Serve the newest ``results``, for an evaluation, unless they are served already."""

    def check(self) -> None:
        """Raise the SparringError of an engine that no further call can survive.

        Episodes treat such an error as their own failure.
        """

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """Log the engines' statistics since the last call."""

    def reset(self) -> None:
        """Leave what an evaluation did out of the statistics."""

    async def rest(self) -> None:
        """Leave the machine to the learners; nothing is asked until weights are published again."""

    async def forget(self) -> None:
        """Forget cached contexts, as a restart would, so that a resumed run computes the same."""

    async def close(self) -> None:
        """Send no more calls."""


class EmbeddedServing(Serving):
    """The engine of a run in one process, which shares the weights with the learners."""

    def __init__(
        self,
        published: "PublishedAdapters",
        results: dict[str, str],
        model: "PolicyModel",
        directory: RunDirectory,
        base_name: str,
    ) -> None:
        self.published = published
        self.engine = published.engine
        self.results = results
        self.model = model
        self.directory = directory
        self.base_name = base_name
        self._copies: set[str] = set()
        self._served: dict[str, tuple[int, int]] = {}
        self.engine.publish(BASE, BASE, 0)

    async def publish(self, saved: Saved) -> None:
        """Answer with the learners' weights, which change in place, under new versions.

        A policy that neither learned nor began again keeps its contexts.
        """
        now = {
            policy: (version, saved.ages.get(policy, version)) for policy, version in saved.versions.items()
        }
        for policy, (version, _) in now.items():
            if self._served.get(policy) != now[policy]:
                for name in (policy, self.results[policy]):
                    self.engine.publish(name, name, version)
        self._served = now

    async def freeze(self, uid: str, policy: str) -> str | None:
        """Write a copy of what the training of a policy has produced into ``population``."""
        return write_copy(self.directory, uid, self.model, self.base_name, self.results[policy])

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """Serve exactly these copies; nothing here deletes files."""
        for uid in sorted(self._copies - paths.keys()):
            self.published.withdraw(uid)
        for uid in sorted(paths.keys() - self._copies):
            self.published.publish(uid, self.directory.path / paths[uid], iteration_of(uid))
        self._copies = set(paths)

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """Log the engine's statistics since the last call."""
        stats = self.engine.stats
        metrics.log({"time/generated_tokens_per_second": stats.generated_tokens / max(play_seconds, 1e-9)})
        for name in ("generated_tokens", "computed_tokens", "forward_passes", "spelled_control_tokens"):
            metrics.log({f"inference/{name}": float(getattr(stats, name))})
        self.reset()

    def reset(self) -> None:
        """Leave what an evaluation did out of the statistics."""
        self.engine.reset_stats()

    async def forget(self) -> None:
        """Forget cached contexts."""
        self.engine.forget_contexts()


def write_copy(
    directory: RunDirectory,
    uid: str,
    model: "PolicyModel",
    base_name: str,
    adapter: str,
    version: int | None = None,
) -> str:
    """Write a copy of an adapter into ``population``, with a version also the learner's description; return
    its path in the run's directory."""
    from sparring.learn.checkpoints import save_adapter

    save_adapter(directory.population / uid, model, base_name, adapter, version=version)
    return f"population/{uid}"
