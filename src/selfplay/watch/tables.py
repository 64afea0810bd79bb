"""The ratings with their uncertainty."""

from textual.content import Content
from textual.geometry import Size

from selfplay.core.confidence_intervals import Interval
from selfplay.read.run_view import Rating, RunView
from selfplay.watch.plot import MUTED, Piece, colour_of, content_of

MAX_RATINGS = 500
NO_RATINGS = "No model has been rated yet. Models are rated when they meet one another in a game."


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
    games = f"{one.games:,}" if one.games is not None else ""
    drawn = f"{one.drawn:>10,}" if draws else ""
    interval = Interval(one.mu - 2 * one.sigma, one.mu, one.mu + 2 * one.sigma)
    return [
        (f"{short(one.uid, names - 2):<{names}}", ""),
        (f"{one.mu:>7.1f}", "bold"),
        (f"{2 * one.sigma:>7.1f}{games:>10}{drawn}  ", MUTED),
        *interval_bar(interval, bars, low, high),
    ]


def interval_bar(interval: Interval, bars: int, low: float, high: float) -> list[Piece]:
    """Return an interval as a line with a dot, where ``bars`` characters reach from ``low`` to ``high``."""
    left, middle, right = (
        round((value - low) / (high - low) * (bars - 1)) if high > low else 0 for value in interval
    )
    return [
        (" " * left + "─" * (middle - left), f"{colour_of(0)} 70%"),
        ("●", f"bold {colour_of(0)}"),
        ("─" * (right - middle), f"{colour_of(0)} 70%"),
    ]


def short(text: str, width: int) -> str:
    """Return text of at most so many characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
