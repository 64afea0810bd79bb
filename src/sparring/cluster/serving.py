"""The engines of a cluster as a run uses them, or a match without a run: they load adapters by path."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import ray
from ray.exceptions import RayError

from sparring.cluster.actor_classes import AdapterFilesActor, restarting
from sparring.cluster.calls import Named, error_of
from sparring.cluster.connect import connected
from sparring.cluster.engine_start import EngineStarts, engine_names, start_engines
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.placement import Placement, beside_command
from sparring.cluster.program_collectors import ProgramCollectors
from sparring.cluster.remote import RemoteLearners
from sparring.cluster.view import NAMESPACE
from sparring.config import Config
from sparring.core import InferenceClient
from sparring.core.adapters import AdapterRef
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.serving import Serving

ADAPTER_FILES = "AdapterFiles"


@asynccontextmanager
async def members_served(
    config: Config, adapters: Mapping[str, Path], say: Callable[[str], None]
) -> AsyncIterator[InferenceClient]:
    """Join the cluster and start the engines of a run; yield a client of them; end them.

    Args:
        config: the run's configuration; its learners and collectors are not started.
        adapters: the adapters that the client knows, by name; it knows the base model as ``base``.
        say: prints a line.

    Raises:
        InputError: there is no cluster, it has no room, or the model cannot be loaded.
        SparringError: the engines cannot start, or were lost.
    """
    config = _engines_only(config)
    namespace = f"{NAMESPACE}members-{uuid.uuid4().hex[:8]}"
    known = {name: AdapterRef(name, 0, str(path.absolute())) for name, path in adapters.items()}
    with connected(config.ray, namespace):
        placement = await asyncio.to_thread(Placement, config, say)
        files = restarting(AdapterFilesActor, name=ADAPTER_FILES, **beside_command()).remote()
        engines = start_engines(
            config, EngineSettings.of(config), placement, None, Named(ADAPTER_FILES, namespace)
        )
        starts = EngineStarts(dict(zip(engine_names(config), engines, strict=True)), say)
        client = EngineClient(
            engines,
            (),
            frozen=known,
            patience=config.ray.patience,
            calls_per_engine=config.inference.max_queue,
            adapters_only=True,
        )
        try:
            await starts.enough(config.ray.least_engines, config.ray.patience)
            yield client
            if client.fatal is not None:
                raise client.fatal
        except RayError as error:
            raise error_of("the cluster", error) from error
        finally:
            starts.cancel()
            await client.close()
            for actor in (files, *engines):
                ray.kill(actor)
            placement.remove()


def _engines_only(config: Config) -> Config:
    """Return a configuration that requests nothing for learners and collectors."""
    nothing = {"learners": 1, "shard_base": False, "cpus_per_learner": 0.0, "gpus_per_learner": 0.0}
    settings = config.ray.model_copy(update={**nothing, "collectors": 1, "cpus_per_collector": 0.0})
    return config.model_copy(update={"ray": settings})


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
