"""The state of a stage trainer: what a resumed run needs, as plain JSON."""

from pathlib import Path
from typing import Literal

import msgspec

from selfplay.core import InputError, SelfplayError
from selfplay.core.files import write_file

Stage = Literal[
    "sample_rollouts",
    "log_stats",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "recreate_fine_tune_jobs",
    "test",
    "done",
]
"""What is done next."""

FROZEN_JOB = "frozen_job_id"
"""Stands for the job of a group that is not trained."""
INSUFFICIENT_DATA_JOB = "insufficient_data_job_id"
"""Stands for the job of a group that had too few examples and keeps its model."""


class CheckPointNotFoundError(SelfplayError):
    """There is no saved state."""


class GroupState(msgspec.Struct):
    """The state of a shared model group. ``tries`` counts the jobs of this iteration that failed."""

    fine_tune_job_id: str | None = None
    fine_tuned_model_name: str | None = None
    tries: int = 0


class State(msgspec.Struct):
    """The state of an experiment: the iteration, the stage that comes next, and the groups."""

    iteration: int = 0
    train_loop_stage: Stage = "sample_rollouts"
    shared_model_groups: dict[str, GroupState] = {}


def write_state(path: Path, state: State) -> None:
    """Write a state completely or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(state), indent=4) + b"\n")


def read_state(path: Path) -> State:
    """Read a state.

    Raises:
        CheckPointNotFoundError: there is none.
        InputError: the file is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        raise CheckPointNotFoundError(f"there is no {path}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is damaged: {error}", "Restore the file") from None
