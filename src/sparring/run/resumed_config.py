"""The configuration of a run that goes on: its own, but for the few fields that a resume may change."""

from collections.abc import Mapping

from sparring.config import Config, load_config
from sparring.config.loading import flat_fields
from sparring.core import InputError
from sparring.run.run_directory import RunDirectory
from sparring.run.run_kinds import PSRO_FILE
from sparring.run.settled import has_settled

STEPS, ADDRESS = "learning.steps", "ray.address"
CHANGEABLE = (STEPS, ADDRESS)
"""The fields that a resume may change: the number of updates, and the address of a cluster that has moved."""
_NO_RESULTS = (
    "run.save_every",
    "run.keep_checkpoints",
    "run.directory",
    "model.name",
    "model.threads",
    "model.device",
    "evaluation.nash_conv_minutes",
)
_NO_RESULTS_OF = ("tracking.", "ray.")
"""Fields that may be edited between the starts of a run, or sections of such: they change no results, or only
how sums are rounded. The base model is known by its files, whatever its name."""
_OWN_COPIES = ("start.", "frozen.")
"""The adapters that a run has copied when it began."""
_ABSENT = object()


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
        check_steps(directory, load_config(str(directory.config_file), {}), config.learning.steps)
    # In a single process, the updates of damaged checkpoints are made again. Ray has states of its own.
    if config.run.runtime == "ray" or not directory.ends_damaged():
        directory.check_unfinished(config.learning.steps)
    return config


def check_steps(directory: RunDirectory, before: Config, steps: int) -> None:
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


def changed_fields(began: Config, now: Config) -> list[str]:
    """Return a line if the configuration has changed since a checkpoint in fields that change no results.

    Raises:
        InputError: it has changed in others.
    """
    before, after = (flat_fields(config.model_dump(mode="json")) for config in (began, now))
    names = [
        name
        for name in dict.fromkeys([*before, *after])
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
        and not (name.startswith(_OWN_COPIES) and name in before and name in after)
    ]
    for name in names:
        if name != STEPS and name not in _NO_RESULTS and not name.startswith(_NO_RESULTS_OF):
            one, other = (_text(values.get(name, _ABSENT)) for values in (before, after))
            raise InputError(
                name,
                f"is {other} in config.toml, but the run has learned with {one}",
                "Put it back, or begin a new run with [start]",
            )
    return [f"changed since the last checkpoint: {', '.join(names)}"] if names else []


def _text(value: object) -> str:
    return "absent" if value is _ABSENT else f"{value!r:.60}"
