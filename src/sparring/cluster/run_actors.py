"""The actors of a run: which class is which actor, under which name, where, with which restarts.

Engines are started in ``engine_start.py``, further learners in ``learner_group.py``; the classes are in
``actor_classes.py``.
"""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from sparring.cluster.actor_classes import (
    BufferActor,
    CollectorActor,
    CommandFilesActor,
    Hosted,
    ModelPoolActor,
    ProgramCollectorActor,
    TrackerActor,
    restarting,
)
from sparring.cluster.adapters import COMMAND_FILES
from sparring.cluster.calls import Handle, Named, found, still_there
from sparring.cluster.collector import CollectorService
from sparring.cluster.distant_learner import DistantLearner, DistantRun
from sparring.cluster.elsewhere import (
    CommandHost,
    command_host,
    errors_of_files,
    own_scratch,
    read_own_copies,
)
from sparring.cluster.engine_start import (
    calls_of_collectors,
    calls_of_each_client,
    calls_per_engine,
    engine_names,
    start_engines,
)
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.host import EngineSettings
from sparring.cluster.learner import LearnerService
from sparring.cluster.placement import Placement, beside_command
from sparring.cluster.program_collectors import ProgramCollector, collector_name
from sparring.collection.rollout_log import AdvantageLog
from sparring.config import Config
from sparring.config.loading import own_files
from sparring.config.play import Games
from sparring.core.adapters import AdapterRef
from sparring.core.files import Epoch
from sparring.run import assembly
from sparring.run.answer_lengths import answer_limits
from sparring.run.programs import build_program
from sparring.run.rewards import build_buffer
from sparring.run.run_directory import RunDirectory

CALLS_BESIDE = 100
"""Calls of Ray to a collector that are not episodes, such as health checks, which must not wait for these."""


def build_collector(
    config: Config,
    number: int,
    engines: list[Handle],
    buffer: Handle,
    pool: Handle,
    tracker: Handle,
    frozen: dict[str, AdapterRef],
    command: CommandHost,
) -> CollectorService:
    """Build one of a run's collectors, in its process."""
    read_own_copies(command)
    client = EngineClient(
        still_there(engines),
        config.policies,
        frozen=frozen,
        patience=config.ray.patience,
        calls_per_engine=calls_per_engine(config),
    )
    return CollectorService(
        collector_name(number),
        client,
        found(buffer),
        found(pool),
        found(tracker),
        assembly.play_settings(config),
        assembly.build_episodes(config),
        assembly.limits(config, calls_of_each_client(config)),
        assembly.take_in(config),
    )


def build_program_collector(
    config: Config, number: int, engines: list[Handle], tracker: Handle, command: CommandHost
) -> ProgramCollector:
    """Build one of the processes that play a run's program, in its process."""
    read_own_copies(command)
    arena = build_program(config)
    assert arena is not None
    client = arena.client = EngineClient(
        still_there(engines),
        patience=config.ray.patience,
        calls_per_engine=calls_per_engine(config),
        adapters_only=True,
    )
    arena.set_concurrency(calls_of_each_client(config))
    return ProgramCollector(collector_name(number), arena, client, found(tracker))


def build_learner(
    config: Config,
    run: Path,
    policies: list[str],
    workers: PlacementGroup | None,
    epoch: Epoch | None,
    command: CommandHost,
) -> LearnerService | DistantLearner:
    """Build the learners of a run's policies, in their process."""
    from sparring.cluster.learner_group import LearnerGroup, learners_from_config

    settings = config.ray
    group = LearnerGroup(
        partial(learners_from_config, config, policies, command),
        settings.learners,
        cpus=settings.cpus_per_learner,
        gpus=settings.gpus_per_learner,
        timeout_seconds=settings.patience,
        placement_group=workers,
    )

    def build(directory: Path, epoch: Epoch | None = None) -> LearnerService:
        return LearnerService(
            group,
            directory,
            config.model.name,
            may_start_again=[] if config.league is None else config.league.may_start_again,
            limits=answer_limits(config),
            log=AdvantageLog(RunDirectory(directory).batches) if config.buffer.log_batches else None,
            epoch=epoch,
        )

    files = command.files_if_elsewhere()
    if files is not None:
        return DistantLearner(build, DistantRun(files, run, own_scratch()))
    with errors_of_files():  # one that was elsewhere before, and may only be cut off, writes nothing any more
        ray.get(found(command.files).accept.remote(uuid.uuid4().hex))
    return build(run, epoch)


class RunActors:
    """The actors of one run. A program has no buffer and no pool; the command asks its collectors.

    They know each other by name (:class:`Named`); a handle is for the process of the command.

    Args:
        frozen: adapters that are never trained, by name.
    """

    buffer: Any
    pool: Any

    def __init__(
        self,
        config: Config,
        run: Path,
        namespace: str,
        placement: Placement,
        policies: list[str],
        frozen: dict[str, AdapterRef],
        epoch: Epoch | None,
    ) -> None:
        self._config = config
        self._placement = placement
        self._frozen = frozen
        self._run = run
        self._namespace = namespace
        self._epoch = epoch
        tracker, self._command = self._named("Tracker"), command_host(config.ray, namespace)
        self.tracker = self._singleton(TrackerActor, "Tracker").remote(
            run.name,
            config.tracking.wandb_project,
            directory=str(run),
            tensorboard=config.tracking.tensorboard,
            epoch=epoch,
        )
        self.files = self._singleton(CommandFilesActor, COMMAND_FILES).remote(
            config.model.name, own_files(config), run, epoch
        )
        self.engines = start_engines(config, EngineSettings.of(config), placement, tracker, self._command)
        self.learner = self._start_learner(policies)
        self.collectors: list[Any] = []
        if isinstance(config.play, Games):
            self._start_games(tracker)
        else:
            self.collectors = self._start_collectors(
                ProgramCollectorActor,
                build_program_collector,
                tracker,
                max_task_retries=0,
                max_concurrency=calls_of_collectors(config)
                + CALLS_BESIDE,  # the others' too if they are away
            )

    def by_name(self) -> dict[str, Any]:
        """Return the handles by the names that errors use."""
        actors = {"Tracker": self.tracker, COMMAND_FILES: self.files, "Learner": self.learner}
        if isinstance(self._config.play, Games):
            actors |= {"Buffer": self.buffer, "ModelPool": self.pool}
        return actors | self.engines | self._collectors()

    def groups(self) -> dict[str, PlacementGroup | None]:
        """Return the placement groups by the names of their actors."""
        place = self._placement
        engines = dict(zip(self.engines, place.engines, strict=True))
        return {"Learner": place.learners} | engines | dict.fromkeys(self._collectors(), place.collectors)

    def end(self) -> None:
        """Kill all actors; their state is in the run's directory."""
        for actor in self.by_name().values():
            ray.kill(actor)

    def _collectors(self) -> dict[str, Any]:
        return {collector_name(number): one for number, one in enumerate(self.collectors)}

    def _named(self, name: str) -> Named:
        return Named(name, self._namespace)

    def _singleton(self, cls: type, name: str) -> Any:
        """Return an actor of which there is one, beside the run's directory."""
        return restarting(cls, name=name, max_restarts=self._config.ray.max_restarts, **beside_command())

    def _start_learner(self, policies: list[str]) -> Any:
        config, settings = self._config, self._config.ray
        workers = self._placement.learners if settings.learners > 1 else None
        return restarting(
            Hosted,
            name="Learner",
            max_restarts=settings.max_restarts,
            num_cpus=settings.cpus_per_learner,
            num_gpus=settings.gpus_per_learner,
            **self._placement.learner(),
        ).remote(partial(build_learner, config, self._run, policies, workers, self._epoch, self._command))

    def _start_games(self, tracker: Named) -> None:
        config, run = self._config, str(self._run)
        self.buffer = self._singleton(BufferActor, "Buffer").remote(
            partial(build_buffer, config),
            tracker,
            run=run,
            log_batches=config.buffer.log_batches,
            max_staleness=config.collection.max_staleness,
            in_order=config.collection.max_staleness == 0,
            epoch=self._epoch,
        )
        self.pool = self._singleton(ModelPoolActor, "ModelPool").remote(
            tracker=tracker,
            run=run,
            epoch=self._epoch,
            **assembly.pool_arguments(config, config.policies),
        )
        buffer, pool = self._named("Buffer"), self._named("ModelPool")
        self.collectors = self._start_collectors(
            CollectorActor, build_collector, buffer, pool, tracker, self._frozen
        )

    def _start_collectors(
        self, cls: type, build: Callable[..., Any], *given: Any, **options: Any
    ) -> list[Any]:
        """Start the collectors, each of which ``build`` makes in its process, of what is ``given`` too."""
        config = self._config
        engines = [self._named(name) for name in engine_names(config)]
        return [
            restarting(
                cls,
                name=collector_name(number),
                max_restarts=config.ray.max_restarts,
                num_cpus=config.ray.cpus_per_collector,
                **options,
                **self._placement.collector(number),
            ).remote(partial(build, config, number, engines, *given, self._command))
            for number in range(config.ray.collectors)
        ]
