"""Tables, the same for a page and for a terminal, and those of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isinf

from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted, duration_text, number_text
from sparring.evaluation.figures import (
    ACCURACY,
    CHANGE,
    CUT,
    DRAWS,
    ENDED_BY_INVALID,
    LOSSES,
    MASS,
    NASH_CONV,
    NO_INTERVAL,
    REWARD,
    SCORE,
    UNREAD,
    WINS,
    Figure,
    FigureName,
    Kind,
    are_legal_but_invalid,
    kind_of,
)
from sparring.evaluation.results import THOUGHT_NOTE, UNPLAYABLE_NOTE
from sparring.finetune.run_files import TRAINING
from sparring.view.charts import round_range
from sparring.view.evaluations import Figures, decisive, match_title, of_measure, of_program, of_tasks
from sparring.view.fine_tuning import FineTuneJob
from sparring.view.run_view import RunView

BEFORE, AFTER = "var(--before)", "var(--accent)"
SHOWN = (WINS, DRAWS, LOSSES, ENDED_BY_INVALID, REWARD)
BRIEFLY = (WINS, ENDED_BY_INVALID)
TOGETHER = (REWARD, ENDED_BY_INVALID)
"""What is shown of a match, and of one in which all players win or lose together."""
VERDICTS = ("accept", "reject", "neither", "none")
TRUTHS = ("right", "wrong")
UNPLAYABLE = "cannot be played"
_TONES = {"succeeded": "good", "failed": "bad", "cancelled": "warn", "not found": "bad"}


@dataclass(frozen=True)
class Bar:
    """An interval on a track that reaches from ``low`` to ``high``; ``colour`` is a colour of CSS."""

    interval: Interval
    low: float
    high: float
    colour: str


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and beside it a note, a badge (good, bad or a warning) or bars."""

    text: str = ""
    note: str = ""
    badge: str = ""
    tone: str = ""
    bars: tuple[Bar, ...] = ()
    strong: bool = False
    key: str = ""


Row = Sequence[Cell | str]


@dataclass
class Table:
    """A table: groups of rows, each below a title and its note, or without them.

    ``of_shares`` says that bars reach from 0% to 100% unless they have ends of their own. The ``legend`` says
    what their colours mean, where bars are shown.
    """

    heads: Sequence[str]
    groups: Sequence[tuple[str, str, Sequence[Row]]]
    notes: Sequence[str] = ()
    of_shares: bool = False
    legend: str = ""


def figure_cell(interval: Interval, kind: Kind, *, exactly: bool = False, is_playable: bool = True) -> Cell:
    """Return a figure with its 95% interval, unless it is known exactly."""
    badge, tone = ("", "") if is_playable else (UNPLAYABLE, "warn")
    if kind == "exact" and exactly:
        return Cell(f"{interval.mid:.4f}", badge=badge, tone=tone, strong=True)
    low, mid, high = (f"{100 * one:.1f}" if kind == "share" else number_text(one) for one in interval)
    between = f"{low} to {high}" if interval.high > interval.low else NO_INTERVAL
    return Cell(f"{mid}{'%' * (kind == 'share')}", between, badge, tone, strong=True)


def ends_of(intervals: Sequence[Interval], bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the range of bars: all that is possible, or to the round numbers that enclose the intervals."""
    low = min(one.low for one in intervals) if isinf(bounds[0]) else bounds[0]
    high = max(one.high for one in intervals) if isinf(bounds[1]) else bounds[1]
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    round_low, round_high, _ = round_range(low, high)
    return round_low if isinf(bounds[0]) else low, round_high if isinf(bounds[1]) else high


def before_and_after(run: RunView, *, briefly: bool = False) -> Table | None:
    """Return the figures of the first and the last evaluation; ``None`` without evaluations.

    A figure that the last evaluation did not measure has no value after. ``briefly`` leaves out what follows
    from other figures of a match.
    """
    made = (_match_groups(run, briefly), _exact_groups(run), _program_groups(run), _task_groups(run))
    groups = [(run.shown(title), note, rows) for group in made for title, note, rows in group]
    if not groups:
        return None
    changes = of_tasks(run.figures, CHANGE)
    shown = {kind_of(series.values()) for name, series in run.figures.items() if name not in changes}
    kinds = ["Wilson intervals of shares"] * ("share" in shown)
    kinds += ["normal intervals of means"] * ("mean" in shown)
    kinds += ["Bonett and Price's of changes"] * bool(changes)
    notes = [f"Beside a value: its 95% interval. These are {' and '.join(kinds)}."] * bool(kinds)
    exact = [one for name in of_measure(run.figures, NASH_CONV) for one in _ends(run, name)]
    if not all(one.is_playable for one in exact if one is not None):
        notes.append(UNPLAYABLE_NOTE)
    if are_legal_but_invalid({name: series[max(series)].value for name, series in run.figures.items()}):
        notes.append(THOUGHT_NOTE)
    legend = "Bars are the intervals; grey: before, blue: after." if kinds else ""
    return Table(("", "Before", "After", ""), groups, notes, "share" in shown, legend)


def _match_groups(run: RunView, briefly: bool) -> Iterator[tuple[str, str, list[Row]]]:
    for match in of_measure(run.figures, WINS):
        shown = TOGETHER if match not in decisive(run.figures) else BRIEFLY if briefly else SHOWN
        names = {measure.capitalize(): match._replace(measure=measure) for measure in shown}
        series = run.figures[match]
        counts = dict.fromkeys(f"{one.count:,}" for one in (series[min(series)], series[max(series)]))
        games = f"{' / '.join(counts)} games, {_steps_text(run, series)}{_drawn_note(series)}"
        rows = [_row(run, title, name) for title, name in names.items()]
        yield match_title(match.env_id, match.opponent), games, rows


def _exact_groups(run: RunView) -> Iterator[tuple[str, str, list[Row]]]:
    for name, series in of_measure(run.figures, NASH_CONV).items():
        rows = [_row(run, "NashConv (0 is unbeatable)", name)]
        rows.append(_row(run, "Probability on legal answers", FigureName(MASS, name.env_id)))
        yield f"{name.env_id}, exact", _steps_text(run, series), rows


def _program_groups(run: RunView) -> Iterator[tuple[str, str, list[Row]]]:
    measures = of_program(run.figures)
    by_steps = sorted(measures.items(), key=lambda one: (-max(one[1]), min(one[1]), one[0]))
    for steps, found in groupby(by_steps, key=lambda one: _steps_text(run, one[1])):
        group = dict(found)
        rows = [_row(run, name.measure, name, of_items=True) for name in group]
        yield "The program's measures", f"{steps}{_drawn_note(next(iter(group.values())))}", rows


def _drawn_note(series: dict[int, Figure]) -> str:
    """Return how the answers of the last evaluation were drawn, if not as they are learned."""
    drawn = series[max(series)].drawn
    return f"; {drawn}" if drawn else ""


def _task_groups(run: RunView) -> Iterator[tuple[str, str, list[Row]]]:
    for name, series in of_tasks(run.figures, ACCURACY).items():
        rows = [_row(run, "Accuracy", name)]
        if change := run.figures.get(name._replace(measure=CHANGE)):
            last = change[max(change)].interval
            note = Cell("Change", "on the same questions")
            rows.append([note, Cell(), figure_cell(last, "share"), Cell(bars=(Bar(last, -1, 1, AFTER),))])
        for measure in (SCORE, UNREAD, CUT):
            further = name._replace(measure=measure)
            if any(one.value for one in run.figures.get(further, {}).values()):
                rows.append(_row(run, measure.capitalize(), further))
        count = f"{series[max(series)].count:,} questions"
        steps = f"{_steps_text(run, series)}{_drawn_note(series)}"
        yield f"{name.env_id}, never trained on", f"{count}, {steps}", rows


def _ends(run: RunView, name: FigureName) -> tuple[Figure | None, Figure | None]:
    """Return the first and the last value; the first if there was an evaluation after it."""
    series = run.figures[name]
    last = series.get(run.last_measured(name))
    return (series[min(series)] if last is None or len(series) > 1 else None), last


def _row(run: RunView, title: str, name: FigureName, *, of_items: bool = False) -> Row:
    ends, kind = _ends(run, name), kind_of(run.figures[name].values())
    cells = [
        Cell() if one is None else figure_cell(one.interval, kind, exactly=True, is_playable=one.is_playable)
        for one in ends
    ]
    shown = {colour: one for colour, one in zip((BEFORE, AFTER), ends, strict=True) if one is not None}
    last = [*shown.values()][-1]
    low, high = ends_of([one.interval for one in shown.values()], last.bounds)
    is_exact = all(one.interval.low == one.interval.high for one in shown.values()) and kind == "exact"
    bars = () if is_exact else tuple(Bar(one.interval, low, high, colour) for colour, one in shown.items())
    return [Cell(title, counted(last.count, "item") if of_items else ""), *cells, Cell(bars=bars)]


def _steps_text(run: RunView, series: dict[int, Figure]) -> str:
    first, last = min(series), max(series)
    return f"{run.turn} {last}" if first == last else f"{run.turn}s {first} → {last}"


def decisions_table(run: RunView) -> Table | None:
    """Return how often each verdict was given on right and on wrong claims; ``None`` if none were counted.

    Tests are shown if there are any, and otherwise the rollouts that are learned from.
    """
    for split in ("test", "train"):
        counts = {
            (truth, verdict): run.metric(f"decisions/{split}/{truth}/{verdict}")
            for truth in TRUTHS
            for verdict in VERDICTS
        }
        steps = sorted({step for one in counts.values() for step in one.steps})
        if steps:
            break
    else:
        return None
    values = {key: dict(zip(one.steps, one.values, strict=True)) for key, one in counts.items()}
    rows: list[Row] = [
        [
            f"{step:.0f}" if truth == TRUTHS[0] else "",
            f"the claim is {truth}",
            *(f"{values[truth, verdict].get(step, 0):.0f}" for verdict in VERDICTS),
        ]
        for step in steps
        for truth in TRUTHS
    ]
    note = "Proofs of the test" if split == "test" else "Proofs that are learned from; there were no tests"
    heads = ("Iteration", "", "accept", "reject", "neither", "no decision")
    return Table(heads, [("", "", rows)], [f"{note}, by their verdict."])


def jobs_table(jobs: Sequence[FineTuneJob]) -> Table | None:
    """Return jobs with their states; ``None`` without any."""
    heads = ("Iteration", "Agents", "Method", "Examples", "Starts from", "State", "Model", "Job")
    return Table(heads, [("", "", [_job_row(job) for job in jobs])]) if jobs else None


def _job_row(job: FineTuneJob) -> Row:
    iteration = "" if job.iteration is None else str(job.iteration)
    examples = f"{job.examples:,}" if job.examples else ""
    state = Cell("", job.error, job.status, _TONES.get(job.status, ""))
    return [iteration, job.group, job.method, examples, job.start, state, job.model, job.id]


def tiles_of(run: RunView) -> list[tuple[str, str, str]]:
    """Return the headline figures of a run: name, value and note."""
    tiles = []
    total = run.total_steps
    if run.tuning is not None:
        tiles.append(("Iterations", f"{run.step:,}", f"of {total:,}; {run.tuning.text}" if total else ""))
    elif run.lines:
        tiles.append(("Updates", f"{run.step:,}", f"of {total:,}" if total else ""))
    if run.tuning is None and (seconds := run.seconds()):
        parts = {"evaluation": "time/evaluation_seconds", "tasks": "time/task_seconds"}
        spent = {part: run.metric(name).total for part, name in parts.items()}
        shown = [f"{duration_text(one)} of {part}" for part, one in spent.items() if one]
        note = f"including {' and '.join(shown)}" if shown else ""
        tiles.append(("Time", duration_text(seconds), note))
    if "accounts/finished" in run.latest:
        wrong = [(name, run.latest.get(f"accounts/{name}")) for name in ("failed", "retried")]
        note = ", ".join(f"{value:,.0f} {name}" for name, value in wrong if value is not None)
        tiles.append((run.unit.capitalize(), f"{run.latest['accounts/finished']:,.0f}", note))
    return tiles + [_figure_tile(run, name, series) for name, series in _headline(run).items()]


def _headline(run: RunView) -> Figures:
    """Return the figures that have tiles; of a fine-tuning run only the most important measures."""
    if run.tuning is None:
        exact = of_measure(run.figures, NASH_CONV)
        measures = of_program(run.figures) | of_tasks(run.figures, ACCURACY)
        return exact | decisive(run.figures) | measures
    prefix = "" if FigureName("accuracy") in run.figures else TRAINING
    names = [FigureName(f"{prefix}{name}") for name in ("accuracy", "always wrong", "precision", "recall")]
    return {name: run.figures[name] for name in names if name in run.figures}


def _figure_tile(run: RunView, name: FigureName, series: dict[int, Figure]) -> tuple[str, str, str]:
    kind = kind_of(series.values())
    ends = series[min(series)], series[max(series)]
    texts = dict.fromkeys(_value_text(one.value, kind) for one in ends)
    if name.measure == WINS:
        title = f"Win % against {name.opponent}" if name.opponent else "Solved %"
    else:
        title = name.name if not name.env_id else f"{name.name[:1].upper()}{name.name[1:]}"
    note = run.shown(name.env_id) or counted(ends[1].count, "item")
    return title, " → ".join(texts), note if ends[1].is_playable else f"{note}; {UNPLAYABLE}, see below"


def _value_text(value: float, kind: Kind) -> str:
    if kind == "exact":
        return f"{value:.3f}"
    return f"{100 * value:.1f}%" if kind == "share" else number_text(value)
