"""The table of ``sparring runs``: two lines for each run, or more, that fit a terminal of 80 columns."""

import os
from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from sparring.commands.list_runs import ListedRun
from sparring.core.text import one_line
from sparring.evaluation.figures import WINS, Figure
from sparring.evaluation.tables import figure_text

COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "damaged": "red"}
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def runs_table(runs: Sequence[ListedRun], now: datetime) -> Table:
    """Return the table; times are relative to ``now``."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Run\ntrains on", overflow="fold")
    table.add_column("State\nmodel", overflow="fold")
    table.add_column("Updates\nwrote, ago", no_wrap=True)
    table.add_column("Last evaluation", overflow="fold")
    for run in runs:
        plays = ", ".join(run.plays)
        table.add_row(
            _stacked(run.path.name, plays),
            _stacked(run.state, os.path.basename(run.model), COLOURS[run.state]),
            _stacked(f"{run.updates}/{run.total}" if run.total else "", age_text(now, run.last_written)),
            Text(_figures_text(run)),
        )
    return table


def age_text(now: datetime, then: datetime) -> str:
    """Return how long ago something was, in its largest unit."""
    seconds = (now - then).total_seconds()
    for length, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"


def _stacked(above: str, below: str, style: str = "bold") -> Text:
    return Text.assemble((one_line(above), style), "\n", (one_line(below), "dim"))


def _figures_text(run: ListedRun) -> str:
    if run.problem:
        return one_line(run.problem)
    several = len(run.plays) > 1
    lines = [_figure_line(figure, several=several) for figure in run.figures]
    if lines and run.measured_at != run.updates:
        lines[-1] += f", at update {run.measured_at}"
    return "\n".join(map(one_line, lines))


def _figure_line(figure: Figure, *, several: bool) -> str:
    """Return a figure in words; ``several`` names its environment."""
    name = str(figure.name) if several else figure.name.name
    if name.startswith(WINS):
        return f"won {figure_text(figure)}{name.removeprefix(WINS).replace(' against ', ' vs ', 1)}"
    return f"{name} {figure_text(figure)}"
