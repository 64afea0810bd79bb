"""The engines of a cluster as a run uses them: they load adapters by path."""

from collections.abc import Collection, Mapping
from pathlib import Path

from sparring.cluster.engines.client import EngineClient
from sparring.cluster.learners.remote_learners import RemoteLearners
from sparring.cluster.program_collectors import ProgramCollectors
from sparring.core.adapters import AdapterRef
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.serving import Serving


class ClusterServing(Serving):
    """See :class:`sparring.run.serving.Serving`.

    Args:
        client: the client of the engines.
        results: see ``Serving``.
        learners: the learners whose adapters are served.
        collectors: the processes that play a program.
    """

    def __init__(
        self,
        client: EngineClient,
        results: dict[str, str],
        learners: RemoteLearners,
        collectors: ProgramCollectors | None = None,
    ) -> None:
        self.client = client
        self.results = results
        self.learners = learners
        self.collectors = collectors
        self._copies: Mapping[str, str] = {}
        self._in_use: list[str] = []

    async def publish(self, saved: Saved) -> None:
        """See ``Serving``."""
        self.client.follow(saved.weights())
        if self.collectors is not None:
            await self.collectors.follow()
        await self.learners.tidy(self._in_use)

    async def freeze(self, uid: str, policy: str) -> str | None:
        """See ``Serving``; the learner's own file stays for as long as it is in use."""
        return (await self.learners.results())[policy]

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """See ``Serving``."""
        for uid in self._copies.keys() - paths.keys():
            del self.client.adapters[uid]
        self.client.adapters |= {uid: _adapter(uid, path) for uid, path in paths.items()}
        self._copies = dict(paths)
        self._in_use = sorted({*paths.values(), *kept})

    async def publish_results(self) -> None:
        """See ``Serving``."""
        for policy, path in (await self.learners.results()).items():
            name = self.results[policy]
            self.client.adapters[name] = _adapter(name, path)

    def check(self) -> None:
        """See ``Serving``."""
        if self.client.fatal is not None:
            raise self.client.fatal

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """See ``Serving``. The engines also report to the tracker by themselves, every few seconds."""
        for engine, load in (await self.client.loads()).items():
            metrics.log({f"inference/{engine}/{name}": value for name, value in load.items()})

    async def close(self) -> None:
        """See ``Serving``."""
        if self.collectors is not None:
            self.collectors.close()
        await self.client.close()


def _adapter(name: str, path: str | None) -> AdapterRef:
    """Return an adapter that the learner wrote: its directory is named after its version."""
    return AdapterRef(name, 0 if path is None else int(Path(path).name), path)
