"""The panels of the overview, as text of a given size in characters."""

from collections.abc import Callable
from itertools import zip_longest
from textwrap import wrap

from textual.content import Content
from textual.geometry import Size

from selfplay.read.learning_charts import staleness
from selfplay.read.numbers import duration_text, number_text
from selfplay.read.run_view import RunView
from selfplay.watch.plot import MUTED, Piece, colour_of, content_of, sparkline

NAMES = 16
"""Characters of the first column."""
SPEEDS = (
    ("time/games_per_second", "{unit}/s"),
    ("time/generated_tokens_per_second", "generated tok/s"),
    ("time/trained_tokens_per_second", "trained tok/s"),
)
GAME_COUNTS = (
    ("started", "started"),
    ("finished", "finished"),
    ("failed", "failed"),
    ("in_flight", "playing"),
    ("retried", "retried"),
    ("filtered", "left out"),
    ("eval_finished", "evaluated"),
    ("payoff_finished", "payoffs"),
)
STEP_COUNTS = (
    ("steps added", "added"),
    ("steps sampled", "trained"),
    ("steps stored", "stored"),
    ("steps dropped_stale", "stale"),
    ("steps evicted", "evicted"),
    ("steps cleared", "cleared"),
)
IDLE = (
    ("overlap/learner_idle_share", "learner idle"),
    ("overlap/engine_idle_share", "engines idle"),
)
MANY_VERSIONS = 4
"""Answers of at least this age in versions share one bar."""
ALWAYS = ("failed", "playing", "stored")
"""Counts that are shown even if they are 0."""
WORK = (
    ("inference/generated_tokens", "generated tok"),
    ("inference/computed_tokens", "computed tok"),
    ("inference/forward_passes", "forward passes"),
    ("records", "trained answers"),
    ("separate_tokens", "separate tok"),
    ("packed_tokens", "packed tok"),
)


def warnings_panel(view: RunView, room: Size) -> Content:
    """Return the first warning, whole, and how many there are besides; the report says what to check."""
    found = view.warnings()
    if not found:
        return Content("")
    rows = wrap(found[0].text, max(1, room.width - 2))
    lines = [
        [("  " if place else "! ", "bold $text-warning"), (row, "$text-warning")]
        for place, row in enumerate(rows)
    ]
    if len(found) > 1:
        lines.append([(f"  and {len(found) - 1} more, see the report", MUTED)])
    return content_of(lines)


def run_panel(view: RunView, room: Size) -> Content:
    """Return the model, what it plays, and the algorithm."""
    learning = view.config.get("learning")
    algorithm = learning.get("algorithm") if isinstance(learning, dict) else None
    name = str(algorithm.get("type", "")) if isinstance(algorithm, dict) else ""
    if view.tuning is not None:
        name = view.setting("finetune", "trainer", str) or ""
    rows = [
        ("model", view.model),
        ("program" if view.is_program else "plays", ", ".join(view.plays())),
        ("evaluated in", ", ".join(view.watches())),
        ("algorithm", name),
    ]
    if seconds := view.seconds():
        rows.append(("time so far", duration_text(seconds)))
    if view.damaged_lines:
        rows.append(("damaged lines", f"{view.damaged_lines} skipped"))
    return content_of([[(f"{name:<{NAMES}}", MUTED), (text, "")] for name, text in rows if text])


def speed_panel(view: RunView, room: Size) -> Content:
    """Return the speeds of the last step, with those of earlier steps as bars."""
    rows = []
    for name, label in SPEEDS:
        one = view.metric(name)
        if one.values:
            label = label.format(unit=view.unit)
            value = f"{number_text(one.values[-1]):>8}  "
            bars = sparkline(one.values, max(0, room.width - NAMES - len(value)))
            rows.append([(f"{label:<{NAMES}}", MUTED), (value, "bold"), (bars, "$primary")])
    if not view.actors:
        rows += _engines(view)
    return content_of(rows)


def _engines(view: RunView) -> list[list[Piece]]:
    """Return a row for each inference actor: tokens per second and load."""
    actors: dict[str, dict[str, float]] = {}
    for name, value in view.latest.items():
        parts = name.split("/")
        if parts[0] == "inference" and len(parts) == 3:
            actors.setdefault(parts[1], {})[parts[2]] = value
    rows = []
    for actor, stats in sorted(actors.items()):
        load = ", ".join(f"{number_text(stats[key])} {key}" for key in ("running", "queued") if key in stats)
        speed = f"{number_text(stats.get('tok_s', 0.0)):>8}  "
        rows.append([(f"{actor[: NAMES - 1]:<{NAMES}}", MUTED), (speed, "bold"), (load, "")])
    return rows


def time_panel(view: RunView, room: Size) -> Content:
    """Return the last update's time, divided into play, learning and the rest."""
    phases = view.phases()
    total = sum(phases.values())
    idle = _idle_rows(view, room.width - 24)
    if not total:
        return content_of(idle) if idle else _nothing("No update has finished yet.")
    rows: list[list[Piece]] = []
    bars = max(1, room.width - 26)
    for index, (name, seconds) in enumerate(phases.items()):
        share = seconds / total
        text = f"{seconds:>8.3g} s {100 * share:>3.0f}%  "
        rows.append([(f"{name:<9}", MUTED), (text, "bold"), ("█" * round(share * bars), colour_of(index))])
    rest = "; the rest includes saving" if room.width > 60 else ""
    return content_of([*rows, [(f"of {total:.3g} seconds{rest}", MUTED)], *idle])


def _idle_rows(view: RunView, bars: int) -> list[list[Piece]]:
    """Return the idle shares of learner and engines, for runs in which play and learning overlap."""
    return [
        _share_row(label, view.latest[name], bars, colour_of(index))
        for index, (name, label) in enumerate(IDLE)
        if name in view.latest
    ]


def _share_row(label: str, share: float, bars: int, colour: str) -> list[Piece]:
    value = f"{number_text(share, percent=True):>6}  "
    bar = "█" * round(min(1.0, max(0.0, share)) * max(0, bars))
    return [(f"{label:<{NAMES}}", MUTED), (value, "bold"), (bar, colour)]


def accounts_panel(view: RunView, room: Size) -> Content:
    """Return the counts of games by outcome and, beside them, of the buffer's steps."""
    counts = {
        name.removeprefix("accounts/"): value
        for name, value in view.latest.items()
        if name.startswith("accounts/")
    }
    if "started" in counts:
        counts["in_flight"] = counts["started"] - counts.get("finished", 0.0) - counts.get("failed", 0.0)
    columns = [
        [
            (label, counts[name])
            for name, label in names
            if counts.get(name) or (name in counts and label in ALWAYS)
        ]
        for names in (GAME_COUNTS, STEP_COUNTS)
    ]
    if not any(columns):
        return _nothing("Nothing has been counted yet.")
    for gap, text_of in ((4, _exactly), (1, _exactly), (1, number_text)):
        lines = _side_by_side((view.unit, "steps"), columns, gap, text_of)
        if max(map(len, lines)) <= room.width:
            break
    return content_of([[(line, "" if number else MUTED)] for number, line in enumerate(lines)])


def _side_by_side(
    heads: tuple[str, str],
    columns: list[list[tuple[str, float]]],
    gap: int,
    text_of: Callable[[float], str],
) -> list[str]:
    """Return lines of labels and numbers in columns, below a line of headings."""
    blocks = []
    for head, column in zip(heads, columns, strict=True):
        labels = max((len(label) for label, _ in column), default=0)
        numbers = max((len(text_of(value)) for _, value in column), default=0)
        block = [f"{label:<{labels}} {text_of(value):>{numbers}}" for label, value in column]
        blocks.append([f"{head:<{labels + numbers + 1}}", *block] if column else [])
    width = max(map(len, blocks[0]), default=0)
    return [f"{left:<{width + gap}}{right}" for left, right in zip_longest(*blocks, fillvalue="")]


def _exactly(value: float) -> str:
    return f"{value:,.0f}"


def work_panel(view: RunView, room: Size) -> Content:
    """Return the cost of the last update: tokens generated, computed and trained on."""
    rows: list[list[Piece]] = []
    for name, label in WORK:
        found = [value for key, value in view.latest.items() if _is_work(key, name)]
        if found:
            rows.append([(f"{label:<{NAMES}}", MUTED), (f"{sum(found):>10,.0f}", "bold")])
    rows += _staleness_rows(view, room.width - 24)
    return content_of(rows) if rows else _nothing("No update has finished yet.")


def _staleness_rows(view: RunView, bars: int) -> list[list[Piece]]:
    """Return a histogram of the trained answers' age in policy versions."""
    ages = staleness(view)
    newest = max((one.steps[-1] for one in ages.values()), default=0.0)
    shares = {age: one.values[-1] for age, one in ages.items() if one.steps[-1] == newest}
    shown = {
        f"{age} version{'' if age == 1 else 's'} old": share
        for age, share in shares.items()
        if age < MANY_VERSIONS
    }
    older = sum(share for age, share in shares.items() if age >= MANY_VERSIONS)
    if older:
        shown[f"{MANY_VERSIONS}+ versions old"] = older
    return [_share_row(label, share, bars, "$primary") for label, share in shown.items()]


def _is_work(key: str, name: str) -> bool:
    """Return whether a metric is the named one, or the named one of any learner."""
    return key == name or (key.startswith("learner/") and key.rsplit("/", 1)[-1] == name)


def _nothing(text: str) -> Content:
    return Content.styled(text, MUTED)
