"""A run through fine-tuning jobs, as far as it is: its stage, its rollouts so far, and its jobs."""

from dataclasses import dataclass, field
from pathlib import Path

from sparring.core.confidence_intervals import Interval
from sparring.finetune.run_files import (
    FROZEN_JOB,
    INSUFFICIENT_DATA_JOB,
    JobRecord,
    JobState,
    PlannedRollouts,
    RunFiles,
    Stage,
    State,
)
from sparring.view.files import Folder, number_of, read_json
from sparring.view.metrics import LineTail

STAGES: dict[Stage, str] = {
    "sample_rollouts": "playing",
    "log_stats": "counting",
    "test_during_training": "testing",
    "create_fine_tune_jobs": "making jobs",
    "await_fine_tune_jobs": "waiting for jobs",
    "recreate_fine_tune_jobs": "making jobs again",
    "test": "testing",
    "done": "done",
}
"""What a stage is called on a screen."""
TOO_FEW = "too few examples"
KEPT = {INSUFFICIENT_DATA_JOB: TOO_FEW, FROZEN_JOB: "frozen"}
"""What stands for a job of a group that keeps its model."""


@dataclass(frozen=True)
class FineTuneJob:
    """A job: its iteration and group, and what it starts from and leads to, as far as that is known.

    ``iteration`` is ``None`` and ``group`` the job's name while the provider has not been asked about it.
    """

    iteration: int | None
    group: str
    id: str
    status: str
    method: str = ""
    examples: int = 0
    start: str = ""
    model: str = ""
    error: str = ""


@dataclass(frozen=True)
class FineTuning:
    """What is read of a run through fine-tuning jobs.

    Args:
        stage: the stage that it is in.
        iteration: the iteration, from 0; the number of iterations once it is done.
        sampled: how many rollouts of the present iteration, or of its test, there are.
        wanted: how many there will be; 0 if nothing is being played.
        jobs: its jobs, in order.
        awaited: the ids of the jobs that the run waits for, or has stopped at.
        models: the present model of each group that has one of its own.
        solo: accuracy of a solo verifier by iteration, for comparison.
        damaged: the files that could not be read.
    """

    stage: Stage
    iteration: int
    sampled: int = 0
    wanted: int = 0
    jobs: list[FineTuneJob] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    models: dict[str, str] = field(default_factory=dict)
    solo: dict[float, Interval] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether the last stage has ended."""
        return self.stage == "done"

    @property
    def text(self) -> str:
        """What happens now."""
        stage = STAGES[self.stage]
        return f"{stage}, {self.sampled} of {self.wanted} rollouts" if self.wanted else stage


class _Growing(LineTail):
    """Counts the rollouts of the present iteration, or of its test."""

    def _forget(self) -> None:
        self.lines = 0

    def _take(self, line: bytes) -> None:
        self.lines += 1


class FineTuningFiles:
    """Reads the files of such a run again and again. Missing or damaged ones are left out.

    Args:
        root: the run's directory.
    """

    def __init__(self, root: Path) -> None:
        self.files = RunFiles(root)
        self._records = Folder(self.files.jobs)
        self._known: list[JobRecord] = []
        self._growing: _Growing | None = None

    def read(self) -> FineTuning | None:
        """Return the run as it is; ``None`` if it is another kind of run.

        Raises:
            OSError: a file cannot be read.
        """
        damaged = [
            path.name
            for path, shape in ((self.files.state, State), (self.files.job_states, list[JobState]))
            if path.exists() and read_json(path, shape) is None
        ]
        state = read_json(self.files.state, State)
        if state is None:
            return FineTuning("sample_rollouts", 0, damaged=damaged) if damaged else None
        path = min(self.files.rollouts.glob("growing-*.jsonl"), default=None)
        if path is None or self._growing is None or path != self._growing.path:
            self._growing = None if path is None else _Growing(path)
        sampled, sampling = 0, None
        if self._growing is not None:
            self._growing.read()
            sampled, sampling = self._growing.lines, read_json(self.files.sampling, PlannedRollouts)
        groups, stage = state.shared_model_groups, state.train_loop_stage
        named = {name: group.fine_tuned_model_name for name, group in groups.items()}
        last = {group.fine_tune_job_id for group in groups.values()}
        return FineTuning(
            stage,
            state.iteration,
            sampled,
            0 if sampling is None else sampling.total,
            self._jobs(),
            {job for job in last if job and stage == "await_fine_tune_jobs"},
            {name: model for name, model in named.items() if model},
            damaged=damaged,
        )

    @property
    def share_read(self) -> float:
        """The share of the rollouts of the present iteration that has been counted."""
        return 1.0 if self._growing is None else self._growing.share_read

    def newest_log(self) -> tuple[Path, int] | None:
        """Return the log of the last rollouts, and a number that changes when it grows."""
        growing = self._growing
        if growing is not None and growing.lines:
            return growing.path, growing.lines
        logs = [path for path in self.files.rollouts.glob("*-*.jsonl") if not growing or path != growing.path]
        newest = max(logs, key=lambda path: (number_of(path), path.name), default=None)
        return None if newest is None else (newest, -1)

    def _jobs(self) -> list[FineTuneJob]:
        if self._records.look():
            names = [name for name in sorted(self._records.entries) if name.endswith(".json")]
            found = (read_json(self.files.jobs / name, JobRecord) for name in names)
            self._known = [one for one in found if one is not None]
        records = {one.job: one for one in self._known if one.job is not None}
        states = read_json(self.files.job_states, list[JobState]) or []
        asked = {one.job for one in states}
        unseen = [one for one in self._known if one.job is None or one.job not in asked]
        return [_job(one, records.get(one.job)) for one in states] + [
            FineTuneJob(None, one.name, one.job or "", "made", one.method, one.examples, one.model)
            for one in unseen
        ]


def _job(state: JobState, record: JobRecord | None) -> FineTuneJob:
    made = ("", 0, "") if record is None else (record.method, record.examples, record.model)
    if state.job in KEPT:
        return FineTuneJob(state.iteration, state.group, "", KEPT[state.job], *made, error=state.error)
    status, model = state.status.replace("_", " "), state.model or ""
    return FineTuneJob(state.iteration, state.group, state.job, status, *made, model, state.error)
