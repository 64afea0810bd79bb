"""The comparison of runs in the terminal, within 80 columns: entries, differences, and final figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from selfplay.commands.compare import Entry, Summary, differing_fields, figure_names
from selfplay.core.text import one_line
from selfplay.evaluation.figures import FigureName
from selfplay.evaluation.tables import mean_text, share_text

OVER = (
    "Several runs: their mean with Student's 95% interval, from the spread between runs. It says where the "
    "mean over many seeds may lie. Where all runs ended alike, it is that of their games."
)
WITHIN = (
    "One run: a 95% interval over its games or items. It says how exactly this run was measured; another "
    "seed may end elsewhere."
)
UNPLAYABLE = "(!) This policy gives legal answers so rarely that it cannot be played, whatever its NashConv."
UNSET = "not set"
MAX_WIDTH = 28
"""Wider cells are wrapped where the terminal is narrow."""


def comparison_tables(entries: Sequence[Entry]) -> Group:
    """Return the tables of a comparison."""
    different, names = differing_fields(entries), figure_names(entries)
    fields = {
        name: [(entry.label, value_text(value)) for entry, value in zip(entries, values, strict=True)]
        for name, values in different.items()
    }
    figures = {text: list(_figure_rows(entries, name)) for name, text in names.items()}
    parts: list[RenderableType] = [_entries_table(entries)]
    parts += _sections("What differs in the configuration", fields) if fields else []
    parts += _sections("Last evaluations", figures) if figures else [Text("\nNothing was evaluated.")]
    return Group(*parts, *(Text(f"\n{line}") for line in notes(entries) if figures))


def notes(entries: Sequence[Entry]) -> list[str]:
    """Return what the intervals of these entries mean, and what else a reader must know."""
    sizes = {len(entry.runs) > 1 for entry in entries}
    lines = [OVER] * (True in sizes) + [WITHIN] * (False in sizes)
    lines += [
        f"{entry.label}: its runs were last evaluated at different updates, {steps_text(entry)}."
        for entry in entries
        if len({run.last for run in entry.runs}) > 1
    ]
    found = [entry.last(name) for entry in entries for name in figure_names(entries)]
    if not all(figure.is_playable for one in found if one is not None for figure in one.figures):
        lines.append(UNPLAYABLE)
    return lines


def summary_text(summary: Summary) -> str:
    """Return a figure with its interval; an exact one of a single run has none."""
    interval = summary.interval
    mark = "" if all(figure.is_playable for figure in summary.figures) else " (!)"
    if summary.kind == "share":
        return share_text(interval, 1)
    if summary.kind == "mean":
        return mean_text(interval, 1)
    ends = "" if summary.is_exact else f" ({interval.low:.4f} to {interval.high:.4f})"
    return f"{interval.mid:.4f}{ends}{mark}"


def counts_text(summary: Summary) -> str:
    """Return in how many runs a figure was measured, and on how many games in all."""
    runs, count = len(summary.figures), sum(figure.count for figure in summary.figures)
    text = "1 run" if runs == 1 else f"{runs} runs"
    return f"{text}, {count:,} {summary.figures[0].counted}" if count else text


def steps_text(entry: Entry) -> str:
    """Return the updates of the runs' last evaluations."""
    steps = sorted({run.last for run in entry.runs if run.last is not None})
    if not steps:
        return "none"
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def value_text(value: Any) -> str:
    """Return the value of a field of the configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return UNSET if value is None else str(value)


def _entries_table(entries: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("Entry", "Runs", "Last evaluation", "Model"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        model = entry.runs[0].config.model.name
        table.add_row(*map(_cell, (entry.label, str(len(entry.runs)), f"update {steps_text(entry)}", model)))
    return table


def _figure_rows(entries: Sequence[Entry], name: FigureName) -> Iterator[tuple[str, ...]]:
    """Yield a row for each entry that has the figure."""
    for entry in entries:
        if (summary := entry.last(name)) is not None:
            yield entry.label, summary_text(summary), counts_text(summary)


def _sections(title: str, sections: Mapping[str, Sequence[tuple[str, ...]]]) -> Iterator[RenderableType]:
    """Yield a title, and below it a heading and rows for each section, whose columns are aligned."""
    columns = zip(*(row for rows in sections.values() for row in rows), strict=True)
    widths = [max(cell_len(one_line(cell)) for cell in cells) for cells in columns]
    yield Text(f"\n{title}", style="bold")
    for heading, rows in sections.items():
        table = Table(box=None, pad_edge=False, show_header=False)
        for width in widths:
            table.add_column(min_width=min(width, MAX_WIDTH), overflow="fold")
        for row in rows:
            table.add_row(*map(_cell, row))
        yield _cell(heading)
        yield Padding(table, (0, 0, 0, 2))


def _cell(text: str) -> Text:
    return Text(one_line(text))
