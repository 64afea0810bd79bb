"""Engines of a cluster outside a run: for a server, and for games and measures with given adapters."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sparring.cluster.actor_classes import CommandFilesActor, restarting
from sparring.cluster.adapters import COMMAND_FILES
from sparring.cluster.calls import error_of
from sparring.cluster.connect import connected, head_address
from sparring.cluster.elsewhere import command_host
from sparring.cluster.engine_start import EngineStarts, start_engines
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.health import Health
from sparring.cluster.job_workers import ClusterWorkers
from sparring.cluster.placement import Placed, Placement, Sharing, beside_command
from sparring.cluster.view import NAMESPACE
from sparring.config import Config
from sparring.config.facts import MODEL
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.config.run import RaySettings
from sparring.core import InferenceClient, InputError, Messages, SparringError
from sparring.core.adapters import AdapterRef
from sparring.core.chat_tokens import ChatTokens
from sparring.engine.adapters import Delivery
from sparring.engine.answering import Answering, ModelFacts
from sparring.run.hardware import available_cores, chosen_threads

LOOK_SECONDS = 1.0


class ServingEngines(EngineClient, Answering):
    """See the module; adapters are published in all engines.

    Every engine loads an adapter before its name is served, and proves that it answers with it. An engine
    that is away meanwhile, or has made room for others since, does so with the first request that names it.

    Args:
        engines: handles of :class:`EngineService`.
        max_tokens: maximum tokens of an answer if a request does not give one.
        facts: how the engines compute.
        patience: seconds without any engine after which requests fail.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        tokens: ChatTokens,
        *,
        max_tokens: int,
        facts: ModelFacts,
        patience: float,
    ) -> None:
        super().__init__(list(engines), (), patience=patience, adapters_only=True, wrong_adapter_ends=False)
        self.adapters = {}
        self.max_tokens = max_tokens
        self.max_context = facts.max_context
        self.vocabulary_size = facts.vocabulary_size
        self.tokenizer = tokens.tokenizer
        self._engines = engines
        self._tokens = tokens
        self._newest = 0

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return list(self.adapters)

    def render(self, messages: Messages) -> list[int]:
        """See :meth:`EmbeddedEngine.render`."""
        return self._tokens.render(messages)

    def publish_base(self, name: str) -> None:
        """Serve the base model as ``name``."""
        self.adapters[name] = AdapterRef(name, 0, None)

    async def publish_in_background(
        self, name: str, directory: Path, version: int | None = None, *, proof: bool = True
    ) -> Delivery:
        """See :class:`Publisher`; engines always ask for a proof."""
        version = self._newest + 1 if version is None else version
        adapter = AdapterRef(name, version, str(directory.absolute()))
        self._newest = max(self._newest, version)
        number = range(len(self._engines))
        held = await asyncio.gather(*(self._hold(one, adapter) for one in number), return_exceptions=True)
        for error in held:
            if isinstance(error, BaseException):
                raise error
        deliveries = [one for one in held if isinstance(one, Delivery)]
        if not deliveries:
            raise SparringError(f"no engine could be reached to load {name}")
        self.adapters[name] = adapter
        return deliveries[0]

    def withdraw(self, name: str) -> None:
        """Stop serving ``name``. Its requests in progress are answered."""
        del self.adapters[name]

    async def failure(self) -> None:
        """Wait until no engine can answer any more; end only with the reason.

        Raises:
            SparringError: the engines are lost or cannot start again.
        """
        while self.fatal is None:
            await asyncio.sleep(LOOK_SECONDS)
        raise self.fatal

    async def _hold(self, number: int, adapter: AdapterRef) -> Delivery | None:
        """Let an engine load an adapter; return its proof, or ``None`` if it could not be reached."""
        try:
            held: Delivery = await asyncio.wait_for(self._engines[number].hold.remote(adapter), self.patience)
        except RayTaskError as error:
            raise error_of(f"Engine-{number}", error) from error
        except (RayError, TimeoutError):
            return None
        return held


@asynccontextmanager
async def started_engines(
    config: Placed,
    engine: EngineSettings,
    placement: Placement,
    namespace: str,
    head: str | None,
    say: Callable[[str], None],
) -> AsyncIterator[tuple[list[Any], Health]]:
    """Start engines outside a run, with copies of the command's files where nodes do not see them; end all.

    Raises:
        InputError: the model cannot be loaded.
        SparringError: the engines cannot start.
    """
    name = MODEL.with_file(engine.model.name, os.path.abspath)
    engine = replace(engine, model=engine.model.model_copy(update={"name": name}))
    files = restarting(CommandFilesActor, name=COMMAND_FILES, **beside_command()).remote(name)
    engines = start_engines(config, engine, placement, None, command_host(config.ray, namespace))
    actors = {COMMAND_FILES: files} | engines
    groups = dict(zip(engines, placement.engines, strict=True))
    health = Health(actors, config.ray.patience, head, engines, groups)
    starts = EngineStarts(engines, say)
    try:
        await health.ready()
        await starts.enough(config.ray.least_engines, config.ray.patience)
        yield list(engines.values()), health
    except RayError as error:
        raise error_of("the cluster", error) from error
    finally:
        starts.cancel()
        if not health.head_is_lost:
            for actor in actors.values():
                ray.kill(actor)
            placement.remove()


@asynccontextmanager
async def members_served(
    config: Config, adapters: Mapping[str, Path], say: Callable[[str], None]
) -> AsyncIterator[InferenceClient]:
    """Join the cluster and start the engines of a run; yield a client of them; end them.

    Args:
        adapters: the adapters that the client knows, by name; it knows the base model as ``base``.

    Raises:
        InputError: there is no cluster, it has no room, or the model cannot be loaded.
        SparringError: the engines cannot start, or were lost.
    """
    config = _engines_only(config)
    namespace = f"{NAMESPACE}members-{uuid.uuid4().hex[:8]}"
    known = {name: AdapterRef(name, 0, str(path.absolute())) for name, path in adapters.items()}
    with connected(config.ray, namespace):
        placement, head = await asyncio.to_thread(Placement, config, say), head_address(config.ray)
        engine = EngineSettings.of(config)
        async with started_engines(config, engine, placement, namespace, head, say) as (engines, _):
            client = EngineClient(
                engines,
                (),
                frozen=known,
                patience=config.ray.patience,
                calls_per_engine=config.inference.max_queue,
                adapters_only=True,
            )
            try:
                yield client
            finally:
                await client.close()
            if client.fatal is not None:
                raise client.fatal


def _engines_only(config: Config) -> Config:
    nothing = {"learners": 1, "shard_base": False, "cpus_per_learner": 0.0, "gpus_per_learner": 0.0}
    settings = config.ray.model_copy(update={**nothing, "collectors": 1, "cpus_per_collector": 0.0})
    return config.model_copy(update={"ray": settings})


class ServingCluster:
    """See the module.

    The engines are placed as those of a run are. A job has the place of a learner, which is reserved all the
    time, so that it never waits for room.
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
            placement = self._placement = await asyncio.to_thread(Placement, self, self._say)
        except InputError as error:
            fix = "Give fewer engines or GPUs, or wait for more room"
            raise InputError("--engines", error.problem, fix) from error
        engine = self._engine_settings()
        async with started_engines(self, engine, placement, self._namespace, self._head, self._say) as (
            engines,
            self._health,
        ):
            facts: ModelFacts = await engines[0].facts.remote()
            facts = replace(facts, device=facts.device.partition(":")[0])  # other nodes number their GPUs
            serving = ServingEngines(
                engines,
                self._tokens,
                max_tokens=self.inference.max_tokens,
                facts=facts,
                patience=self.ray.patience,
            )
            try:
                yield serving, facts
            finally:
                await serving.close()

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
