"""What a person sees of a run: a bar while it goes, a table at its end."""

from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class RunProgress:
    """A live bar of updates and one of what is played for an update; a line for each evaluation.

    Args:
        console: where it is drawn.
        total_steps: updates of the whole run.
        unit: what is played, in the plural: ``games``.
        per_step: how many of them an update takes; ``None`` if nobody knows.
    """

    def __init__(self, console: Console, total_steps: int, unit: str, per_step: int | None) -> None:
        self.console = console
        self.per_step = per_step
        self.played = 0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
        )
        self._steps = self._progress.add_task("updates", total=total_steps, status="")
        self._games = self._progress.add_task(unit, total=per_step, status="")

    def __enter__(self) -> "RunProgress":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show what is being done besides playing and learning."""
        self._progress.update(self._games, status=text, refresh=True)

    def played_one(self) -> None:
        """One more game or episode of this update has ended."""
        self.played += 1
        self._progress.update(self._games, advance=1)

    def evaluation_game(self, done: int, total: int | None) -> None:
        """So many games of a match are done."""
        self._progress.update(self._games, completed=done, total=total)

    def updated(self, step: int, metrics: dict[str, float]) -> None:
        """An update is done; the next one's play begins."""
        self.played = 0
        self._progress.update(self._steps, completed=step, status=_figures(metrics), refresh=True)
        self._progress.reset(self._games, total=self.per_step, status="")

    def show(self, step: int, played: int, metrics: dict[str, float], status: str) -> None:
        """Where a run is that is looked at now and then, not told."""
        if metrics:
            self._progress.update(self._steps, completed=step, status=_figures(metrics))
        self._progress.update(self._games, completed=played, total=self.per_step, status=status)

    def evaluated(self, step: int, summary: dict[str, str]) -> None:
        """Print an evaluation's headline figures."""
        self._progress.reset(self._games, total=self.per_step, status="")
        figures = ", ".join(f"{name} {value}" for name, value in summary.items())
        self.console.print(f"update {step:>4}: {figures}", highlight=False, soft_wrap=True)


def _figures(metrics: dict[str, float]) -> str:
    """The learner's figures that say most; their names may lack the prefix."""
    shown = (("legal_mass", "legal"), ("legal_entropy", "entropy"), ("mismatch", "mismatch"))
    found = [(label, metrics.get(f"learner/{name}", metrics.get(name))) for name, label in shown]
    return ", ".join(f"{label} {value:.3g}" for label, value in found if value is not None)


def print_stopped(console: Console, step: int, total: int, run: Path) -> None:
    """Print that a run was interrupted, and how it goes on."""
    console.print(
        f"stopped after update {step} of {total}; saved. Continue with: selfplay train --resume {run}"
    )


def print_ending(
    console: Console,
    comparison: Group | str,
    accounts: list[str],
    *,
    adapters: list[Path],
    report: Path,
    next_command: str,
) -> None:
    """Print before and after, the accounts, where things lie, and what to try next."""
    console.print(comparison)
    lines = [*accounts, *(f"adapter: {path}" for path in adapters)]
    for line in [*lines, f"report:  {report}", f"next:    {next_command}"]:
        console.print(line, soft_wrap=True)
