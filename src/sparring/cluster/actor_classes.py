"""The classes of a run's actors: what each builds in its own process, and rebuilds there after a kill.

Every actor is crash-only. Ray runs its constructor again, which restores the state from the run's directory,
and repeats the calls that were not answered; the services recognise a repeated call. What cannot be built is
reported by every call: of an error in a constructor, Ray passes on only the text.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import ray

from sparring.cluster.calls import Handle, RemoteLogger, found
from sparring.cluster.collector import CollectorService
from sparring.cluster.command_files import CommandFiles
from sparring.cluster.elsewhere import CommandHost
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.engines.service import EngineService
from sparring.cluster.program_collectors import PlayedEpisode, ProgramCollector, Setting
from sparring.cluster.tracker import TrackerService
from sparring.collection.buffer import BufferService
from sparring.collection.buffers import BaseBuffer, MetricLogger
from sparring.collection.pool import PoolService, Published
from sparring.collection.pool_state import Jobs
from sparring.collection.rollout_log import BatchLog
from sparring.core import EpisodeRequest
from sparring.core.adapters import Weights
from sparring.core.files import Epoch
from sparring.core.garbage_collection import raise_collection_thresholds
from sparring.engine.api_models import refuse_credentials
from sparring.envs.generators import lend_generators_for_good
from sparring.run.run_directory import RunDirectory

MAX_RESTARTS = 20
STATE = "state"
"""Directory of a run in which the actors keep the state that they restore after a kill."""

Built = TypeVar("Built")


def restarting(cls: type, **options: Any) -> Any:
    """Return a class as an actor that Ray restarts and whose unanswered calls it repeats.

    Ray runs the calls of a class with coroutines on one event loop, and those of any other class one at a
    time: a service never runs two calls in parallel.

    Args:
        options: Ray's options, such as ``name`` or ``num_gpus``.
    """
    defaults = {"max_restarts": MAX_RESTARTS, "max_task_retries": -1, "num_cpus": 0}
    return ray.remote(cls).options(**(defaults | options))


class BuildBuffer(Protocol):
    """Builds a buffer, new and empty. Ray must be able to pickle it."""

    def __call__(self, *, tracker: MetricLogger | None, batch_log: BatchLog | None) -> BaseBuffer:
        """Build the buffer with its metrics and its log."""


class Hosted(Generic[Built]):
    """An actor that holds an object, which it builds in a thread when the first call needs it."""

    def __init__(self, build: Callable[[], Built]) -> None:
        self._build = build
        self._building: asyncio.Task[Built] | None = None

    @ray.method(max_task_retries=0)
    async def check(self) -> None:
        """Build the object, unless it is built; if it cannot be, raise the reason, as any other call does."""
        await self._built()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object and return its answer."""
        answer = getattr(await self._built(), method)(*arguments)
        return await answer if isawaitable(answer) else answer

    async def _built(self) -> Built:
        if self._building is None:
            self._building = asyncio.create_task(asyncio.to_thread(self._build))
        return await asyncio.shield(self._building)


class TrackerActor(TrackerService):
    """:class:`TrackerService` as an actor; after a restart it finds the directory that it chose."""

    def __init__(self, run_name: str, wandb_project: str | None = None, **options: Any) -> None:
        raise_collection_thresholds()
        owner = ray.get_runtime_context().get_actor_id()
        super().__init__(run_name, wandb_project, owner=owner, **options)


class BufferActor(BufferService):
    """:class:`BufferService` as an actor; without ``run`` it writes nothing."""

    def __init__(
        self,
        build: BuildBuffer,
        tracker: Handle = None,
        *,
        run: str | None = None,
        log_batches: bool = True,
        **options: Any,
    ) -> None:
        raise_collection_thresholds()
        files = None if run is None else RunDirectory(Path(run))
        buffer = build(
            tracker=RemoteLogger(found(tracker)) if tracker is not None else None,
            batch_log=BatchLog(files.batches) if files is not None and log_batches else None,
        )
        rollouts = None if files is None else str(files.rollouts)
        super().__init__(buffer, directory=state_directory(run, "buffer"), rollouts=rollouts, **options)


class ModelPoolActor(PoolService):
    """:class:`PoolService` as an actor; without ``run`` it writes nothing.

    What it keeps names adapters by their paths in the run, which may be moved; what it tells, by whole paths.
    """

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: Handle = None,
        *,
        run: str | None = None,
        **options: Any,
    ) -> None:
        raise_collection_thresholds()
        options["directory"] = state_directory(run, "pool")
        self._run = Path(run or "")
        super().__init__(sample_mode, max_active_lora, found(tracker), **options)

    def publish(self, weights: Weights, consumed: int = 0) -> Published:
        """See :meth:`PoolService.publish`."""
        kept = {name: replace(one, path=self._below(one.path)) for name, one in weights.adapters.items()}
        return super().publish(replace(weights, adapters=kept), consumed)

    async def next_jobs(self, *arguments: Any, **options: Any) -> Jobs:
        """See :meth:`PoolService.next_jobs`."""
        return self._with_places(await super().next_jobs(*arguments, **options))

    async def newest(self, *arguments: Any, **options: Any) -> Jobs:
        """See :meth:`PoolService.newest`."""
        return self._with_places(await super().newest(*arguments, **options))

    def _below(self, path: str | None) -> str | None:
        if path is None or not Path(path).is_relative_to(self._run):
            return path
        return str(Path(path).relative_to(self._run))

    def _with_places(self, jobs: Jobs) -> Jobs:
        found, played = (
            {
                name: one if one.path is None else replace(one, path=str(self._run / one.path))
                for name, one in adapters.items()
            }
            for adapters in (jobs.adapters, jobs.weights.adapters)
        )
        return replace(jobs, adapters=found, weights=replace(jobs.weights, adapters=played))

    def add_fixed(self, name: str, *arguments: Any, **options: Any) -> str:
        """See :meth:`PoolService.add_fixed`.

        Raises:
            InputError: the name contains a password, or a query, which may contain a key.
        """
        refuse_credentials(name, "name")
        return super().add_fixed(name, *arguments, **options)


class CollectorActor(Hosted[CollectorService]):
    """Holds a :class:`CollectorService`."""

    def __init__(self, build: Callable[[], CollectorService]) -> None:
        lend_generators_for_good()
        super().__init__(build)

    async def collect(self, num_workers: int, num_eval_workers: int = 0) -> None:
        """See :meth:`CollectorService.collect`."""
        await self.call("collect", num_workers, num_eval_workers)


class ProgramCollectorActor(Hosted[ProgramCollector]):
    """Holds a :class:`ProgramCollector`, and builds it at once.

    Ray reads a request before the call, and it may be of the program's own classes.
    """

    def __init__(self, build: Callable[[], ProgramCollector]) -> None:
        raise_collection_thresholds()
        built: Future[ProgramCollector] = Future()
        try:
            built.set_result(build())
        except Exception as error:  # noqa: BLE001 - every call raises it
            built.set_exception(error)
        super().__init__(built.result)

    async def follow(self, number: int, shared: list[ray.ObjectRef[Setting]]) -> None:
        """See :meth:`ProgramCollector.follow`; the setting is fetched if it is newer than the one known."""
        collector = await self._built()
        if number > collector.known:
            await collector.follow(await shared[0])

    async def play(
        self, request: EpisodeRequest, number: int, shared: list[ray.ObjectRef[Setting]]
    ) -> PlayedEpisode:
        """See :meth:`ProgramCollector.play`."""
        await self.follow(number, shared)
        return await (await self._built()).play(request)


class EngineActor(EngineService):
    """An inference actor. The first request or :meth:`start` loads its model."""

    def __init__(
        self, settings: EngineSettings, name: str, tracker: Handle = None, command: CommandHost | None = None
    ) -> None:
        raise_collection_thresholds()
        super().__init__(
            settings.build_host(None if command is None else command.files_if_elsewhere()),
            name,
            found(tracker),
            [int(gpu) for gpu in ray.get_gpu_ids()],
        )


class CommandFilesActor(CommandFiles):
    """:class:`CommandFiles` as an actor."""

    def __init__(
        self, model: str, own: Sequence[str] = (), run: Path | None = None, epoch: Epoch | None = None
    ) -> None:
        super().__init__(ray.put, model, own, run, epoch)


def state_directory(run: str | None, kind: str) -> str | None:
    """Return the directory of this actor's state; its name is the actor's if it has one, else unique."""
    if run is None:
        return None
    context = ray.get_runtime_context()
    return str(Path(run) / STATE / (context.get_actor_name() or f"{kind}-{context.get_actor_id()}"))
