"""What can be played here: makes games by id, lists them, and says why one cannot be played."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from selfplay.core import InputError
from selfplay.envs.game import Game
from selfplay.envs.known_ids import suggest, textarena_facts

Library = Literal["textarena", "openspiel"]


@dataclass(frozen=True)
class EnvInfo:
    """One environment.

    ``players`` are the possible numbers of players; ``reason`` says why it is not playable, else it is empty.
    """

    env_id: str
    library: Library
    players: list[int]
    playable: bool
    reason: str


def make_game(env_id: str, num_players: int, seed: int, *, error_allowance: int = 0) -> Game:
    """Start a game.

    Args:
        env_id: a TextArena id (``TicTacToe-v0-train``; a base id is taken as it is) or an OpenSpiel name
            (``kuhn_poker``, ``kuhn_poker(players=3)``).
        num_players: seats.
        seed: all randomness of the game follows from it.
        error_allowance: invalid moves in a row for which a TextArena game asks the player again.

    Raises:
        InputError: the id is unknown or unplayable, or the game is not for ``num_players``.
    """
    check_playable(env_id, num_players)
    if library_of(env_id) == "textarena":
        from selfplay.envs.textarena_game import TextArenaGame

        return TextArenaGame(env_id, num_players, seed, error_allowance=error_allowance)
    from selfplay.envs.openspiel_game import OpenSpielGame

    return OpenSpielGame(env_id, seed)


@lru_cache(maxsize=1024)
def check_playable(env_id: str, num_players: int) -> None:
    """Raise an InputError unless ``env_id`` can be played here by ``num_players``."""
    info = describe(env_id)
    if not info.playable:
        raise InputError(
            "env.id", f"{env_id} cannot be played here: {info.reason}", "See what can be: selfplay envs"
        )
    if num_players not in info.players:
        allowed = ", ".join(map(str, info.players))
        raise InputError(
            "env.num_players", f"{env_id} is not for {num_players} players", f"It takes: {allowed}"
        )


def library_of(env_id: str) -> Library:
    """Return which library an id belongs to; TextArena's carry a version (``-v0``)."""
    return "textarena" if "-v" in env_id.split("(", 1)[0] else "openspiel"


def describe(env_id: str) -> EnvInfo:
    """Return what is known of an environment.

    Raises:
        InputError: no library has it.
    """
    if library_of(env_id) == "textarena":
        return _describe_textarena(env_id)
    from selfplay.envs.openspiel_game import load_game

    game = load_game(env_id)
    return EnvInfo(env_id, "openspiel", [game.num_players()], True, "")


def list_environments() -> list[EnvInfo]:
    """Return every environment of both libraries under its default id, OpenSpiel's games first."""
    return [*_list_openspiel(), *(_describe_textarena(env_id) for env_id in textarena_facts())]


def _list_openspiel() -> list[EnvInfo]:
    import pyspiel

    from selfplay.envs.openspiel_game import not_playable_reason

    infos = []
    for game_type in pyspiel.registered_games():
        name = game_type.short_name
        reason = not_playable_reason(game_type)
        if not reason and not game_type.default_loadable:
            reason = "it needs parameters: give them in parentheses after the name"
        # Without loading the game, which for some prints or takes long. Hanabi's default is given as 0.
        players = game_type.parameter_specification.get("players") or game_type.min_num_players
        infos.append(EnvInfo(name, "openspiel", [players], not reason, reason))
    return infos


def _describe_textarena(env_id: str) -> EnvInfo:
    facts = textarena_facts()
    fact = facts.get(env_id)
    if fact is None and not env_id.endswith("-train"):
        fact = facts.get(f"{env_id.removesuffix('-raw')}-train")
    if fact is None:
        raise InputError("env.id", f"TextArena has no environment {env_id!r}", suggest(env_id))
    if env_id.endswith("-raw"):
        reason = "its observations are not text; use the id that ends in -train"
    else:
        reason = _reason(fact)
    return EnvInfo(env_id, "textarena", fact["players"], not reason, reason)


def _reason(fact: dict[str, Any]) -> str:
    """Return why an environment cannot be played on this machine, or an empty string."""
    if "needs" in fact and _NEEDS[fact["needs"]]():
        return ""
    return str(fact.get("reason", ""))


def _has_nltk_words() -> bool:
    """Look where NLTK looks, without the second that importing it takes."""
    places = os.environ.get("NLTK_DATA", "").split(os.pathsep)
    roots = [Path(place) for place in places if place]
    roots += [Path.home() / "nltk_data"]
    roots += [Path(sys.prefix, part, "nltk_data") for part in ("", "share", "lib")]
    roots += [Path("/usr", part, "nltk_data") for part in ("share", "local/share", "lib", "local/lib")]
    return any((root / "corpora" / name).exists() for root in roots for name in ("words", "words.zip"))


_NEEDS: dict[str, Callable[[], bool]] = {
    "python3.12": lambda: sys.version_info >= (3, 12),
    "openrouter": lambda: "OPENROUTER_API_KEY" in os.environ,
    "gym": lambda: importlib.util.find_spec("gym") is not None,
    "nltk-words": _has_nltk_words,
}
