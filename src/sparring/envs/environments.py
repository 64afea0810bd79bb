"""Which environments there are: those of libraries, whose name begins the id, and classes of your own."""

import importlib
from functools import lru_cache
from typing import Any

from sparring.core import InputError
from sparring.core.env_id import parts_of
from sparring.core.errors import check_installed, shown
from sparring.core.own_code import check_takes, is_class_path, own_code, own_named, returned
from sparring.envs.environment import Environment

LIBRARIES = {
    "gem": "GEMEnvironment",
    "gymnasium": "GymnasiumEnvironment",
    "openenv": "OpenEnvEnvironment",
    "pettingzoo": "PettingZooEnvironment",
    "rlcard": "RLCardEnvironment",
}
"""The classes of libraries' environments: ``pettingzoo:chess_v6`` is made by the one in
``envs/pettingzoo_games.py``. An extra of the same name installs the library."""


def library_of_environment(env_id: str) -> str | None:
    """Return the library whose environment ``env_id`` names; ``None`` if it names none of a library."""
    library, colon, _ = env_id.partition(":")
    return library if colon and library in LIBRARIES else None


@lru_cache(maxsize=1024)
def is_environment(env_id: str) -> bool:
    """Return whether ``env_id`` names an Environment, not a Game."""
    bare, _ = parts_of(env_id)
    if not is_class_path(bare):
        return library_of_environment(bare) is not None
    kind = own_named(bare, "env.id")
    return isinstance(kind, type) and issubclass(kind, Environment)


def build_environment(env_id: str) -> Environment:
    """Return an environment that has opened nothing yet.

    Raises:
        InputError: its library is not installed, or its class does not take the options.
    """
    bare, options = parts_of(env_id)
    library = library_of_environment(bare)
    kind: Any
    names: tuple[str, ...]
    if library is None:
        kind, names = own_named(bare, "env.id"), ()
    else:
        check_installed("env.id", library, library)
        kind = getattr(importlib.import_module(f"sparring.envs.{library}_games"), LIBRARIES[library])
        names = (bare.partition(":")[2],)
    check_takes(kind, "env.options", options, *names)
    with own_code(f"{kind.__name__} cannot be built", "env.id"):
        made: object = kind(*names, **options)
    environment = returned(made, Environment, kind.__name__)  # type: ignore[type-abstract]
    _check(environment)
    return environment


def _check(environment: Environment) -> None:
    """Raise an InputError unless the numbers of an environment are possible."""
    name, most = type(environment).__name__, environment.max_open
    numbers = {"num_players": environment.num_players, "time_limit": environment.time_limit}
    for field, value in numbers.items() if most is None else (numbers | {"max_open": most}).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            fix = "Write a number above 0"
            raise InputError("env.id", f"the {field} of {name} is {shown(value)}", fix)
