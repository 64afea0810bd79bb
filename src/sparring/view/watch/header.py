"""The line on top of every view: the run's name, progress and state."""

from textual.content import Content

from sparring.core.text import duration_text
from sparring.view.run_view import RunView
from sparring.view.watch.plot import MUTED, Piece, content_of

QUIET_AFTER = 60.0
"""A run is called quiet if it records nothing for this many seconds and for the time of ten steps."""


def header(view: RunView, now: float, width: int) -> Content:
    """Return the line with the run's name, state, progress and remaining time.

    Args:
        view: the run.
        now: the current time in seconds since 1970.
        width: the number of characters to fill.
    """
    state, style = _state(view, now)
    name = view.name if len(view.name) <= width // 3 else view.name[: width // 3 - 1] + "…"
    pieces: list[Piece] = [(f" {name} ", "bold"), (f" {state} ", style)]
    total = view.total_steps
    if view.tuning is not None:
        of_all = f" of {total:,}" if total else ""
        doing = "" if view.is_finished else f"; {view.tuning.text}"
        pieces.append((f"  {view.step:,}{of_all} iterations done{doing}  ", ""))
    else:
        pieces.append((f"  update {view.step:,}" + (f" of {total:,}  " if total else ""), ""))
    tail = _tail(view, now)
    room = width - sum(len(text) for text, _ in pieces) - len(tail) - 1
    if total and room >= 10:
        share = min(1.0, view.step / total)
        length = min(40, room - 6)
        filled = round(share * length)
        pieces += [("━" * filled, "$primary"), ("━" * (length - filled), "$foreground 25%")]
        pieces.append((f" {100 * share:.0f}%", ""))
    used = sum(len(text) for text, _ in pieces)
    return content_of([[*pieces, (f"{tail:>{max(0, width - used - 1)}} ", MUTED)]])


def _state(view: RunView, now: float) -> tuple[str, str]:
    if view.trouble:
        return "unreachable", "$text on $error 50%"
    if view.share_read < 1:
        return f"reading {100 * view.share_read:.0f}%", "$text on $primary 40%"
    if view.is_finished:
        return "finished", "$text on $primary 40%"
    if not view.in_use:
        return "stopped", "$text on $warning 40%"
    if view.tuning is not None:
        return "running", "$text on $success 40%"
    if not view.step:
        return "not started", "$text on $primary 40%"
    if _is_quiet(view, now):
        return "quiet", "$text on $warning 40%"
    return "running", "$text on $success 40%"


def _is_quiet(view: RunView, now: float) -> bool:
    return _age(view, now) > max(QUIET_AFTER, 10 * max(view.step_seconds(), default=0.0))


def _age(view: RunView, now: float) -> float:
    return max(0.0, now - view.latest.get("wall_time", now))


def _tail(view: RunView, now: float) -> str:
    if not view.step or view.is_finished or view.trouble or view.tuning is not None:
        return view.trouble
    if not view.in_use or _is_quiet(view, now):
        return f"last update {duration_text(_age(view, now))} ago"
    left = view.seconds_left()
    return "" if left is None else f"{duration_text(left)} left"
