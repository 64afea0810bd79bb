"""A game of your own: a subclass of Game in a file, whose id is ``my_game.py:MyGame``.

The class is called with the id, the number of players and the seed: ``MyGame(env_id, num_players, seed)``.
"""

import inspect
from functools import lru_cache
from typing import Any

from selfplay.core import InputError
from selfplay.core.own_classes import own_class
from selfplay.core.own_code import own_code
from selfplay.envs.game import Game


def possible_players(env_id: str) -> list[int]:
    """Return the possible numbers of players.

    Raises:
        InputError: there is no such game, or it cannot be started.
    """
    return list(_checked_class(env_id).possible_players)


def start_game(env_id: str, num_players: int, seed: int) -> Game:
    """Start a game; see ``catalog.make_game``."""
    game: Game = _checked_class(env_id)(env_id, num_players, seed)
    return game


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
    for num_players in kind.possible_players:
        with own_code(f"{kind.__name__} cannot be started with {num_players} players", "env.id"):
            kind(env_id, num_players, 0)
    return kind
