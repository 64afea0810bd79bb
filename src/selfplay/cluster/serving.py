"""The engines of a cluster as a program uses them: they load adapters by path."""

from collections.abc import Mapping
from pathlib import Path

from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.host import AdapterRef
from selfplay.cluster.learners.learner import RemoteLearners
from selfplay.cluster.program_collectors import ProgramCollectors
from selfplay.core.adapters import TRAINED
from selfplay.training.learners import Saved
from selfplay.training.metrics import RunMetrics


class ClusterServing:
    """See :class:`selfplay.training.serving.Serving`.

    Args:
        client: the client of the engines.
        policies: the names of the policies.
        learners: the learners whose adapters are served.
        collectors: the processes that play.
    """

    def __init__(
        self,
        client: EngineClient,
        policies: list[str],
        learners: RemoteLearners,
        collectors: ProgramCollectors,
    ) -> None:
        self.client = client
        self.results = {policy: f"result of {policy}" for policy in policies}
        self.learners = learners
        self.collectors = collectors
        self._versions: dict[str, int] = {}
        self._copies: Mapping[str, str] = {}

    async def publish(self, saved: Saved) -> None:
        """See ``Serving``."""
        self._versions = saved.versions
        refs = {
            policy: AdapterRef(policy, saved.versions[policy], path)
            for policy, path in saved.adapters.items()
        }
        self.client.adapters |= refs
        self.client.policy = refs.get(TRAINED, AdapterRef(TRAINED, saved.step, None))
        await self.collectors.follow()
        await self.learners.tidy([*self._copies.values()])

    async def freeze(self, uid: str, policy: str) -> str | None:
        """See ``Serving``; the learner's own file is kept for as long as it is served."""
        return (await self.learners.results())[policy]

    def serve_copies(self, paths: Mapping[str, str]) -> None:
        """See ``Serving``."""
        for uid in self._copies.keys() - paths.keys():
            del self.client.adapters[uid]
        versions = {uid: int(Path(path).name) for uid, path in paths.items()}  # as the learner numbers them
        self.client.adapters |= {uid: AdapterRef(uid, versions[uid], paths[uid]) for uid in paths}
        self._copies = dict(paths)

    async def publish_results(self) -> None:
        """See ``Serving``."""
        for policy, path in (await self.learners.results()).items():
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
        self.collectors.close()
        await self.client.close()
