"""Which environments there are: those of libraries, whose name begins the id, and classes of your own."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparring.core import InputError
from sparring.core.env_id import parts_of
from sparring.core.errors import imported, shown
from sparring.core.own_code import check_takes, is_class_path, own_code, own_named, returned
from sparring.core.played import is_bounded
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

LISTED = ("gem", "gymnasium", "pettingzoo", "rlcard")
"""The libraries whose modules return the ``names`` of their environments."""


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


def names_in(library: str) -> list[str]:
    """Return the names of a library's environments, without what was replaced by newer versions; none if it
    is not installed or cannot say."""
    if library not in LISTED or importlib.util.find_spec(library) is None:
        return []
    names: list[str] = _module_of(library).names()
    return sorted(names)


def _module_of(library: str) -> Any:
    return imported("env.id", library, library, f"sparring.envs.{library}_games")


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
        names = (bare.partition(":")[2],)
        if is_class_path(names[0]):
            raise _no_file(library, names[0])
        kind = getattr(_module_of(library), LIBRARIES[library])
    check_takes(kind, "env.options", options, *names)
    with own_code(f"{kind.__name__} cannot be built", "env.id"):
        made: object = kind(*names, **options)
    environment = returned(made, Environment, kind.__name__)  # type: ignore[type-abstract]
    _check(environment)
    return environment


def _no_file(library: str, name: str) -> InputError:
    fix = f"Write {name}, if it is an Environment"
    if library == "pettingzoo":
        fix = f'Write pettingzoo:{Path(name).stem}, with make = "{name}" in its options'
    return InputError("env.id", f"{library} has no game in a file of yours", fix)


def _check(environment: Environment) -> None:
    """Raise an InputError unless the numbers of an environment are possible."""
    limit, most = environment.time_limit, environment.max_open
    fine = {
        "num_players": _is_count(environment.num_players),
        "time_limit": _is_count(limit) or (isinstance(limit, float) and limit > 0),
        "max_open": most is None or _is_count(most),
        "invalid_reward": environment.invalid_reward is None or is_bounded(environment.invalid_reward),
    }
    for field in [field for field, is_fine in fine.items() if not is_fine]:
        problem = f"the {field} of {type(environment).__name__} is {shown(getattr(environment, field))}"
        raise InputError("env.id", problem, f"Write {_NUMBERS[field]}")


_NUMBERS = {
    "num_players": "a whole number above 0",
    "time_limit": "a number above 0",
    "max_open": "a whole number above 0",
    "invalid_reward": "a number",
}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
