"""A run on a Ray cluster: start the actors, watch them, train, and end them.

The state of the actors is in the run's directory, so the command may be killed like any of them:
``sparring train --resume RUN`` rebuilds the actors and they continue.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from rich.console import Console

from sparring.cluster.calls import HEARTBEAT_SECONDS, beat_of_buffer, error_of
from sparring.cluster.connect import connected, head_address
from sparring.cluster.engine_start import (
    EngineStarts,
    calls_of_collectors,
    calls_of_each_client,
    calls_per_engine,
)
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.games import ClusterGames
from sparring.cluster.health import Health
from sparring.cluster.placement import Placement, Sharing
from sparring.cluster.program_collectors import ProgramCollectors
from sparring.cluster.remote import ClusterServing, RemoteLearners
from sparring.cluster.run_actors import RunActors
from sparring.cluster.view import NAMESPACE
from sparring.config import Config
from sparring.core import InputError
from sparring.run import assembly
from sparring.run.game_source import GameSource
from sparring.run.given_adapters import frozen_adapters, with_own_copies
from sparring.run.hardware import available_cores
from sparring.run.metrics import RunMetrics
from sparring.run.program_source import ProgramSource
from sparring.run.programs import build_program, trained_policies
from sparring.run.progress_views import print_line, working
from sparring.run.run_directory import RunDirectory
from sparring.run.start import Work, resume_run, start_run
from sparring.run.trainer import Source, Trainer


class Cluster:
    """See :class:`sparring.run.start.Runtime`."""

    def cores(self, config: Config) -> int | None:
        """See ``Runtime``."""
        return Sharing.of(config).cores(available_cores()) if config.ray.address is None else None

    @contextmanager
    def prepared(self, config: Config, directory: RunDirectory, console: Console) -> Iterator[Work]:
        """Join the cluster, or start one; see ``Runtime``."""
        where = "on this machine" if config.ray.address is None else f"at {config.ray.address}"
        namespace = f"{NAMESPACE}{directory.name}"
        with ExitStack() as stack:
            with working(console, f"joining Ray {where}"):
                stack.enter_context(connected(config.ray, namespace))
            yield ClusterRun(config, directory, namespace, console).run


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run on a cluster; see :func:`sparring.run.start.start_run`."""
    start_run(config, run_dir, console, Cluster())


def resume(run_dir: Path, console: Console, changes: Mapping[str, str | None] | None = None) -> None:
    """Continue a run on a cluster; see :func:`sparring.run.start.resume_run`."""
    resume_run(run_dir, console, Cluster(), changes or {})


LOOK_EVERY = 0.5


class ClusterRun:
    """See the module."""

    def __init__(self, config: Config, directory: RunDirectory, namespace: str, console: Console) -> None:
        self.directory = directory
        self.namespace = namespace
        self.console = console
        self.program = build_program(config)
        self.policies = trained_policies(config, self.program)
        self.config = with_own_copies(config, directory)
        self.frozen = frozen_adapters(self.config)

    async def run(self) -> None:
        """Train to the end, or until interrupted.

        Raises:
            SparringError: the run had to stop.
        """
        try:
            await self._run()
        except RayError as error:
            raise error_of("the cluster", error) from error

    async def _run(self) -> None:
        placement = await asyncio.to_thread(Placement, self.config, self._say)
        try:
            actors = await asyncio.to_thread(
                RunActors,
                self.config,
                self.directory.path.absolute(),
                self.namespace,
                placement,
                self.policies,
                self.frozen,
                self.directory.epoch,
            )
        except ValueError as error:  # Ray's error for a name that is taken
            placement.remove()
            raise InputError(
                "--name",
                f"the cluster already has actors of a run {self.directory.name}",
                "Wait until they have ended, or choose another name",
            ) from error
        settings = self.config.ray
        self.health = Health(
            actors.by_name(), settings.patience, head_address(settings), actors.engines, actors.groups()
        )
        self.starts = EngineStarts(actors.engines, self._say)
        try:
            with working(self.console, "starting the actors"):
                await self._guard(self._start())
            trainer = self._trainer(actors)
            beside = [self._show_who_is_away(trainer), self._beat(trainer, actors)]
            await self._guard(trainer.run(), beside)
        finally:
            self.starts.cancel()
            if not self.health.head_is_lost:
                actors.end()
                placement.remove()

    async def _start(self) -> None:
        await self.health.ready()
        await self.starts.enough(self.config.ray.least_engines, self.config.ray.patience)

    def _say(self, line: str) -> None:
        print_line(self.console, line)

    def _trainer(self, actors: RunActors) -> Trainer:
        config, directory, policies = self.config, self.directory, self.policies
        metrics = RunMetrics(actors.tracker)
        learners = RemoteLearners(actors.learner, directory.checkpoint)
        client = EngineClient(
            list(actors.engines.values()),
            policies,
            frozen=self.frozen,
            patience=config.ray.patience,
            calls_per_engine=calls_per_engine(config),
            adapters_only=self.program is not None,
        )
        results = {policy: assembly.evaluated_uid(config, policy) for policy in policies}
        source: Source
        if self.program is None:
            serving = ClusterServing(client, results, learners, directory.path)
            games = ClusterGames(config, directory, actors, self.namespace)
            arena = assembly.build_arena(config, client, calls_of_each_client(config))
            source = GameSource(config, directory, metrics, games, serving, learners, arena)
        else:
            collectors = self.program.elsewhere = ProgramCollectors(self.program, client, actors.collectors)
            serving = ClusterServing(client, results, learners, directory.path, collectors)
            calls = calls_of_collectors(config)
            source = ProgramSource(config, directory, metrics, self.program, client, serving, learners, calls)
        return Trainer(config, directory, source, learners, metrics, self.console)

    async def _guard(self, work: Any, beside: list[Any] | None = None) -> None:
        """Do ``work`` for as long as every actor responds, and what is ``beside`` it meanwhile."""
        others = [asyncio.create_task(one) for one in [self.health.watch(), *(beside or [])]]
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([*others, working], return_when=asyncio.FIRST_COMPLETED)
            for task in (working, *others):
                if task.done():
                    try:
                        task.result()
                    except RayError as error:
                        raise await self.health.reason_of(error) from error
        finally:
            for task in (working, *others):
                task.cancel()
            await asyncio.gather(working, *others, return_exceptions=True)

    async def _show_who_is_away(self, trainer: Trainer) -> None:
        said = ""
        while True:
            away = ", ".join(f"{name} is away" for name in self.health.away)
            if away != said:
                trainer.progress.say(away)
                said = away
            await asyncio.sleep(LOOK_EVERY)

    async def _beat(self, trainer: Trainer, actors: RunActors) -> None:
        while True:
            load = {"step": trainer.saved.step, "state": trainer.state}
            actors.tracker.heartbeat.remote("Learner", load)
            if self.program is None:
                await beat_of_buffer(actors.tracker, actors.buffer)
            await asyncio.sleep(HEARTBEAT_SECONDS)
