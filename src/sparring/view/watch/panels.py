"""The panels of a run, as Rich's renderables; ``None`` where a run has nothing for a panel."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from sparring.core.text import number_text
from sparring.population.pool_members import copy_of
from sparring.population.standings import Standing
from sparring.view.findings.diagnosis import findings_of
from sparring.view.population import Population
from sparring.view.run_view import RunView
from sparring.view.tables import Cell, Row, Table, before_and_after, jobs_table, tiles_of
from sparring.view.watch.text import MUTED, TONES, line, table_text

Panel = RenderableType | None

MOST_ROWS = 40
"""At most this many members, actors or jobs have rows."""
LAST_UPDATE = ("time/", "accounts/", "overlap/", "inference/")
"""The metrics of an update that have no chart of their own or whose last values matter."""
WORK = ("records", "separate_tokens", "packed_tokens")
"""What all learners together had to do in the last update."""
ENGINE = {"tok_s": "tokens/s", "running": "running", "queued": "queued"}
"""What an engine reports, and the heads of its columns."""
WORDS = {
    "state": "{}",
    "step": "update {}",
    "seconds": "for {} s",
    "steps": "{} answers",
    "games": "{} games",
    "in_flight": "{} in flight",
    "evaluating": "{} evaluating",
}
"""Phrases for the fields that other actors report; any other field is shown as its name and value."""
Load = dict[str, Any]


def warnings_panel(view: RunView) -> Panel:
    """Return the worst of what stands out and how much there is besides; the doctor says what to change."""
    found = findings_of(view)
    if not found:
        return None
    more = f" (and {len(found) - 1} more, see sparring doctor)" if len(found) > 1 else ""
    return line(f"! {found[0].text}{more}", TONES["warn"])


def run_panel(view: RunView) -> Panel:
    """Return the model, what it plays, and the headline figures."""
    rows = [("model", view.model, ""), ("plays", view.shown(", ".join(view.plays())), "")]
    rows += [
        ("evaluated in", view.shown(", ".join(view.watches())), ""),
        ("asked", ", ".join(view.asks()), ""),
    ]
    rows += tiles_of(view)
    if view.damaged_lines:
        rows.append(("damaged lines", f"{view.damaged_lines} skipped", ""))
    return _rows_text([[Cell(note=name), Cell(value, note)] for name, value, note in rows if value])


def evaluation_panel(view: RunView) -> Panel:
    """Return every figure of the first and the last evaluation, with 95% intervals."""
    found = before_and_after(view, briefly=True)
    return line("Nothing has been evaluated yet.", MUTED) if found is None else table_text(found)


def last_update_panel(view: RunView) -> Panel:
    """Return the figures of the last update: speeds, seconds, counts, loads and tokens."""
    if view.tuning is not None:
        return None
    metrics = view.of_last_step()
    shown = {
        name: value
        for prefix in LAST_UPDATE
        for name, value in sorted(metrics.items())
        if name.startswith(prefix)
    }
    for name in WORK:
        found = [value for key, value in metrics.items() if re.fullmatch(rf"learner/(.+/)?{name}", key)]
        if found:
            shown[name] = sum(found)
    if not shown:
        return line("No update has finished yet.", MUTED)
    return _rows_text([[Cell(note=_words(name)), _value(name, value)] for name, value in shown.items()])


def _rows_text(rows: Sequence[Row]) -> RenderableType:
    return table_text(Table([""] * max(map(len, rows), default=0), [("", "", rows)]))


def _words(name: str) -> str:
    section, _, rest = name.partition("/")
    return (f"{section} {rest}" if section == "inference" else rest or section).replace("_", " ")


def _value(name: str, value: float) -> Cell:
    is_share = name.endswith("_share") or "/staleness_" in name
    text = f"{value:,.0f}" if value == int(value) and not is_share else number_text(value, percent=is_share)
    return Cell(text, strong=True)


def jobs_panel(view: RunView) -> Panel:
    """Return the last jobs of a fine-tuning run, newest first, and the models in use."""
    if view.tuning is None:
        return None
    jobs = jobs_table(view.tuning.jobs[: -MOST_ROWS - 1 : -1])
    made = line("No job has been made yet.", MUTED) if jobs is None else table_text(jobs)
    models: list[Row] = [[Cell(note=group), model] for group, model in view.tuning.models.items()]
    return Group(made, Text(), _rows_text(models)) if models else made


def actors_panel(view: RunView) -> Panel:
    """Return the current activity of every actor of a cluster."""
    names = sorted(view.actors, key=_natural)
    engines = {name: view.actors[name] for name in names if "tok_s" in view.actors[name]}
    others = {name: view.actors[name] for name in names if name not in engines}
    if not names:
        return None
    parts: list[RenderableType] = []
    if engines:
        together = {f"{len(engines)} engines": _together([*engines.values()])} if len(engines) > 1 else {}
        rows = [_engine_row(*one) for one in [*together.items(), *engines.items()][:MOST_ROWS]]
        parts.append(table_text(Table(("", *ENGINE.values(), "busy", ""), [("", "", rows)])))
    if others:
        parts.append(_rows_text([_other_row(*one) for one in [*others.items()][:MOST_ROWS]]))
    left_out = max(0, len(engines) - MOST_ROWS) + max(0, len(others) - MOST_ROWS)
    return Group(*parts, *([line(f"and {left_out} more", MUTED)] if left_out else []))


def _engine_row(name: str, load: Load) -> Row:
    numbers = [_number(load.get(key)) for key in ENGINE]
    idle = _number(load.get("idle_share"))
    busy = "" if idle is None else number_text(min(1.0, max(0.0, 1 - idle)), percent=True)
    return [name, *("" if one is None else number_text(one) for one in numbers), busy, _silent(load)]


def _together(loads: list[Load]) -> Load:
    """Return the engines as one: their loads summed, their idle shares averaged."""
    total: Load = {}
    for key in (*ENGINE, "idle_share"):
        known = [number for load in loads if (number := _number(load.get(key))) is not None]
        if known:
            total[key] = sum(known) / (len(known) if key == "idle_share" else 1)
    return total


def _other_row(name: str, load: Load) -> Row:
    said = [_phrase(key, value) for key, value in load.items() if key != "silent_seconds"]
    return [Cell(note=name), ", ".join(said).replace(", for ", " for "), _silent(load)]


def _silent(load: Load) -> Cell:
    seconds = _number(load.get("silent_seconds"))
    return Cell() if seconds is None else Cell(badge=f"silent for {number_text(seconds)} s", tone="warn")


def _phrase(key: str, value: Any) -> str:
    number = _number(value)
    text = str(value) if number is None else number_text(number)
    return WORDS.get(key, f"{key.replace('_', ' ')} {{}}").format(text)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    return float(value) if is_number else None


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts Engine-2 before Engine-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def ratings_panel(view: RunView) -> Panel:
    """Return every rated model with its mean and two standard deviations, and how often it was drawn."""
    ratings = view.ratings()[:500]
    if not ratings:
        said = "No model has been rated yet. Models are rated when they meet one another in a game."
        return line(said, MUTED)
    rows: list[Row] = [
        [one.uid, f"{one.mu:.1f}", f"{2 * one.sigma:.1f}", _count(one.games), _count(one.drawn or None)]
        for one in ratings
    ]
    return table_text(Table(("", "rating", "± 2σ", "games", "drawn"), [("", "", rows)]))


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def population_panel(view: RunView) -> Panel:
    """Return who beats whom for as many members as fit and, if they are known, cycles and ratings."""
    population = view.population()
    if population is None or not population.members:  # so far nobody met a frozen copy
        said = "No matches between models are known. A run records them after each update."
        return line(said, MUTED)
    parts: list[RenderableType] = [_HeatMap(population), Text(), *map(line, population.cycle_texts())]
    if population.ratings:
        drawn = {uid: int(figures.get("drawn", 0)) for uid, figures in view.pool().items()}
        best = sorted(population.ratings.items(), key=lambda one: -one[1].mid)[:MOST_ROWS]
        rows: list[Row] = [
            [uid, f"{one.mid:,.0f}", f"{one.low:.0f} to {one.high:.0f}", _count(drawn.get(uid))]
            for uid, one in best
        ]
        note = "Bradley-Terry: 400 points more are ten times the odds of a win."
        parts += [Text(), table_text(Table(("", "rating", "95% range", "drawn"), [("", "", rows)], [note]))]
    return Group(*parts)


@dataclass(frozen=True)
class _HeatMap:
    """Who beats whom, for as many members as fit; if frozen ones never meet, with rows only for policies."""

    population: Population

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        population, cell = self.population, 7
        names = min(18, max(len(uid) for uid in population.members) + 1)
        shown = population.newest(max(2, (options.max_width - names) // cell))
        policies = [uid for uid in shown if uid in population.policies]
        rows = policies if policies and not population.frozen_met else shown
        heads = "".join(f"{_head(uid, cell - 1):^{cell}}" for uid in shown)
        yield line(f"{'':<{names}}{heads}", MUTED)
        for uid in rows:
            found = [population.standing(uid, other) for other in shown]
            scores = (_score(one, cell) for one in found)
            yield Text.assemble(line(f"{_short(uid, names - 1):<{names}}"), *scores)
            games = ("" if one is None else number_text(one.games) for one in found)
            yield line(" " * names + "".join(f"{count:^{cell}}" for count in games), MUTED)
        moment = f"after update {population.step}"
        yield line(f"Points of the row in 100 games {moment}; a draw is half a point. Below: games.", MUTED)
        if left_out := len(population.members) - len(shown):
            yield line(f"{left_out} older copies do not fit.", MUTED)


def _score(one: Standing | None, width: int) -> tuple[str, str]:
    if one is None:
        return f"{'·':^{width}}", MUTED
    style = "bold white on blue" if one.score.mid >= 0.5 else "bold white on red"
    return f"{100 * one.score.mid:^{width}.0f}", style


def _head(uid: str, width: int) -> str:
    """Return the head of a column; of a copy, the update after which it was frozen is whole."""
    copy = copy_of(uid)
    if copy is None:
        return _short(uid.removeprefix("fixed-"), width)
    policy, update = "" if uid.startswith("ckpt-") else copy[0], str(copy[1])
    return _short(policy[: max(0, width - len(update))] + update, width)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
