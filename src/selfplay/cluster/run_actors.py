"""The actors of a run: which class is which actor, under which name, where, with which restarts."""

import functools
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from selfplay.cluster.actors import (
    ActorForm,
    EpisodeBufferActor,
    ModelPoolActor,
    StepBufferActor,
    TrackerActor,
)
from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.start import (
    calls_of_each_client,
    calls_per_engine,
    start_adapter_files,
    start_engines,
)
from selfplay.cluster.handles import found, still_there
from selfplay.cluster.learners.learner import LearnerService
from selfplay.cluster.placement import Placement, beside_command
from selfplay.cluster.services.collector import CollectorService, Limits
from selfplay.cluster.services.games_in_flight import PlaySettings
from selfplay.config import Config
from selfplay.config.play import Games
from selfplay.core import derive_seed
from selfplay.envs.generators import lend_generators_for_good
from selfplay.training import assembly
from selfplay.training.epoch import Epoch
from selfplay.training.evaluation_opponents import evaluation_opponents
from selfplay.training.rewards import composed_transforms


class ConfigCollectorActor(CollectorService):
    """One of a run's collectors."""

    def __init__(
        self, config: Config, number: int, engines: Any, step_buffer: Any, model_pool: Any, tracker: Any
    ) -> None:
        lend_generators_for_good()
        collection = config.collection
        super().__init__(
            f"Collector-{number}",
            EngineClient(
                still_there(engines),
                patience=config.ray.patience,
                calls_per_engine=calls_per_engine(config),
            ),
            found(step_buffer),
            found(model_pool),
            found(tracker),
            play_settings(config),
            {assembly.env_spec(env).key: assembly.build_episode(env) for env in config.envs},
            Limits(
                collection.game_timeout,
                collection.retries,
                calls_of_each_client(config),
                config.tracking.games_logged,
                collection.games_per_step,
            ),
            filter_opponent_invalid=collection.filter_opponent_invalid,
        )


class ConfigLearnerActor(LearnerService):
    """The learners of a run's policies."""

    def __init__(
        self,
        config: Config,
        run: str,
        policies: list[str],
        workers: PlacementGroup | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        from selfplay.cluster.learners.group import LearnerGroup
        from selfplay.cluster.learners.settings import learners_from_config

        settings = config.ray
        group = LearnerGroup(
            functools.partial(learners_from_config, config, policies),
            settings.learners,
            cpus=settings.cpus_per_learner,
            gpus=settings.gpus_per_learner,
            timeout_seconds=settings.patience,
            placement_group=workers,
        )
        super().__init__(group, Path(run), config.model.name, epoch=epoch)


def play_settings(config: Config) -> PlaySettings:
    """Return the games that the collectors of a run play."""
    alongside = config.evaluation.games_alongside
    return PlaySettings(
        environments=tuple(assembly.env_spec(env) for env in config.envs),
        weights=tuple(env.weight for env in config.envs),
        evaluation=tuple(
            (assembly.env_spec(env), f"fixed-{name}")
            for env in config.envs
            for name in evaluation_opponents(config, env)
        )
        if alongside
        else (),
        seed=config.seed,
        temperature=config.inference.temperature,
        max_tokens=config.inference.max_tokens,
        games_per_step=config.collection.games_per_step,
        max_staleness=config.collection.max_staleness,
        eval_games_per_step=alongside,
    )


class RunActors:
    """The actors of one run. Those of games are missing if it plays a program.

    Args:
        config: the run's configuration.
        run: the run's directory.
        placement: the placement of learners and engines.
        policies: the policies that are trained.
        epoch: the run's epoch.
    """

    buffer: Any
    pool: Any

    def __init__(
        self, config: Config, run: Path, placement: Placement, policies: list[str], epoch: Epoch | None
    ) -> None:
        self._config = config
        self._run = run
        self._epoch = epoch
        self.tracker = self._start(
            TrackerActor,
            "Tracker",
            run.name,
            config.tracking.wandb_project,
            directory=str(run),
            tensorboard=config.tracking.tensorboard,
        )
        self.adapter_files = start_adapter_files(config)
        self.engines = start_engines(config, placement, self.tracker, self.adapter_files)
        self.learner = self._start_learner(placement, policies)
        self.collectors: list[Any] = []
        if isinstance(config.play, Games):
            self._start_games(placement)

    def by_name(self) -> dict[str, Any]:
        """Return the handles by the names that errors use."""
        actors = {"Tracker": self.tracker, "AdapterFiles": self.adapter_files, "Learner": self.learner}
        if self.collectors:
            actors |= {"Buffer": self.buffer, "ModelPool": self.pool}
        actors |= {f"Engine-{n}": one for n, one in enumerate(self.engines)}
        return actors | {f"Collector-{n}": one for n, one in enumerate(self.collectors)}

    def end(self) -> None:
        """Kill all actors; their state is in the run's directory."""
        for actor in self.by_name().values():
            ray.kill(actor)

    def _start(self, cls: type, name: str, *args: Any, **kwargs: Any) -> Any:
        form = ActorForm(cls, max_restarts=self._config.ray.max_restarts)
        form = form.options(name=name, **beside_command())
        return form.remote(*args, **kwargs, epoch=self._epoch)

    def _start_learner(self, placement: Placement, policies: list[str]) -> Any:
        settings = self._config.ray
        form = ActorForm(ConfigLearnerActor, max_restarts=settings.max_restarts).options(
            name="Learner",
            num_cpus=settings.cpus_per_learner,
            num_gpus=settings.gpus_per_learner,
            **placement.learner(),
        )
        workers = placement.learners if settings.learners > 1 else None
        return form.remote(self._config, str(self._run), policies, workers, self._epoch)

    def _start_games(self, placement: Placement) -> None:
        config, run = self._config, str(self._run)
        self.buffer = self._start(
            StepBufferActor if config.buffer.type == "step" else EpisodeBufferActor,
            "Buffer",
            config.buffer.max_size,
            self.tracker,
            *composed_transforms(config),
            seed=derive_seed(config.seed, "buffer"),
            max_staleness=config.collection.max_staleness,
            in_order=config.collection.max_staleness == 0,
            log_batches=config.buffer.log_batches,
            run=run,
        )
        population = config.population
        self.pool = self._start(
            ModelPoolActor,
            "ModelPool",
            population.sample_mode,
            population.max_active_lora,
            self.tracker,
            population.lag_range,
            seed=derive_seed(config.seed, "pool"),
            run=run,
        )
        form = ActorForm(
            ConfigCollectorActor,
            max_restarts=config.ray.max_restarts,
            num_cpus=config.ray.cpus_per_collector,
        )
        self.collectors = [
            form.options(name=f"Collector-{number}", **placement.collector(number)).remote(
                config, number, tuple(self.engines), self.buffer, self.pool, self.tracker
            )
            for number in range(config.ray.collectors)
        ]
