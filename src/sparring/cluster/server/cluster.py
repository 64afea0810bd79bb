"""ServingCluster: the engines and workers of a server, for as long as it runs."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import ray
from ray.exceptions import RayError

from sparring.cluster.actor_classes import AdapterFilesActor, restarting
from sparring.cluster.calls import Named, error_of
from sparring.cluster.connect import connected, head_address
from sparring.cluster.engine_start import EngineStarts, engine_names, start_engines
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.health import Health
from sparring.cluster.placement import Placement, Sharing, beside_command
from sparring.cluster.server.engines import ServingEngines
from sparring.cluster.server.workers import ClusterWorkers
from sparring.cluster.view import NAMESPACE
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.config.run import RaySettings
from sparring.core import InputError
from sparring.core.chat_tokens import ChatTokens
from sparring.engine.answering import ModelFacts
from sparring.run.threads import available_cores, chosen_threads

ADAPTER_FILES = "AdapterFiles"


class ServingCluster:
    """See the module.

    The engines are placed as those of a run are. A job has the place of a learner, which is reserved all the
    time, so that it never waits for room.

    Args:
        ray: the cluster, the number of engines, and what each of them and a job (a learner) requests.
        inference: the engines.
        model: their base model.
        tokens: its tokenizer.
        say: prints a line for whoever runs the server.
    """

    def __init__(
        self,
        ray: RaySettings,
        inference: InferenceSettings,
        model: ModelSettings,
        tokens: ChatTokens,
        say: Callable[[str], None],
    ) -> None:
        self.ray = ray
        self.inference = inference
        self._model = model
        self._tokens = tokens
        self._say = say
        self._namespace = f"{NAMESPACE}server-{uuid.uuid4().hex[:8]}"
        self._head: str | None = None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be connected to the cluster, which is started if there is no address, while the body runs.

        Raises:
            InputError: there is no cluster at the address.
        """
        with connected(self.ray, self._namespace):
            self._head = head_address(self.ray)
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[ServingEngines, ModelFacts]]:
        """Start the engines; yield them, and how they compute; end all actors.

        Raises:
            InputError: the cluster has no room, or the model cannot be loaded.
            SparringError: the engines cannot start.
        """
        try:
            placement = await asyncio.to_thread(Placement, self, self._say)
        except InputError as error:
            fix = "Give fewer engines or GPUs, or wait for more room"
            raise InputError("--engines", error.problem, fix) from error
        files = restarting(AdapterFilesActor, name=ADAPTER_FILES, **beside_command()).remote()
        named = Named(ADAPTER_FILES, self._namespace)
        engines = start_engines(self, self._engine_settings(), placement, None, named)
        names = engine_names(self)
        actors = {ADAPTER_FILES: files} | dict(zip(names, engines, strict=True))
        self._health = Health(actors, self.ray.patience, self._head, names)
        self._placement = placement
        starts = EngineStarts(dict(zip(names, engines, strict=True)), self._say)
        try:
            await self._health.ready()
            await starts.enough(self.ray.engines, self.ray.patience)
            facts: ModelFacts = await engines[0].facts.remote()
            facts = replace(facts, device=facts.device.partition(":")[0])  # other nodes number their GPUs
            serving = ServingEngines(
                engines,
                self._tokens,
                max_tokens=self.inference.max_tokens,
                facts=facts,
                patience=self.ray.patience,
            )
            yield serving, facts
            await serving.close()
        except RayError as error:
            raise error_of("the cluster", error) from error
        finally:
            starts.cancel()
            if not self._health.head_is_lost:
                for actor in actors.values():
                    ray.kill(actor)
                placement.remove()

    def workers(self) -> ClusterWorkers:
        """Return what starts the workers of jobs."""
        settings = self.ray
        requests = {"num_cpus": settings.cpus_per_learner, "num_gpus": settings.gpus_per_learner}
        return ClusterWorkers({**requests, **self._placement.learner()}, self._head, settings.patience)

    async def guard(self, engines: ServingEngines, work: Awaitable[None], end: Callable[[], None]) -> None:
        """Do ``work`` for as long as an engine answers; otherwise let it ``end`` first.

        Raises:
            SparringError: all engines are lost, or the head is.
        """
        working = asyncio.ensure_future(work)
        watches = [asyncio.create_task(self._health.watch()), asyncio.create_task(engines.failure())]
        try:
            await asyncio.wait([*watches, working], return_when=asyncio.FIRST_COMPLETED)
            end()
            await working
            for watch in watches:
                if watch.done():
                    watch.result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def _engine_settings(self) -> EngineSettings:
        """Return the engine of each actor. On this machine, its threads are measured once, here."""
        workers, model = int(self.ray.cpus_per_learner > 0), self._model
        sharing = Sharing(self.ray.engines, workers, overlap=True)
        if self.ray.address is None:
            threads = chosen_threads(model, sharing.cores(available_cores()), self._say)
            model = model.model_copy(update={"threads": threads})
        return EngineSettings(model, None, self.inference, sharing)
