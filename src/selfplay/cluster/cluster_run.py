"""ClusterRun: the common part of all runs on a Ray cluster: build the actors, watch them and end them."""

import asyncio
import signal
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from ray.exceptions import RayError
from rich.console import Console

from selfplay.cluster.connect import head_address, in_our_words
from selfplay.cluster.engines.start import EngineStarts, engine_names
from selfplay.cluster.health import Health
from selfplay.cluster.placement import Placement
from selfplay.config.settings import Config
from selfplay.core import InputError
from selfplay.training import assembly
from selfplay.training.progress import RunProgress
from selfplay.training.progress_views import print_line
from selfplay.training.run_directory import RunDirectory


class RunActors(Protocol):
    """The actors of one run."""

    engines: list[Any]

    def by_name(self) -> dict[str, Any]:
        """Return the handles by the names that errors use."""

    def end(self) -> None:
        """Kill all actors; their state is in the run's directory."""


Parts = TypeVar("Parts", bound=RunActors)


class ClusterRun(ABC, Generic[Parts]):
    """One run on the connected cluster."""

    def __init__(self, config: Config, directory: RunDirectory, console: Console) -> None:
        self.config = config
        self.directory = directory
        self.console = console
        self.stopping = False

    async def run(self) -> None:
        """Train to the end, or until interrupted."""
        placement = await asyncio.to_thread(Placement, self.config, self._say)
        try:
            parts = await asyncio.to_thread(self.build_parts, placement)
        except ValueError as error:  # Ray's error for a name that is taken
            placement.remove()
            raise InputError(
                "--name",
                f"the cluster already has actors of a run {self.directory.path.name}",
                "Wait until they have ended, or choose another name",
            ) from error
        settings, engines = self.config.ray, engine_names(self.config)
        self.health = Health(parts.by_name(), settings.patience, head_address(settings), engines)
        self.starts = EngineStarts(dict(zip(engines, parts.engines, strict=True)), self._say)
        try:
            await self._run(parts)
        finally:
            self.starts.cancel()
            if not self.health.head_is_lost:
                parts.end()
                placement.remove()

    @abstractmethod
    def build_parts(self, placement: Placement) -> Parts:
        """Start the actors."""

    @abstractmethod
    async def train(self, parts: Parts, progress: RunProgress) -> None:
        """Play and learn until the configured number of updates is made, or ``stopping`` is set."""

    @abstractmethod
    async def finish(self, parts: Parts) -> None:
        """Print how the run ended."""

    async def prepare(self, parts: Parts) -> None:
        """Called when every actor is ready and enough engines have their model."""

    def stop(self, parts: Parts) -> None:
        """Called to end the run after the current update."""

    async def _run(self, parts: Parts) -> None:
        unit, size = assembly.unit_of_play(self.config)
        for asked_to_end in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(asked_to_end, self._interrupt, parts)
        with RunProgress(self.console, self.config.learning.steps, unit, size) as progress:
            progress.say("starting the actors")
            await self._guard(self._start(parts))
            await self._guard(self.train(parts, progress))
        await self._guard(self.finish(parts))

    async def _start(self, parts: Parts) -> None:
        await self.health.ready()
        await self.starts.enough(self.config.ray.least_engines, self.config.ray.patience)
        await self.prepare(parts)

    def _say(self, line: str) -> None:
        print_line(self.console, line)

    async def _guard(self, work: Any) -> None:
        """Do ``work`` for as long as every actor responds."""
        watching = asyncio.create_task(self.health.watch())
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
            for task in (working, watching):
                if task.done():
                    try:
                        task.result()
                    except RayError as error:
                        raise in_our_words(error, "the run") from error
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)

    def _interrupt(self, parts: Parts) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        self.stop(parts)
        self.console.print("finishing this update, then saving; press Ctrl-C again to stop at once")
