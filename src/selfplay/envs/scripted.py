"""Scripted players: uniformly random among the legal moves, and optimal where OpenSpiel can give it."""

import random
from abc import ABC, abstractmethod

from selfplay.core import InputError
from selfplay.envs.game import Game

PLAYER_NAMES = ("random", "optimal")


class ScriptedPlayer(ABC):
    """A player that needs no model. It holds no state of a game."""

    @abstractmethod
    def act(self, game: Game, rng_seed: int) -> str:
        """Return a legal move for the current player of ``game``; the same seed gives the same move."""


class RandomPlayer(ScriptedPlayer):
    """Uniform among the legal moves."""

    def act(self, game: Game, rng_seed: int) -> str:
        """Return a random legal move.

        Raises:
            InputError: the game does not tell its legal moves.
        """
        legal = game.legal_actions()
        if not legal:
            raise InputError(
                "opponent",
                f"{game.env_id} does not tell its legal moves, so nothing can play it at random",
                "Choose a model as the opponent",
            )
        return random.Random(rng_seed).choice(legal)


def make_player(name: str, env_id: str, seed: int) -> ScriptedPlayer:
    """Return the scripted player ``name`` for ``env_id``.

    Raises:
        InputError: there is no such player, or none for this game.
    """
    if name == "random":
        return RandomPlayer()
    raise InputError("opponent", f"no scripted player {name!r}", f"Use one of {', '.join(PLAYER_NAMES)}")
