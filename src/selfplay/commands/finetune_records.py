"""RecordingView: what a fine-tuning run leaves for its report, ``selfplay watch`` and ``selfplay runs``."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from selfplay.commands.finetune_view import ConsoleView
from selfplay.core import Rollout
from selfplay.core.files import write_file
from selfplay.evaluation.measures import MeasureResult
from selfplay.evaluation.result_files import write_evaluation
from selfplay.finetune.providers.job import Job
from selfplay.finetune.run_files import RunFiles
from selfplay.finetune.state import Stage
from selfplay.finetune.tree_episode import ends_of
from selfplay.programs.proofs.measures import measures_of
from selfplay.programs.proofs.state import ProofState
from selfplay.read.tuning_charts import TRAINING


class JobState(msgspec.Struct):
    """What was last seen of a group's job."""

    iteration: int
    group: str
    job: str
    status: str
    model: str | None = None
    error: str = ""


class RecordingView(ConsoleView):
    """Shows a run, and writes statistics, measures and states of jobs into its directory.

    What is recorded again after a kill replaces what was recorded before.

    Args:
        console: where progress is shown.
        files: the run.
    """

    def __init__(self, console: Console, files: RunFiles) -> None:
        super().__init__(console)
        self.files = files
        self._iteration = 0

    def stage(self, stage: Stage, iteration: int) -> None:
        """Note the iteration."""
        self._iteration = iteration
        super().stage(stage, iteration)

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Write how many rollouts there will be."""
        write_file(self.files.sampling, msgspec.json.encode({"total": total}) + b"\n")
        with super().progress(title, total) as advance:
            yield advance

    def job(self, group: str, job: Job) -> None:
        """Write the state of a job that has changed."""
        super().job(group, job)
        now = JobState(self._iteration, group, job.id, job.status, job.model, job.error)
        path = self.files.job_states
        states = msgspec.json.decode(path.read_bytes(), type=list[JobState]) if path.exists() else []
        if now in states:
            return
        key = (now.iteration, now.group, now.job)
        kept = [one for one in states if (one.iteration, one.group, one.job) != key]
        write_file(path, msgspec.json.encode([*kept, now]) + b"\n")

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Write the statistics."""
        self._add_metrics(iteration, stats)
        super().log(iteration, stats)

    def sampled(self, split: str, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Write the measures of finished proofs with their intervals, and count decisions by truth."""
        proofs = [end for one in rollouts if one.error is None for end in ends_of(one)]
        for name, values in measures_of(proofs).items():
            name = name if split == "test" else f"{TRAINING}{name}"
            write_evaluation(self.files.evaluation, iteration, name, MeasureResult(name, values))
        self._add_metrics(iteration, _decisions(split, proofs))

    def _add_metrics(self, iteration: int, values: Mapping[str, float]) -> None:
        lines = _lines(self.files.metrics)
        lines[iteration] = {**lines.get(iteration, {}), "step": iteration, "iteration": iteration, **values}
        content = b"".join(msgspec.json.encode(lines[number]) + b"\n" for number in sorted(lines))
        write_file(self.files.metrics, content)


def _decisions(split: str, proofs: Sequence[ProofState]) -> dict[str, float]:
    counts = Counter((proof["y"], proof["decision"]["verdict"]) for proof in proofs)
    return {
        f"decisions/{split}/{truth}/{verdict}": counts[y, verdict]
        for y, truth in ((1, "right"), (0, "wrong"))
        for verdict in ("accept", "reject", "neither", "none")
    }


def _lines(path: Path) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = map(msgspec.json.decode, path.read_bytes().splitlines())
    return {line["iteration"]: line for line in lines}
