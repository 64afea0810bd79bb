"""Handles: how the actors of a cluster call each other."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
