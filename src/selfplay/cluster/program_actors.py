"""The actors of a run on a program: its engines, and the learner of all its policies."""

import functools
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from selfplay.cluster.actors import ActorForm
from selfplay.cluster.engines.start import start_adapter_files, start_engines
from selfplay.cluster.learners.program_learner import ProgramLearner
from selfplay.cluster.learners.settings import learners_from_config
from selfplay.cluster.placement import Placement
from selfplay.config.settings import Config
from selfplay.training.epoch import Epoch


class ProgramLearnerActor(ProgramLearner):
    """:class:`ProgramLearner` as an actor."""

    def __init__(
        self,
        config: Config,
        run: str,
        policies: list[str],
        workers: PlacementGroup | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        from selfplay.cluster.learners.group import LearnerGroup

        settings = config.ray
        group = LearnerGroup(
            functools.partial(learners_from_config, config, policies),
            settings.learners,
            cpus=settings.cpus_per_learner,
            gpus=settings.gpus_per_learner,
            timeout_seconds=settings.patience,
            placement_group=workers,
        )
        super().__init__(group, Path(run), config.model.name, epoch)


class ProgramParts:
    """See :class:`RunActors`. The arena itself runs in the process of the command."""

    def __init__(
        self, config: Config, run: Path, placement: Placement, policies: list[str], epoch: Epoch | None
    ) -> None:
        settings = config.ray
        self.adapter_files = start_adapter_files(config)
        self.engines = start_engines(config, placement, None, self.adapter_files)
        self.learner = (
            ActorForm(ProgramLearnerActor, max_restarts=settings.max_restarts)
            .options(
                name="Learner",
                num_cpus=settings.cpus_per_learner,
                num_gpus=settings.gpus_per_learner,
                **placement.learner(),
            )
            .remote(
                config,
                str(run),
                policies,
                placement.learners if settings.learners > 1 else None,
                epoch,
            )
        )

    def by_name(self) -> dict[str, Any]:
        """Return the handles by the names that errors use."""
        few = {"Learner": self.learner, "AdapterFiles": self.adapter_files}
        return few | {f"Engine-{n}": one for n, one in enumerate(self.engines)}

    def end(self) -> None:
        """Kill all actors."""
        for actor in self.by_name().values():
            ray.kill(actor)
