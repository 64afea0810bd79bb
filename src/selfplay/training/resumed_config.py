"""The configuration of a run that goes on: its own, but for the few fields that a resume may change."""

from collections.abc import Iterator, Mapping

from selfplay.config import Config, load_config
from selfplay.config.algorithms import AlgorithmSettings, LossSettings
from selfplay.config.learning import LearningSettings
from selfplay.core import InputError
from selfplay.training.run_directory import RunDirectory

STEPS = "learning.steps"


def resumed_config(directory: RunDirectory, changes: Mapping[str, str | None]) -> Config:
    """Return the configuration with which a run goes on.

    Args:
        directory: the run.
        changes: fields that change, such as the address of a cluster that has moved, or ``learning.steps`` of
            a run that is to be longer; ``None`` leaves a field out.

    Raises:
        InputError: a change is wrong, the run is finished, or it cannot have another number of updates.
    """
    before = load_config(str(directory.config_file), {})
    config = load_config(str(directory.config_file), changes)
    if config.learning.steps != before.learning.steps:
        _check_steps(before.learning, config.learning.steps, max(directory.saved_steps(), default=0))
    directory.check_unfinished(config.learning.steps)
    return config


def _check_steps(before: LearningSettings, steps: int, saved: int) -> None:
    """Raise an InputError if a run with ``saved`` updates cannot have ``steps`` of them."""
    if steps <= saved:
        raise InputError(STEPS, f"is {steps}, but the run has made {saved} updates", "Give a larger number.")
    for learning in (before, *map(before.of_policy, before.policies)):
        for field in _scheduled(learning):
            raise InputError(
                STEPS,
                f"{field} of this run changes until update {before.steps}, so it can have no other number",
                "Begin a new run with as many updates.",
            )


def _scheduled(learning: LearningSettings) -> Iterator[str]:
    """Yield the fields whose values change from the first update to the last."""
    if learning.schedule == "cosine" and learning.learning_rate != learning.learning_rate_end:
        yield "learning.learning_rate"
    algorithm = learning.algorithm
    if not isinstance(algorithm, AlgorithmSettings):
        return  # it learns from all legal answers and has no regulariser
    without = isinstance(algorithm, LossSettings) and algorithm.regulariser == "none"
    if not without and algorithm.regulariser_weight != algorithm.regulariser_weight_end:
        yield "learning.algorithm.regulariser_weight"
