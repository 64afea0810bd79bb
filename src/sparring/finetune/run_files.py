"""The files of a stage trainer's run: where they are, and how they are written and read."""

import re
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError, Rollout, SparringError
from sparring.core.files import append_at, write_file

ROLLOUT_FILE = re.compile(r"(step|train|test)-\d{6,}\.jsonl")
"""The files of an iteration's rollouts, and of what was asked about them."""
GROWING_FILE = re.compile(r"(growing-)?(train|test)-\d{6,}\.jsonl")
JOB_FILE = re.compile(r".+_iter_\d+_.+\.jsonl?")
"""A job's record and its examples; see ``PureTextRlTrainer._get_fine_tune_job_name``."""
FROZEN_JOB = "frozen_job_id"
"""Stands for the job of a group that is not trained."""
INSUFFICIENT_DATA_JOB = "insufficient_data_job_id"
"""Stands for the job of a group that had too few examples and keeps its model."""
TRAINING = "training "
"""Begins the names of the measures of training rollouts."""

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
Line = TypeVar("Line", bound=msgspec.Struct)
Read = TypeVar("Read")


class CheckPointNotFoundError(SparringError):
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


class JobState(msgspec.Struct):
    """What was last seen of a group's job: an entry of ``job_states.json``."""

    iteration: int
    group: str
    job: str
    status: str
    model: str | None = None
    error: str = ""


class JobRecord(msgspec.Struct, kw_only=True):
    """A job by its name in the run, in ``jobs``. ``unique_name`` is its name at the provider, where no other
    job has it; ``file`` and ``job`` are the provider's ids, once there are any. ``sha256`` is the examples'.
    """

    name: str
    unique_name: str
    model: str
    method: str
    examples: int
    sha256: str
    file: str | None = None
    job: str | None = None


class PlannedRollouts(msgspec.Struct):
    """How many rollouts of the present iteration, or of its test, there will be: ``sampling.json``."""

    total: int


class RolloutLine(msgspec.Struct):
    """A line of a file of rollouts; ``index`` is the rollout's row in its iteration."""

    rollout: Rollout
    index: int = 0


class RunFiles:
    """The directory of one experiment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata = root / "metadata.json"
        self.state = root / "state.json"
        self.params = root / "hyper_params.json"
        self.metrics = root / "metrics.jsonl"
        self.evaluation = root / "evaluation"
        self.sampling = root / "sampling.json"
        self.jobs = root / "jobs"
        self.server = root / "server"
        self.tinker = root / "tinker"
        self.states = root / "states"
        self.job_states = root / "job_states.json"
        self.rollouts = root / "rollouts"
        self.answers = root / "answers"
        self.raw_transcripts = root / "raw_transcripts"
        self.processed_transcripts = root / "processed_transcripts"
        self.prompts = root / "prompts"
        self.analysis = root / "analysis"

    def state_of(self, iteration: int) -> Path:
        """Return the file of the state with the models that an iteration plays with."""
        return self.states / f"{iteration:06d}.json"

    def growing(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration while it is sampled."""
        return self.rollouts / f"growing-{split}-{iteration:06d}.jsonl"

    def answers_of(self, split: str, iteration: int) -> Path:
        """Return the file of the models' answers in an iteration while it is sampled."""
        return self.answers / f"{split}-{iteration:06d}.jsonl"

    def sampled(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration that is sampled."""
        name = "step" if split == "train" else split
        return self.rollouts / f"{name}-{iteration:06d}.jsonl"

    def transcripts(self, split: str, iteration: int, kind: str) -> tuple[Path, Path, Path]:
        """Return the files of the raw transcripts, the processed ones and the prompts; ``kind`` ends them."""
        base = str(iteration) if split == "train" else f"{split}_{iteration}"
        return (
            self.raw_transcripts / f"raw_{base}.{kind}",
            self.processed_transcripts / f"processed_{base}.{kind}",
            self.prompts / f"prompts_{base}.{kind}",
        )

    def remove_unfinished(self) -> None:
        """Delete what a new run in this directory would continue: sampling, and the records of jobs."""
        self.remove_growing()
        for path in list(self.jobs.glob("*.json*")):
            if JOB_FILE.fullmatch(path.name):
                path.unlink()

    def remove_growing(self) -> None:
        """Delete the files that grew while iterations were sampled."""
        for path in [*self.rollouts.glob("growing-*.jsonl"), *self.answers.glob("*.jsonl")]:
            if GROWING_FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)


def read_json(path: Path, form: type[Read]) -> Read:
    """Return what a JSON file holds. Raises FileNotFoundError: there is none; InputError: it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except UNREADABLE as error:
        raise InputError(str(path), f"is damaged: {error}", "Restore the file") from None


def read_json_if_there(path: Path, form: type[Read]) -> Read | None:
    """Return what a JSON file holds, or ``None`` if there is none. Raises InputError: it is damaged."""
    return read_json(path, form) if path.exists() else None


def write_json(path: Path, content: object, indent: int = 4) -> None:
    """Write a JSON file that people read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, msgspec.json.format(msgspec.json.encode(content), indent=indent) + b"\n")


def read_state(path: Path) -> State:
    """Read a state. Raises CheckPointNotFoundError: there is none; InputError: it is damaged."""
    try:
        return read_json(path, State)
    except FileNotFoundError:
        raise CheckPointNotFoundError(f"there is no {path}") from None


def save_rollouts(path: Path, rollouts: list[Rollout]) -> None:
    """Write the rollouts of an iteration, complete and in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [RolloutLine(rollout, index) for index, rollout in enumerate(rollouts)]
    write_file(path, b"".join(msgspec.json.encode(line, enc_hook=repr) + b"\n" for line in lines))


def load_rollouts(path: Path, iteration: int) -> list[Rollout]:
    """Return the rollouts of an iteration. Raises InputError: there is no such file, or a line is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        problem = f"there are no rollouts of iteration {iteration}"
        raise InputError(str(path), problem, "Check the run and the iteration") from None
    return [line.rollout for line in _decoded(path, content, RolloutLine, "Restore the file")]


def save_transcript(path: Path, content: list[Any]) -> None:
    """Write transcripts or prompts, in the format that the file's name ends in: ``json`` or ``yaml``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        write_json(path, content, indent=2)
    else:
        write_file(path, msgspec.yaml.encode(content))


class GrowingFile(Generic[Line]):
    """JSON lines that are kept one by one; a line that a kill cut is as if it had not been written."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self.path = path
        self.kind = kind
        self._end = 0

    def read(self) -> list[Line]:
        """Return the lines. Raises InputError: one is damaged."""
        content = self.path.read_bytes() if self.path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        return _decoded(self.path, content[: self._end], self.kind, "Delete the line")

    def append(self, line: Line) -> None:
        """Add a line; a kill after this returns does not lose it. Call :meth:`read` first. Raises
        SparringError: it is not JSON."""
        try:
            content = msgspec.json.encode(line) + b"\n"
        except (ValueError, TypeError) as error:
            raise SparringError(f"a line of {self.path} cannot be written as JSON: {error}") from error
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            append_at(file, self._end, content)
        self._end += len(content)


def _decoded(path: Path, content: bytes, kind: type[Line], fix: str) -> list[Line]:
    lines = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(line, type=kind))
        except UNREADABLE as error:
            place, problem = f"{path}, line {number}", f"the line is damaged: {error}"
            raise InputError(place, problem, fix) from None
    return lines
