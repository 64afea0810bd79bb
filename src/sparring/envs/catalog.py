"""The catalog of environments: creates games by id, lists them, and explains why one is not playable."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sparring.core import InputError
from sparring.core.env_id import env_name, parts_of
from sparring.core.own_code import is_class_path
from sparring.envs import own_game
from sparring.envs.environment_game import environment_game
from sparring.envs.environments import (
    LISTED,
    build_environment,
    is_environment,
    library_of_environment,
    names_in,
)
from sparring.envs.game import Game
from sparring.envs.known_ids import NEEDS, suggest, textarena_facts

Library = Literal["textarena", "openspiel", "python", "environment"]
_RANDOM_GAMES, _RANDOM_TURNS = 10, 40


@dataclass(frozen=True)
class EnvInfo:
    """One environment: its possible numbers of players, and the ``reason`` if it is not playable."""

    env_id: str
    library: str
    players: list[int]
    playable: bool
    reason: str


@asynccontextmanager
async def open_game(
    env_id: str, num_players: int, seed: int, *, error_allowance: int = 0
) -> AsyncIterator[Game]:
    """Start a game or an environment, and leave it however the body ends; the arguments are those of
    :func:`make_game`."""
    if not is_environment(env_id):
        yield make_game(env_id, num_players, seed, error_allowance=error_allowance)
        return
    check_playable(env_id, num_players)
    async with environment_game(env_id, seed, lambda: build_environment(env_id)) as game:
        yield game


def make_game(env_id: str, num_players: int, seed: int, *, error_allowance: int = 0) -> Game:
    """Start a game, of which ``seed`` determines all randomness.

    Args:
        env_id: a TextArena id (``TicTacToe-v0-train``; a base id is used unchanged), an OpenSpiel name
            (``kuhn_poker``, ``kuhn_poker(players=3)``), or a game of your own (``my_game.py:MyGame``,
            ``my_game.py:MyGame{"size": 5}``).
        num_players: number of seats.
        seed: the seed.
        error_allowance: consecutive invalid moves after which a TextArena game still asks the player
            again.
    """
    check_playable(env_id, num_players)
    library = library_of(env_id)
    if library == "python":
        return own_game.start_game(env_id, num_players, seed)
    if library == "textarena":
        from sparring.envs.textarena_game import TextArenaGame

        return TextArenaGame(env_id, num_players, seed, error_allowance=error_allowance)
    from sparring.envs.openspiel_game import OpenSpielGame

    return OpenSpielGame(env_id, seed)


@lru_cache(maxsize=256)
def longest_move(env_id: str, num_players: int) -> int:
    """Return the characters of the longest move that some random games list: of OpenSpiel, or your own.

    It is 0 where moves are not listed, and for libraries whose games are slow to start or awaited.
    """
    if library_of(env_id) not in ("openspiel", "python"):
        return 0
    drawn, longest = random.Random(0), 0
    for seed in range(_RANDOM_GAMES):
        # A user's own code may raise anything; the games that are played will tell it.
        with suppress(Exception):
            game = make_game(env_id, num_players, seed)
            for _ in range(_RANDOM_TURNS):
                moves = None if game.done else game.legal_actions()
                if not moves:
                    break
                longest = max(longest, *map(len, moves))
                game.apply(drawn.choice(moves))
    return longest


@lru_cache(maxsize=1024)
def check_playable(env_id: str, num_players: int) -> None:
    """Raise an InputError unless ``num_players`` players can play ``env_id`` on this machine."""
    info = describe(env_id)
    if not info.playable:
        raise InputError(
            "env.id", f"{env_id} cannot be played here: {info.reason}", "List playable games: sparring envs"
        )
    if num_players not in info.players:
        allowed = ", ".join(map(str, info.players))
        raise InputError(
            "env.num_players", f"{env_id} does not support {num_players} players", f"It supports: {allowed}"
        )


def library_of(env_id: str) -> Library:
    """Return the library of an id: TextArena's contain a version (``-v0``); ``python`` names a file and a
    class; those of ``environment`` begin with the name of a library."""
    bare, _ = parts_of(env_id)
    if is_class_path(bare):
        return "python"
    if library_of_environment(bare) is not None:
        return "environment"
    return "textarena" if "-v" in bare.partition("(")[0] else "openspiel"


def describe(env_id: str) -> EnvInfo:
    """Return the description of an environment; raise an InputError if no library has it."""
    library = library_of(env_id)
    if is_environment(env_id):
        name = library_of_environment(env_id) or library
        return EnvInfo(env_id, name, [build_environment(env_id).num_players], True, "")
    if library == "python":
        return EnvInfo(env_id, library, own_game.possible_players(env_id), True, "")
    bare, options = parts_of(env_id)
    if "{" in bare:
        name = bare.partition("{")[0]
        raise InputError(
            "env.id", f"what follows {name} is not JSON", f'Write options as {name}{{"size": 5}}'
        )
    if options:
        fix = "Leave them out; parameters of OpenSpiel's games are part of the id"
        raise InputError("env.options", f"{bare} takes none", fix)
    if library == "textarena":
        return _describe_textarena(env_id)
    from sparring.envs.openspiel_game import load_game

    game = load_game(env_id)
    return EnvInfo(env_id, "openspiel", [game.num_players()], True, "")


def reward_bounds(env_id: str) -> tuple[float, float] | None:
    """Return the smallest and the largest reward of a game, if its library states them."""
    if library_of(env_id) != "openspiel":
        return None
    from sparring.envs.openspiel_game import load_game

    game = load_game(env_id)
    return float(game.min_utility()), float(game.max_utility())


def reward_scale(env_id: str) -> float:
    """Return half the range of an environment's rewards, which is taken to be -1 to 1 unless OpenSpiel states
    it."""
    bounds = reward_bounds(env_id)
    return 1.0 if bounds is None else (bounds[1] - bounds[0]) / 2


def check_can_be_copied(env_id: str, field: str) -> None:
    """Raise an InputError, which names ``field``, unless :meth:`Game.copy` copies a game in progress."""
    if library_of(env_id) not in ("openspiel", "textarena"):
        name = env_name(env_id)
        problem = f"{name} cannot be copied, and each of several answers is followed in a copy of the game"
        raise InputError(field, problem, "Set 1, or choose a game of OpenSpiel or TextArena")


@lru_cache(maxsize=1024)
def tells_moves(env_id: str) -> bool:
    """Return whether a game of your own or an environment lists its legal moves."""
    if is_environment(env_id):
        return build_environment(env_id).lists_moves
    return own_game.tells_moves(env_id)


def list_environments() -> list[EnvInfo]:
    """Return every game of both libraries under its default id, OpenSpiel's first, and the environments of
    the other libraries that are installed."""
    games = [*_list_openspiel(), *(_describe_textarena(env_id) for env_id in textarena_facts())]
    return games + [one for library in LISTED for one in _list_library(library)]


def _list_library(library: str) -> list[EnvInfo]:
    infos = []
    try:
        for name in names_in(library):
            try:
                infos.append(describe(f"{library}:{name}"))
            except InputError as error:
                infos.append(EnvInfo(f"{library}:{name}", library, [], False, error.problem))
    except InputError as error:  # the library itself cannot be imported
        infos.append(EnvInfo(library, library, [], False, error.problem))
    return infos


def _list_openspiel() -> list[EnvInfo]:
    import pyspiel

    from sparring.envs.openspiel_game import not_playable_reason

    infos = []
    for game_type in pyspiel.registered_games():
        name = game_type.short_name
        reason = not_playable_reason(game_type)
        if not reason and not game_type.default_loadable:
            reason = "it needs parameters: give them in parentheses after the name"
        # Games are not loaded, because some print or take long to load. Hanabi's default is given as 0.
        players = game_type.parameter_specification.get("players") or game_type.min_num_players
        infos.append(EnvInfo(name, "openspiel", [players], not reason, reason))
    return infos


def _describe_textarena(env_id: str) -> EnvInfo:
    facts = textarena_facts()
    fact = facts.get(env_id) or facts.get(f"{env_id.removesuffix('-raw')}-train")
    if fact is None:
        raise InputError("env.id", f"TextArena has no environment {env_id!r}", suggest(env_id))
    if env_id.endswith("-raw"):
        reason = "its observations are not text; use the id that ends in -train"
    else:
        reason = _reason(fact)
    return EnvInfo(env_id, "textarena", fact["players"], not reason, reason)


def _reason(fact: dict[str, Any]) -> str:
    if "needs" in fact and NEEDS[fact["needs"]]():
        return ""
    return str(fact.get("reason", ""))
