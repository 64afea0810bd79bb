"""A game of your own: a subclass of Game in a file, whose id is ``my_game.py:MyGame``.

The class is called with the id, the number of players and the seed: ``MyGame(env_id, num_players, seed)``.
"""

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sparring.core import InputError
from sparring.core.errors import shown
from sparring.core.own_classes import own_class
from sparring.core.own_code import own_code, returned
from sparring.envs.checked_game import CheckedGame
from sparring.envs.game import Game


def possible_players(env_id: str) -> list[int]:
    """Return the possible numbers of players.

    Raises:
        InputError: there is no such game, or it cannot be started.
    """
    return list(_checked_class(env_id).possible_players)


def start_game(env_id: str, num_players: int, seed: int) -> Game:
    """Start a game; see ``catalog.make_game``."""
    kind = _checked_class(env_id)
    game = returned(kind(env_id, num_players, seed), Game, kind.__name__)  # type: ignore[type-abstract]
    return CheckedGame(game, env_id, num_players)


def tells_moves(env_id: str) -> bool:
    """Return whether the game lists its legal moves when it begins."""
    return start_game(env_id, possible_players(env_id)[0], 0).legal_actions() is not None


@lru_cache(maxsize=64)
def _checked_class(env_id: str) -> Any:
    """Import the class and start a game of each number of players.

    Raises:
        InputError: the file or the class does not exist, or a game cannot be started.
    """
    kind = own_class(env_id, Game, "env.id")
    try:
        inspect.signature(kind).bind(env_id, 2, 0)
    except TypeError as error:
        raise InputError(
            "env.id",
            f"{kind.__name__} cannot be started ({error})",
            "Write it as __init__(self, env_id, num_players, seed)",
        ) from error
    possible = kind.possible_players
    if not isinstance(possible, Sequence) or not all(isinstance(one, int) and one > 0 for one in possible):
        fix = "Write it as possible_players = (2,)"
        raise InputError(
            "env.id", f"the possible_players of {kind.__name__} are {shown(possible)}, not numbers", fix
        )
    for num_players in possible:
        with own_code(f"{kind.__name__} cannot be started with {num_players} players", "env.id"):
            game = kind(env_id, num_players, 0)
        if not hasattr(game, "num_players"):
            fix = "Call super().__init__(env_id, num_players) in it"
            raise InputError("env.id", f"{kind.__name__}.__init__ leaves out that of Game", fix)
    return kind
