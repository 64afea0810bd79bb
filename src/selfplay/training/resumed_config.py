"""The configuration of a run that goes on: its own, but for the few fields that a resume may change."""

from collections.abc import Mapping

from selfplay.config import Config, load_config
from selfplay.core import InputError
from selfplay.training.run_directory import RunDirectory
from selfplay.training.run_kinds import PSRO_FILE
from selfplay.training.settled import has_settled

STEPS, ADDRESS = "learning.steps", "ray.address"
CHANGEABLE = (STEPS, ADDRESS)
"""The fields that a resume may change: the number of updates, and the address of a cluster that has moved."""


def resumed_config(directory: RunDirectory, changes: Mapping[str, str | None]) -> Config:
    """Return the configuration with which a run goes on.

    Args:
        directory: the run.
        changes: values of fields among ``CHANGEABLE``; ``None`` leaves a field out.

    Raises:
        InputError: a change is wrong or not possible, or the run is finished.
    """
    for field in sorted(changes.keys() - set(CHANGEABLE)):
        raise InputError(field, "cannot change in a run that has begun", "Leave it out.")
    config = load_config(str(directory.config_file), changes)
    if STEPS in changes:
        _check_steps(directory, load_config(str(directory.config_file), {}), config.learning.steps)
    directory.check_unfinished(config.learning.steps)
    return config


def _check_steps(directory: RunDirectory, before: Config, steps: int) -> None:
    """Raise an InputError if a run cannot be made longer, to ``steps`` updates."""
    present = before.learning.steps
    if steps == present:
        return
    if (directory.path.absolute().parent / PSRO_FILE).is_file():
        raise InputError(STEPS, f"{directory.path} belongs to a PSRO, which decides it", "Leave it out.")
    if steps < present:
        raise InputError(STEPS, f"is {steps}, but the run has {present} updates", "Give a larger number.")
    if has_settled(directory.evaluation, before.evaluation):
        raise InputError(
            STEPS,
            "the run has settled (evaluation.patience), so it would make no more updates",
            "Leave it out.",
        )
    # A program's policies are known when it is built; one without settings of its own has those of the run.
    policies = before.policies if before.program is None else [*before.learning.policies, "another"]
    for field in before.learning.scheduled(policies):
        raise InputError(
            STEPS,
            f"{field} of this run changes until update {present}, so it can have no other number",
            "Begin a new run with as many updates.",
        )
