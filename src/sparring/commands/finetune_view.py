"""ConsoleView: the stages, rollouts and jobs of a fine-tuning run in a terminal."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sparring.core.text import one_line
from sparring.finetune.providers import Job
from sparring.finetune.run_files import INSUFFICIENT_DATA_JOB, Stage
from sparring.finetune.statistics import View
from sparring.run.progress_views import print_line
from sparring.view.tables import Row, Table
from sparring.view.watch.text import table_text

SHOWN = (
    "mean_accuracy",
    "mean_0_accuracy",
    "mean_1_accuracy",
    "no_decision_proportion",
    "mean_episode_length",
)
TITLES: Mapping[Stage, str] = {
    "create_fine_tune_jobs": "making fine-tuning jobs",
    "await_fine_tune_jobs": "waiting for fine-tuning jobs",
    "recreate_fine_tune_jobs": "making the jobs that failed again",
}
PROGRESS_SECONDS = 15.0
"""Between two lines about how far a job is."""


class ConsoleView(View):
    """Shows a run on a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._jobs: dict[str, tuple[str, str]] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def say(self, line: str) -> None:
        """Show a line."""
        print_line(self.console, line)

    def stage(self, stage: Stage, iteration: int) -> None:
        """Show the stages that nothing else shows."""
        if stage in TITLES:
            self.say(TITLES[stage])

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a bar in a terminal, else a line at the end."""
        if not title:
            yield lambda: None
            return
        if not self.console.is_terminal:
            yield lambda: None
            self.say(f"{title}: {total}")
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as bars:
            task = bars.add_task(title, total=total)
            yield lambda: bars.advance(task)

    def job(self, group: str, job: Job, progress: str) -> None:
        """Show a job whose state has changed, and from time to time how far it is."""
        if self._jobs.get(group) != (job.id, job.status):
            self._jobs[group] = (job.id, job.status)
            if job.id == INSUFFICIENT_DATA_JOB:
                self.say(f"{group} keeps its model: there are fewer examples than the API accepts")
                return
            model = f": {job.model}" if job.model else ""
            self.say(f"job of {group}: {one_line(job.id)} {job.status.replace('_', ' ')}{one_line(model)}")
        before, shown = self._said.get(group, ("", 0.0))
        if progress and progress != before and monotonic() - shown >= PROGRESS_SECONDS:
            self._said[group] = (progress, monotonic())
            self.say(f"job of {group}: {progress}")

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Show the statistics that matter most."""
        split = "test_" if any(name.startswith("test_") for name in stats) else ""
        rows: list[Row] = [
            (name.replace("_", " "), f"{stats[f'{split}{name}']:.3f}")
            for name in SHOWN
            if f"{split}{name}" in stats
        ]
        heads = ("", "test" if split else "train")
        self.console.print(table_text(Table(heads, [("", "", rows)])))
