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

from selfplay.collection.accounts import Accounts
from selfplay.collection.collector import Played


class RunProgress:
    """A live bar of updates and one of the update's games; a line for each evaluation."""

    def __init__(self, console: Console, total_steps: int, games_per_step: int) -> None:
        self.console = console
        self.games_per_step = games_per_step
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
        self._games = self._progress.add_task("games", total=games_per_step, status="")

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

    def played_game(self, played: Played) -> None:
        """One more game has ended; those of evaluations are not counted."""
        if played.job.meta.type == "train":
            self._progress.update(self._games, advance=1)

    def evaluation_game(self, done: int, total: int) -> None:
        """So many games of a match are done."""
        self._progress.update(self._games, completed=done, total=total)

    def updated(self, step: int, metrics: dict[str, float]) -> None:
        """An update is done."""
        shown = [
            f"{label} {metrics[name]:.3g}"
            for name, label in (
                ("learner/legal_mass", "legal"),
                ("learner/legal_entropy", "entropy"),
                ("learner/mismatch", "mismatch"),
            )
            if name in metrics
        ]
        self._progress.update(self._steps, completed=step, status=", ".join(shown), refresh=True)
        self._progress.reset(self._games, total=self.games_per_step, status="")

    def evaluated(self, step: int, summary: dict[str, str]) -> None:
        """Print an evaluation's headline figures."""
        self._progress.reset(self._games, total=self.games_per_step, status="")
        figures = ", ".join(f"{name} {value}" for name, value in summary.items())
        self.console.print(f"update {step:>4}: {figures}", highlight=False, soft_wrap=True)


def print_ending(
    console: Console,
    comparison: Group | str,
    accounts: Accounts,
    steps: dict[str, int],
    trained: int,
    *,
    adapter: Path,
    report: Path,
    run: Path,
    env_id: str,
) -> None:
    """Print before and after, the accounts, where things lie, and what to try next."""
    console.print(comparison)
    console.print(
        f"games: {accounts.started} started = {accounts.finished} finished + {accounts.failed} failed"
        f" + {accounts.in_flight} in flight ({accounts.retried} retries, {accounts.filtered} left out)",
        soft_wrap=True,
    )
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in steps.items())
    console.print(f"steps: {parts}; {trained} trained on", soft_wrap=True)
    console.print(f"adapter: {adapter}", soft_wrap=True)
    console.print(f"report:  {report}", soft_wrap=True)
    console.print(f"next:    selfplay play {run} --env {env_id}", soft_wrap=True)
