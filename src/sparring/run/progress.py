"""The console output of a run: bars or lines during the run, a table at its end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType

from sparring.config import Config
from sparring.config.play import Games
from sparring.core.text import counted, duration_text, precise_duration_text, shell_command
from sparring.evaluation.match import Count, Progress
from sparring.population.evolution import replaced
from sparring.run.progress_views import print_line, view_of
from sparring.view.findings.warnings import WarningLog
from sparring.view.population_charts import LEAGUE

MEASURED = 3
"""Number of updates that are measured, after a first one, in which much happens that happens only once."""


class TimeEstimate:
    """Measures the first updates, and says how long the others will take on this machine."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._first: tuple[int, float] | None = None
        self._evaluating = 0.0
        self._told = False

    def evaluated(self, seconds: float) -> None:
        """Leave out the seconds of an evaluation, which most updates do not have."""
        self._evaluating += seconds

    def updated(self, step: int, now: float) -> str | None:
        """Return the line to print after update ``step``, once in a run; ``None`` otherwise.

        ``now``: seconds on a clock that never goes back.
        """
        now -= self._evaluating
        if step < 1 or self._told:
            return None
        if self._first is None:
            self._first = step, now
        first, started = self._first
        left = self.total - step
        if step - first < MEASURED or left < 1:
            return None
        self._told = True
        each = (now - started) / (step - first)
        return (
            f"an update takes about {precise_duration_text(each)} here, "
            f"so the {counted(left, 'update')} left will take about {duration_text(left * each)}, "
            "without evaluations; often less, as the first ones tend to be slower"
        )


class RunProgress(Progress):
    """Show how many updates are done and how much of an update is played; print a line for each evaluation.

    ``unit`` is what is played, in the plural; ``per_step`` is how many of it an update takes, if known.
    """

    def __init__(self, console: Console, total_steps: int, unit: str, per_step: int | None) -> None:
        self.console = console
        self.per_step = per_step
        self.played = 0
        self._warnings = WarningLog()
        self._estimate = TimeEstimate(total_steps)
        self._unit = unit
        self._view = view_of(console, unit, per_step, total_steps)

    def __enter__(self) -> "RunProgress":
        self._view.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._view.stop()

    def say(self, text: str) -> None:
        """Show what the run does besides playing."""
        self._view.doing(text)

    def learning(self) -> None:
        """Show that the run learns from what was played."""
        self._view.passing("learning")

    def played_one(self) -> None:
        """Count one more finished game or episode of this update."""
        self.played += 1
        self._view.count(self.played, self.per_step)

    def played_so_far(self, played: int) -> None:
        """Show that this many games of this update have ended."""
        self.played = played
        self._view.count(played, self.per_step)

    def evaluation_game(self, done: int, total: int | None) -> None:
        """Show that ``done`` games of a match, or positions of an exact measure, are finished."""
        self._view.count(done, total)

    @contextmanager
    def doing(self, text: str, unit: str = "", total: int | None = None) -> Iterator[Count]:
        """Show what the run measures, and count that instead of what is played."""
        self._view.doing(text)
        self._view.counting(unit)
        try:
            yield self._view.count
        finally:
            self._view.counting(self._unit)

    def updated(self, step: int, metrics: dict[str, float]) -> None:
        """Show that update ``step`` is done and the next one's play begins."""
        self.played = 0
        self._view.updated(step, _figures(metrics))
        estimate = self._estimate.updated(step, monotonic())
        if estimate is not None:
            print_line(self.console, estimate)
        self._view.begin(self.per_step)

    def evaluated(self, step: int, summary: dict[str, str], seconds: float) -> None:
        """Print an evaluation's headline figures and how long it took; nothing if there are none."""
        self._estimate.evaluated(seconds)
        self._view.doing("")
        self._view.begin(self.per_step)
        if not summary:
            return
        figures = ", ".join(f"{name} {value}" for name, value in summary.items())
        print_line(self.console, f"update {step:>4}: {figures} ({duration_text(seconds)})")

    def warn(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print the warnings that follow from an update's metrics, each cause once in a run."""
        for warning in self._warnings.new(metrics):
            self.warn_of(step, str(warning))

    def tell_replaced(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print which players of a league were replaced, by children of whom."""
        figures = {name.removeprefix(LEAGUE): one for name, one in metrics.items() if name.startswith(LEAGUE)}
        for name, parents in replaced(figures).items():
            print_line(self.console, f"update {step:>4}: {name} is now a child of {' and '.join(parents)}")

    def warn_of(self, step: int, warning: str) -> None:
        """Print a warning."""
        print_line(self.console, f"warning after update {step}: {warning}")


def _figures(metrics: dict[str, float]) -> str:
    found = [
        f"{label} {metrics[name]:{form}}"
        for name, label, form in (
            ("answers/zero_advantage_share", "no advantage", ".0%"),
            ("answers/explored_share", "explored", ".0%"),
            ("answers/cut_share", "cut", ".0%"),
            ("answers/tokens", "tokens", ".3g"),
            ("learner/legal_mass", "legal", ".0%"),
            ("learner/tree_share", "tree", ".0%"),
            ("answers/entropy_estimate", "entropy", ".2g"),
            ("learner/mismatch", "mismatch", ".1g"),
            ("learner/stale_mismatch", "stale mismatch", ".1g"),
            ("store/behind", "updates not in the store", ".0f"),
        )
        if name in metrics and (name != "store/behind" or metrics[name] > 1)
    ]
    if "learner/loss" in metrics and "learner/mismatch" not in metrics:
        found.append("mismatch not measured")
    return ", ".join(found)


def print_stopped(console: Console, step: int, total: int, run: Path) -> None:
    """Print that a run was interrupted, and the commands that continue it and show it."""
    print_line(console, f"stopped after update {step} of {total}; saved")
    print_line(console, f"continue with:   {shell_command('train', '--resume', run)}")
    print_line(console, f"look at it with: {shell_command('report', run)}")


def account_lines(counts: Mapping[str, int]) -> list[str]:
    """Return lines that account for every game, or for every episode of a program, from a source's counts."""
    if "dropped" in counts:
        lines = [
            f"episodes: {counts['started']} started = {counts['finished']} finished + "
            f"{counts['failed']} failed + {counts['dropped']} dropped with an attempt that failed "
            f"({counts['retried']} retries)"
        ]
    else:
        replayed = f", {counts['replayed']} replayed" if counts["replayed"] else ""
        lines = [
            f"games: {counts['started']} started = {counts['finished']} finished + {counts['failed']} failed"
            f" + {counts['in_flight']} in flight ({counts['retried']} retries{replayed},"
            f" {counts['filtered']} left out)",
            f"answers: {_by_name('steps ', counts)}",
        ]
    ended, failed = counts.get("payoff_finished", 0), counts.get("payoff_failed", 0)
    if ended + failed:
        lines.append(f"games between frozen members, for their payoffs: {ended} finished, {failed} failed")
    if failed_of := _by_name("failed ", counts, of_errors=True):
        lines.append(f"failed, by type of error: {failed_of}")
    if raised := _by_name("raised ", counts, of_errors=True):
        invalid = "ended by a move on which the game raised, which counts as an invalid move"
        lines.append(f"{invalid}: {raised}")
    return lines


def _by_name(prefix: str, counts: Mapping[str, int], *, of_errors: bool = False) -> str:
    named = [(name.removeprefix(prefix), count) for name, count in counts.items() if name.startswith(prefix)]
    parts = sorted(named) if of_errors else [(name.replace("_", " "), count) for name, count in named]
    return ", ".join(f"{count} {name}" for name, count in parts)


def next_command(config: Config, run: Path) -> str:
    """Return a command that is worth trying after a run: to play against the model, or to serve it."""
    if isinstance(config.play, Games):
        return shell_command("play", run, "--env", config.envs[0].env_id)
    return shell_command("serve", run)


def print_ending(
    console: Console,
    comparison: RenderableType,
    accounts: list[str],
    *,
    adapters: list[Path],
    report: Path,
    next_command: str,
) -> None:
    """Print the comparison of before and after, the accounts, the paths, and a command to try next."""
    console.print(comparison)
    lines = [*accounts, *(f"adapter: {path}" for path in adapters)]
    for line in [*lines, f"report:  {report}", f"next:    {next_command}"]:
        print_line(console, line)
