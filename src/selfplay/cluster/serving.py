"""The engines of a cluster as a program uses them: they load adapters by path."""

from collections.abc import Awaitable, Callable

from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.host import AdapterRef
from selfplay.learning.adapter_names import TRAINED
from selfplay.training.learners import Saved
from selfplay.training.metrics import RunMetrics


class ClusterServing:
    """See :class:`selfplay.training.serving.Serving`.

    Args:
        client: the client of the engines.
        policies: the names of the policies.
        result_paths: returns the directory of the adapter that training produces, by policy.
    """

    def __init__(
        self,
        client: EngineClient,
        policies: list[str],
        result_paths: Callable[[], Awaitable[dict[str, str | None]]],
    ) -> None:
        self.client = client
        self.results = {policy: f"result of {policy}" for policy in policies}
        self._result_paths = result_paths
        self._versions: dict[str, int] = {}

    def publish(self, saved: Saved) -> None:
        """See ``Serving``."""
        self._versions = saved.versions
        refs = {
            policy: AdapterRef(policy, saved.versions[policy], path)
            for policy, path in saved.adapters.items()
        }
        self.client.adapters |= refs
        self.client.policy = refs.get(TRAINED, AdapterRef(TRAINED, saved.step, None))

    async def publish_results(self) -> None:
        """See ``Serving``."""
        for policy, path in (await self._result_paths()).items():
            name = self.results[policy]
            self.client.adapters[name] = AdapterRef(name, self._versions[policy], path)

    def check(self) -> None:
        """See ``Serving``."""
        if self.client.fatal is not None:
            raise self.client.fatal

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """See ``Serving``. The engines also report to the tracker by themselves, every few seconds."""
        for engine, load in (await self.client.loads()).items():
            metrics.log({f"inference/{engine}/{name}": value for name, value in load.items()})

    def reset(self) -> None:
        """See ``Serving``; the engines report to the tracker by themselves."""

    def forget(self) -> None:
        """See ``Serving``; the engines keep their caches when a run is resumed in part."""

    async def close(self) -> None:
        """See ``Serving``."""
        await self.client.close()
