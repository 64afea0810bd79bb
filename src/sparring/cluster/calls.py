"""Calls of actors: handles by name, and errors, of which Sparring's own arrive as they were raised."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ActorDiedError, RayError, RayTaskError

from sparring.core import SparringError
from sparring.core.text import one_line


@dataclass(frozen=True)
class Named:
    """The name of an actor, passed to another actor's constructor in place of the handle.

    Ray treats the handle itself as an object that may get lost, and prints a warning to the terminal.
    """

    name: str
    namespace: str


Handle = Any
"""A handle of an actor, its :class:`Named`, or ``None``."""


def found(argument: Handle) -> Any:
    """Return the handle of a named actor; any other argument unchanged."""
    if not isinstance(argument, Named):
        return argument
    import ray

    return ray.get_actor(argument.name, argument.namespace)


def still_there(arguments: Sequence[Handle]) -> list[Any]:
    """Return the handles of those named actors that exist; other arguments unchanged.

    An actor that has died for good is not found any more.
    """
    handles = []
    for argument in arguments:
        with contextlib.suppress(ValueError):  # Ray's error for an unknown name
            handles.append(found(argument))
    return handles


LONGEST = 300
RETRY_SECONDS = 0.5
"""Seconds after which an actor that is away is called again."""


async def answered(name: str, method: Any) -> None:
    """Call an actor's method until it is answered, also if the actor is restarted meanwhile.

    Raises:
        SparringError: the actor's own, or it has died for good.
    """
    while True:
        try:
            await method.remote()
            return
        except (ActorDiedError, RayTaskError) as error:
            raise error_of(name, error) from error
        except RayError:
            await asyncio.sleep(RETRY_SECONDS)


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


HEARTBEAT_SECONDS = 2.0
"""Seconds between two reports to the tracker of who is busy with what."""


async def beat_of_buffer(tracker: Any, buffer: Any) -> None:
    """Report how much is in a buffer. If it is away, nothing is reported: that is for the health check."""
    with contextlib.suppress(RayError):
        steps, games = await buffer.size.remote(), await buffer.games.remote()
        tracker.heartbeat.remote("Buffer", {"steps": steps, "games": games})


class RemoteLogger:
    """Passes metrics on to a tracker's handle and does not wait."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record values by metric name."""
        self.tracker.log.remote(dict(name_value_dict))
