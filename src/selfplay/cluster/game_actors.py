"""The actors of a run on games, built from its configuration."""

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
from selfplay.cluster.learners.service import LearnerService
from selfplay.cluster.placement import Placement, beside_command
from selfplay.cluster.services.buffer import Demand
from selfplay.cluster.services.collector import CollectorService, Limits
from selfplay.cluster.services.games_in_flight import PlaySettings
from selfplay.config.settings import Config
from selfplay.core import SelfplayError, derive_seed
from selfplay.core.files import copy_directory
from selfplay.envs.generators import lend_generators_for_good
from selfplay.training import assembly
from selfplay.training.epoch import Epoch
from selfplay.training.evaluation_opponents import evaluation_opponents

TO_EVALUATE = "to-evaluate"
"""Directory of a run with the adapters that are to be evaluated."""


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
    """A run's learner."""

    def __init__(
        self,
        config: Config,
        run: str,
        step_buffer: Any,
        model_pool: Any,
        tracker: Any,
        workers: PlacementGroup | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        from selfplay.cluster.learners.group import LearnerGroup
        from selfplay.cluster.learners.settings import learners_from_config
        from selfplay.cluster.learners.torch_trainer import TorchTrainer, keep_checkpoints

        settings, directory = config.ray, Path(run)
        group = LearnerGroup(
            functools.partial(learners_from_config, config),
            settings.learners,
            cpus=settings.cpus_per_learner,
            gpus=settings.gpus_per_learner,
            timeout_seconds=settings.patience,
            placement_group=workers,
        )
        trainer = TorchTrainer(group, directory, config.model.name, epoch=epoch)
        keep = keep_checkpoints(
            trainer,
            directory / "checkpoints",
            lambda step: step % config.run.save_every == 0 or step == config.learning.steps,
            config.run.keep_checkpoints,
        )

        def checkpoint(version: int, state: dict[str, Any]) -> None:
            keep(version, state)
            every = config.evaluation.every
            if version == config.learning.steps or (every and version % every == 0):
                offer_for_evaluation(directory, version, trainer.opponent_path())

        batch = config.buffer.batch_size
        super().__init__(
            trainer,
            found(step_buffer),
            found(model_pool),
            found(tracker),
            demand=Demand(
                batch,
                entries=batch if config.collection.max_staleness else None,
                games=config.collection.games_per_step,
                failed_share=config.collection.max_failed_fraction,
            ),
            add_every=config.population.add_every,
            checkpoint=checkpoint,
            last_version=config.learning.steps,
        )

    async def train(self, iterations: int) -> int:
        """See :meth:`LearnerService.train`.

        Raises:
            SelfplayError: the learner went back in the middle of the run, where engines and games still use
                what it lost; a resume deletes it.
        """
        lost = await self.model_pool.latest_version.remote()
        if lost > self.trainer.version:
            raise SelfplayError(
                f"the saved state of update {lost} is damaged; a resume continues from {self.trainer.version}"
            )
        return await super().train(iterations)


def offer_for_evaluation(run: Path, version: int, adapter: str | None) -> None:
    """Copy a version's adapter to the directory that the run evaluates from, once."""
    place = run / TO_EVALUATE / f"step-{version:06d}"
    done = any((run / "evaluation").glob(f"step-{version:06d}-*"))
    if adapter is None or place.exists() or done:
        return
    copy_directory(Path(adapter), place)


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


class GameParts:
    """The actors of a run, named and placed.

    Args:
        config: the run's configuration.
        run: the run's directory.
        placement: the placement of learners and engines.
        epoch: the run's epoch.
    """

    def __init__(self, config: Config, run: Path, placement: Placement, epoch: Epoch | None) -> None:
        settings = config.ray
        restarts: dict[str, Any] = {"max_restarts": settings.max_restarts}
        self.tracker = (
            ActorForm(TrackerActor, **restarts)
            .options(name="Tracker", **beside_command())
            .remote(
                run.name,
                config.tracking.wandb_project,
                directory=str(run),
                tensorboard=config.tracking.tensorboard,
                epoch=epoch,
            )
        )
        final, step, sampling = assembly.composed_transforms(config.rewards)
        in_order = config.collection.max_staleness == 0
        kind = StepBufferActor if config.buffer.type == "step" else EpisodeBufferActor
        self.buffer = (
            ActorForm(kind, **restarts)
            .options(name="Buffer", **beside_command())
            .remote(
                config.buffer.max_size,
                self.tracker,
                final,
                step,
                sampling,
                seed=derive_seed(config.seed, "buffer"),
                max_staleness=config.collection.max_staleness,
                in_order=in_order,
                log_batches=config.buffer.log_batches,
                run=str(run),
                epoch=epoch,
            )
        )
        population = config.population
        self.pool = (
            ActorForm(ModelPoolActor, **restarts)
            .options(name="ModelPool", **beside_command())
            .remote(
                population.sample_mode,
                population.max_active_lora,
                self.tracker,
                population.lag_range,
                seed=derive_seed(config.seed, "pool"),
                run=str(run),
                epoch=epoch,
            )
        )
        self.adapter_files = start_adapter_files(config)
        self.engines = start_engines(config, placement, self.tracker, self.adapter_files)
        self.learner = (
            ActorForm(ConfigLearnerActor, **restarts)
            .options(
                name="Learner",
                num_cpus=settings.cpus_per_learner,
                num_gpus=settings.gpus_per_learner,
                **placement.learner(),
            )
            .remote(
                config,
                str(run),
                self.buffer,
                self.pool,
                self.tracker,
                placement.learners if settings.learners > 1 else None,
                epoch,
            )
        )
        self.collectors = [
            ActorForm(ConfigCollectorActor, **restarts)
            .options(
                name=f"Collector-{number}",
                num_cpus=settings.cpus_per_collector,
                scheduling_strategy="SPREAD",
            )
            .remote(config, number, tuple(self.engines), self.buffer, self.pool, self.tracker)
            for number in range(settings.collectors)
        ]

    def by_name(self) -> dict[str, Any]:
        """Return the handles by the names that errors use."""
        many = {f"Engine-{n}": one for n, one in enumerate(self.engines)}
        many |= {f"Collector-{n}": one for n, one in enumerate(self.collectors)}
        few = {
            "AdapterFiles": self.adapter_files,
            "Tracker": self.tracker,
            "Buffer": self.buffer,
            "ModelPool": self.pool,
            "Learner": self.learner,
        }
        return few | many

    def end(self) -> None:
        """Kill all actors; their state is in the run's directory."""
        for actor in self.by_name().values():
            ray.kill(actor)
