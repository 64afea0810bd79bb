"""The ratings with their uncertainty, and the heat map of matches."""

import re

from textual.content import Content
from textual.geometry import Size

from selfplay.read.numbers import number_text
from selfplay.read.run_view import Meeting, Rating, RunView
from selfplay.watch.plot import MUTED, Piece, colour_of, content_of

MAX_RATINGS = 500
NO_RATINGS = "No model has been rated yet. Models are rated when they meet one another in a game."
NO_MATCHES = "No matches between models are known. A run records them with its first checkpoint."


def ratings_table(view: RunView, room: Size) -> Content:
    """Return every rated model with its mean and two standard deviations, as numbers and as a bar.

    If opponents were drawn, there is also how often.
    """
    ratings = view.ratings()[:MAX_RATINGS]
    if not ratings:
        return Content.styled(NO_RATINGS, MUTED)
    names = min(24, max(8, *(len(one.uid) + 2 for one in ratings)))
    draws = any(one.drawn for one in ratings)
    bars = max(10, room.width - names - 28 - 10 * draws)
    low = min(one.mu - 2 * one.sigma for one in ratings)
    high = max(one.mu + 2 * one.sigma for one in ratings)
    drawn = f"{'drawn':>10}" if draws else ""
    head = f"{'':<{names}}{'rating':>7}{'± 2σ':>7}{'games':>10}{drawn}  "
    axis = f"{low:<{bars // 2}.1f}{high:>{bars - bars // 2}.1f}"
    lines: list[list[Piece]] = [[(head + axis, MUTED)]]
    lines += [_rating_row(one, names, bars, low, high, draws) for one in ratings]
    return content_of(lines)


def _rating_row(one: Rating, names: int, bars: int, low: float, high: float, draws: bool) -> list[Piece]:
    def place(value: float) -> int:
        return round((value - low) / (high - low) * (bars - 1)) if high > low else 0

    left, middle, right = place(one.mu - 2 * one.sigma), place(one.mu), place(one.mu + 2 * one.sigma)
    games = f"{one.games:,}" if one.games is not None else ""
    drawn = f"{one.drawn:>10,}" if draws else ""
    return [
        (f"{_short(one.uid, names - 2):<{names}}", ""),
        (f"{one.mu:>7.1f}", "bold"),
        (f"{2 * one.sigma:>7.1f}{games:>10}{drawn}  ", MUTED),
        (" " * left + "─" * (middle - left), f"{colour_of(0)} 70%"),
        ("●", f"bold {colour_of(0)}"),
        ("─" * (right - middle), f"{colour_of(0)} 70%"),
    ]


def heat_map(view: RunView, room: Size) -> Content:
    """Return the score of every model against every other, for as many models as fit.

    A cell shows the score of the row's model: wins plus half of the draws, per hundred games. If there is
    enough space, the number of games is below it.
    """
    members = _members(view.meetings)
    if not members:
        return Content.styled(NO_MATCHES, MUTED)
    names = min(16, max(len(uid) for uid in members) + 1)
    shown = members[: max(2, min((room.width - names) // 6, room.height - 4))]
    cell = max(6, min(10, (room.width - names) // len(shown)))
    with_counts = 2 * len(shown) + 4 <= room.height
    heads = "".join(f"{_short(_head(uid), cell - 1):^{cell}}" for uid in shown)
    lines: list[list[Piece]] = [[(f"{'':<{names}}{heads}", MUTED)]]
    for uid in shown:
        records = view.meetings[uid]
        cells = [_cell(records.get(other, Meeting()), cell, own=other == uid) for other in shown]
        lines.append([(f"{_short(uid, names - 1):<{names}}", ""), *(score for score, _ in cells)])
        if with_counts:
            lines.append([(" " * names, ""), *(games for _, games in cells)])
    after = f", after step {view.meetings_step}" if view.meetings_step is not None else ""
    left_out = f"{len(members) - len(shown)} more do not fit." if len(members) > len(shown) else ""
    below = " Below: the number of games." if with_counts else ""
    lines += [[], [(f"Points of the row's model in 100 games; a draw is half a point{after}.{below}", MUTED)]]
    lines.append([(left_out, MUTED)])
    return content_of(lines)


def _cell(met: Meeting, width: int, *, own: bool) -> tuple[Piece, Piece]:
    """Return a score and the number of games below it, on green from a half upwards and on red below.

    Games of a model against itself have no score.
    """
    if not met.games:
        return (f"{'·':^{width}}", MUTED), (" " * width, "")
    games = f"{met.games:,}"
    games = f"{games if len(games) < width else number_text(met.games):^{width}}"
    if own:
        style = f"{MUTED} on $panel"
        return (f"{'self':^{width}}", style), (games, style)
    strength = min(80, round(320 * abs(met.score - 0.5)))
    style = f"$text on {'$success' if met.score >= 0.5 else '$error'} {strength}%"
    return (f"{100 * met.score:^{width}.0f}", f"bold {style}"), (games, style)


def _members(meetings: dict[str, dict[str, Meeting]]) -> list[str]:
    """Return the models that met another model: first fixed ones, then checkpoints, newest first."""

    def order(uid: str) -> tuple[bool, int, str]:
        number = re.search(r"\d+$", uid)
        return uid.startswith("ckpt-"), -int(number[0]) if number else 0, uid

    met = (
        uid
        for uid, records in meetings.items()
        if any(other != uid and record.games for other, record in records.items())
    )
    return sorted(met, key=order)


def _head(uid: str) -> str:
    return uid.removeprefix("fixed-").removeprefix("ckpt-")


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
