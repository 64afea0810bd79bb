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
    limit, most = environment.time_limit, environment.max_open
    fine = {
        "num_players": _is_count(environment.num_players),
        "time_limit": _is_count(limit) or (isinstance(limit, float) and limit > 0),
        "max_open": most is None or _is_count(most),
    }
    for field in [field for field, is_fine in fine.items() if not is_fine]:
        problem = f"the {field} of {type(environment).__name__} is {shown(getattr(environment, field))}"
        fix = "Write a number above 0" if field == "time_limit" else "Write a whole number above 0"
        raise InputError("env.id", problem, fix)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
