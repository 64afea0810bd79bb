"""Start the inference actors of a run, and wait for as many as it needs."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any

from sparring.cluster.actor_classes import EngineActor, restarting
from sparring.cluster.calls import Handle, answered
from sparring.cluster.elsewhere import CommandHost
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.placement import Placed, Placement
from sparring.config import Config
from sparring.core import SparringError


def engine_names(config: Placed) -> list[str]:
    """Return the names of a run's inference actors, by number."""
    return [f"Engine-{number}" for number in range(config.ray.engines)]


def start_engines(
    config: Placed,
    engine: EngineSettings,
    placement: Placement,
    tracker: Handle,
    command: CommandHost,
) -> dict[str, Any]:
    """Start inference actors; return them by name."""
    settings = config.ray
    return {
        name: restarting(
            EngineActor,
            name=name,
            max_task_retries=0,
            num_cpus=settings.cpus_per_engine,
            num_gpus=settings.gpus_per_engine if config.inference.tensor_parallel == 1 else 0,
            max_restarts=settings.max_restarts,
            **placement.engine(number),
        ).remote(engine, name, tracker, command)
        for number, name in enumerate(engine_names(config))
    }


class EngineStarts:
    """Waits until enough engines have their model, and tells when others follow or cannot.

    Args:
        engines: handles of :class:`EngineService`, by name.
    """

    def __init__(self, engines: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.engines = engines
        self.say = say
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def enough(self, least: int, patience: float) -> None:
        """Start all engines; return when ``least`` of them have started.

        Raises:
            SparringError: too many engines cannot start, or not within ``patience`` seconds.
        """
        self._tasks = {
            name: asyncio.create_task(answered(name, engine.start)) for name, engine in self.engines.items()
        }
        try:
            async with asyncio.timeout(patience):
                await self._until(least)
        except TimeoutError:
            count = len(self._started())
            raise SparringError(f"only {count} of {least} engines started within {patience:g} s") from None
        for name, task in self._tasks.items():
            if not task.done():
                self.say(f"{name} is not there yet; the run starts without it")
            task.add_done_callback(functools.partial(self._tell, name, late=not task.done()))

    def cancel(self) -> None:
        """Wait no more."""
        for task in self._tasks.values():
            task.cancel()

    async def _until(self, least: int) -> None:
        while len(self._started()) < least:
            failed = [task for task in self._tasks.values() if task.done() and task.exception() is not None]
            if len(self._tasks) - len(failed) < least:
                await failed[-1]
            waiting = [task for task in self._tasks.values() if not task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _started(self) -> list[str]:
        return [name for name, task in self._tasks.items() if task.done() and task.exception() is None]

    def _tell(self, name: str, task: "asyncio.Task[None]", *, late: bool) -> None:
        if task.cancelled():
            return
        if task.exception() is not None:
            self.say(f"{name} cannot start, and the run goes on without it: {task.exception()}")
        elif late:
            self.say(f"{name} has joined the run")


def calls_per_engine(config: Config) -> int:
    """Return how many calls a collector, or the evaluation, may have at one engine, which rejects more."""
    return max(1, config.inference.max_queue // (config.ray.collectors + 1))


def calls_of_each_client(config: Config) -> int:
    """Return how many calls a collector, or the evaluation, may have in progress at all engines."""
    return config.ray.engines * calls_per_engine(config)


def calls_of_collectors(config: Config) -> int:
    """Return how many calls all collectors together may have in progress."""
    return calls_of_each_client(config) * config.ray.collectors
