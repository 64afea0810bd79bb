"""The current activity of every actor of a cluster, as text of a given size in characters."""

import re
from itertools import zip_longest
from typing import Any

from textual.content import Content
from textual.geometry import Size

from selfplay.read.numbers import number_text
from selfplay.read.run_view import RunView
from selfplay.watch.plot import MUTED, Piece, content_of

NAMES = 14
"""Characters of the first column."""
ENGINE = 50
"""Characters of an engine's row without its bar."""
SIDE_BY_SIDE = 110
"""From this width on, engines and other actors are shown side by side."""
MAX_ROWS = 16
"""At most this many actors of a kind have rows; the rest are counted."""
WORDS = {
    "state": "{}",
    "step": "update {}",
    "seconds": "for {} s",
    "steps": "{} answers",
    "games": "{} games",
    "in_flight": "{} in flight",
    "evaluating": "{} evaluating",
    "silent_seconds": "silent for {} s",
}
"""Phrases for the fields that an actor reports; any other field is shown as its name and value."""
Load = dict[str, Any]
Row = list[Piece]


def actors_panel(view: RunView, room: Size) -> Content:
    """Return a row for each actor: speed, queue and busy share for engines, words for the others."""
    names = sorted(view.actors, key=_natural)
    engines = {name: view.actors[name] for name in names if "tok_s" in view.actors[name]}
    others = {name: view.actors[name] for name in names if name not in engines}
    wide = room.width >= SIDE_BY_SIDE
    width = room.width // 2 if wide else room.width
    left = _engine_rows(engines, width - 2) if engines else []
    right = _other_rows(others)
    if not (wide and engines):
        return content_of(left + right)
    nothing: Row = []
    pairs = zip_longest(left, right, fillvalue=nothing)
    return content_of(_joined(one, other, width) for one, other in pairs)


def _engine_rows(engines: dict[str, Load], width: int) -> list[Row]:
    rows: list[Row] = [[(f"{'':<{NAMES}}{'tokens/s':>9}{'running':>9}{'queued':>8}{'busy':>7}", MUTED)]]
    if len(engines) > 1:
        rows.append(_engine_row(f"{len(engines)} engines", _together(list(engines.values())), width))
    rows += [_engine_row(name, load, width) for name, load in list(engines.items())[:MAX_ROWS]]
    return rows + _left_out(len(engines))


def _engine_row(name: str, load: Load, width: int) -> Row:
    speed, running, queued, idle = (
        _number(load.get(key)) for key in ("tok_s", "running", "queued", "idle_share")
    )
    row: Row = [
        (f"{_short(name):<{NAMES}}", MUTED),
        (f"{_text(speed):>9}", "bold"),
        (f"{_text(running):>9}{_text(queued):>8}", ""),
    ]
    busy = None if idle is None else min(1.0, max(0.0, 1 - idle))
    row.append(("" if busy is None else f"{number_text(busy, percent=True):>7}", "bold"))
    if "silent_seconds" in load:
        row.append((f"   {_phrase('silent_seconds', load['silent_seconds'])}", "bold $text-warning"))
    elif busy is not None and width > ENGINE:
        row.append((f"  {'█' * round(busy * min(20, width - ENGINE))}", "$primary"))
    return row


def _together(loads: list[Load]) -> Load:
    """Return the engines as one: their loads summed, their idle shares averaged."""
    total: Load = {}
    for key in ("tok_s", "running", "queued", "idle_share"):
        known = [number for load in loads if (number := _number(load.get(key))) is not None]
        if known:
            total[key] = sum(known) / (len(known) if key == "idle_share" else 1)
    return total


def _other_rows(others: dict[str, Load]) -> list[Row]:
    rows: list[Row] = []
    for name, load in list(others.items())[:MAX_ROWS]:
        said = [_phrase(key, value) for key, value in load.items() if key != "silent_seconds"]
        words = ", ".join(said).replace(", for ", " for ")
        row: Row = [(f"{_short(name):<{NAMES}}", MUTED), (words, "")]
        if "silent_seconds" in load:
            row.append((f"  {_phrase('silent_seconds', load['silent_seconds'])}", "bold $text-warning"))
        rows.append(row)
    return rows + _left_out(len(others))


def _left_out(count: int) -> list[Row]:
    return [[(f"and {count - MAX_ROWS} more", MUTED)]] if count > MAX_ROWS else []


def _phrase(key: str, value: Any) -> str:
    number = _number(value)
    text = str(value) if number is None else number_text(number)
    return WORDS.get(key, f"{key.replace('_', ' ')} {{}}").format(text)


def _number(value: Any) -> float | None:
    """Return a finite number, or else ``None``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    return float(value) if is_number else None


def _text(value: float | None) -> str:
    return "" if value is None else number_text(value)


def _short(name: str) -> str:
    return name if len(name) < NAMES else name[: NAMES - 2] + "…"


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts Engine-2 before Engine-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _joined(left: Row, right: Row, width: int) -> Row:
    """Return two rows side by side, the second starting at column ``width``."""
    used = sum(len(text) for text, _ in left)
    return [*left, (" " * max(1, width - used), ""), *right]
