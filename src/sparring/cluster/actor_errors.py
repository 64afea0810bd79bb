"""The errors of calls to actors. Sparring's own arrive as they were raised; any other becomes one line."""

from ray.exceptions import ActorDiedError, RayTaskError

from sparring.core import SparringError
from sparring.core.text import one_line

LONGEST = 300


def error_of(name: str, error: BaseException) -> SparringError:
    """Return the error of a call to an actor.

    Args:
        name: the actor's name.
        error: what the call raised.
    """
    own = own_error(error)
    if own is not None:
        return own
    if isinstance(error, RayTaskError):
        return SparringError(f"{name} failed: {_line(error.cause, 0)}")
    if isinstance(error, ActorDiedError):
        return SparringError(f"{name} died and cannot come back ({_line(error, -1)})")
    return SparringError(f"{name} is lost ({_line(error, -1)})")


def own_error(error: BaseException) -> SparringError | None:
    """Return the error that the actor raised, if it is one of sparring's."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, SparringError) else None


def _line(error: BaseException, place: int) -> str:
    """Return a line of a message: Ray's have the reason at their end, other errors at their beginning."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return one_line(lines[place])[:LONGEST].rstrip(".")
