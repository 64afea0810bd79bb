"""Scripted players: random, optimal where OpenSpiel can solve the game, of strengths between, simple ones, or
with a policy from a file."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparring.core import InputError, derive_seed
from sparring.envs.catalog import library_of
from sparring.envs.game import Game
from sparring.envs.policy_lines import checked_chances, is_policy_file, read_lines

if TYPE_CHECKING:
    from sparring.envs.openspiel_game import OpenSpielGame
    from sparring.envs.textarena_game import TextArenaGame

OPTIMAL_SHARES = {"optimal-90": 0.9, "optimal-75": 0.75, "optimal-50": 0.5, "optimal-25": 0.25}
"""At each of its moves, a player of this name plays as ``optimal`` with this probability, else at random."""
PLAYER_NAMES = ("random", "optimal", *OPTIMAL_SHARES, "always-first", "always-call")
TEXTARENA_TICTACTOE = ("TicTacToe-v0", "TicTacToe-v0-train")
POKER = ("kuhn_poker", "leduc_poker", "KuhnPoker")
"""The games of ``always-call``, by their ids without parameters and versions."""


class ScriptedPlayer(ABC):
    """A player that needs no model. It holds no state of a game, so one player serves any number of games."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @abstractmethod
    def chances(self, game: Game) -> Mapping[str, float]:
        """Return the moves that the current player of ``game`` may make, and how probable each is."""

    def act(self, game: Game, rng_seed: int) -> str:
        """Return a legal move for the current player of ``game``; the same seeds give the same move."""
        chances = self.chances(game)
        draw = random.Random(derive_seed(self._seed, rng_seed))
        return draw.choices(list(chances), list(chances.values()))[0]


class RandomPlayer(ScriptedPlayer):
    """A player that is uniform among the legal moves, in games that list them."""

    def chances(self, game: Game) -> Mapping[str, float]:
        legal = game.legal_actions() or []
        return dict.fromkeys(legal, 1 / len(legal))


class FirstPlayer(ScriptedPlayer):
    """A player that always makes the first move that the game lists."""

    def chances(self, game: Game) -> Mapping[str, float]:
        return dict.fromkeys((game.legal_actions() or [])[:1], 1.0)


class CallingPlayer(ScriptedPlayer):
    """A player of poker that never folds or raises: it calls, and checks where there is nothing to call."""

    def chances(self, game: Game) -> Mapping[str, float]:
        legal = {move.strip("[]"): move for move in game.legal_actions() or []}
        return {legal.get("call") or legal["check"]: 1.0}


class TablePlayer(ScriptedPlayer):
    """A player that draws from a policy for an OpenSpiel game."""

    @abstractmethod
    def policy(self, state: Any) -> dict[int, float]:
        """Return the probability of each action that it may take at a ``pyspiel.State``."""

    def chances(self, game: Game) -> Mapping[str, float]:
        table = cast("OpenSpielGame", game)
        names = dict(zip(table.state.legal_actions(), table.legal_actions(), strict=True))
        return {names[action]: chance for action, chance in self.policy(table.state).items()}


class OptimalPlayer(TablePlayer):
    """A player with a minimax or equilibrium policy of an OpenSpiel game, uniform among equal moves."""

    def __init__(self, env_id: str, seed: int) -> None:
        from sparring.envs.solver import solve

        super().__init__(seed)
        self._solution = solve(env_id)

    def policy(self, state: Any) -> dict[int, float]:
        return self._solution.policy(state)


class PolicyPlayer(TablePlayer):
    """A player with the policy in a file; a state that the file lacks is an InputError."""

    def __init__(self, path: str, seed: int) -> None:
        super().__init__(seed)
        self._path = path
        self._lines = read_lines(Path(path))

    def policy(self, state: Any) -> dict[int, float]:
        name, actions = state.information_state_string(), state.legal_actions()
        if name not in self._lines:
            raise InputError(self._path, f"lacks the information state {name!r}", "Add it")
        return dict(zip(actions, checked_chances(actions, *self._lines[name]), strict=True))


class TextArenaTicTacToePlayer(OptimalPlayer):
    """Perfect play of TextArena's TicTacToe, computed from OpenSpiel's."""

    def chances(self, game: Game) -> Mapping[str, float]:
        state = _tic_tac_toe_state(cast("TextArenaGame", game).board)
        return {f"[{cell}]": chance for cell, chance in self.policy(state).items()}


class WeakenedPlayer(ScriptedPlayer):
    """A player that decides at each move anew: with probability ``share`` it moves as another player does,
    else at random. A mixture of the two, drawn once for each game, would be another player."""

    def __init__(self, player: ScriptedPlayer, share: float, seed: int) -> None:
        super().__init__(seed)
        self._player, self._share, self._random = player, share, RandomPlayer(seed)

    def chances(self, game: Game) -> Mapping[str, float]:
        best = self._player.chances(game)
        return {
            move: self._share * best.get(move, 0.0) + (1 - self._share) * chance
            for move, chance in self._random.chances(game).items()
        }


def tic_tac_toe_cell(action: str) -> int:
    """Return the cell, 0 to 8, that a valid move of TextArena's TicTacToe names; it is OpenSpiel's action."""
    return int(action.strip("[] "))


def _tic_tac_toe_state(board: list[list[str]]) -> Any:
    """Rebuild a non-terminal position in OpenSpiel. TextArena's O moves first, as OpenSpiel's x does."""
    from sparring.envs.openspiel_game import load_game

    cells = [cell for row in board for cell in row]
    first = [index for index, cell in enumerate(cells) if cell == "O"]
    second = [index for index, cell in enumerate(cells) if cell == "X"]
    state = load_game("tic_tac_toe").new_initial_state()
    for turn in range(len(first) + len(second)):
        state.apply_action(second[turn // 2] if turn % 2 else first[turn // 2])
    return state


def make_player(name: str, env_id: str, seed: int) -> ScriptedPlayer:
    """Return the scripted player ``name``, or the one with the policy in the file of that name, for
    ``env_id``. The game may first be solved, once per process."""
    if is_policy_file(name):
        if library_of(env_id) != "openspiel":
            raise InputError("opponent", f"{name} is a policy for OpenSpiel's games", "Choose one of them")
        return PolicyPlayer(name, seed)
    if name in OPTIMAL_SHARES:
        return WeakenedPlayer(_optimal_player(env_id, seed), OPTIMAL_SHARES[name], seed)
    if name == "optimal":
        return _optimal_player(env_id, seed)
    if name == "always-call":
        check_is_poker(env_id)
        return CallingPlayer(seed)
    if name not in PLAYER_NAMES:
        raise InputError("opponent", f"no scripted player {name!r}", f"Use one of {', '.join(PLAYER_NAMES)}")
    check_moves_are_told(env_id, "opponent", "Choose a model as the opponent")
    return RandomPlayer(seed) if name == "random" else FirstPlayer(seed)


def _optimal_player(env_id: str, seed: int) -> ScriptedPlayer:
    if library_of(env_id) == "openspiel":
        return OptimalPlayer(env_id, seed)
    if env_id in TEXTARENA_TICTACTOE:
        return TextArenaTicTacToePlayer("tic_tac_toe", seed)
    raise InputError(
        "opponent",
        f"no optimal player for {env_id}, only for {TEXTARENA_TICTACTOE[1]} and small OpenSpiel games",
        "Use random as the opponent",
    )


def check_is_poker(env_id: str) -> None:
    """Raise an InputError unless ``always-call`` plays a game."""
    if env_id.partition("(")[0].partition("-v")[0] not in POKER:
        problem = f"always-call plays {', '.join(POKER)}, not {env_id}"
        raise InputError("opponent", problem, "Use random as the opponent")


def check_moves_are_told(env_id: str, field: str, fix: str) -> None:
    """Raise an InputError, which names ``field`` and ``fix``, unless a game lists its legal moves."""
    library = library_of(env_id)
    if library == "openspiel":
        return
    if library == "textarena":
        from sparring.envs.textarena_game import tells_moves
    else:
        from sparring.envs.catalog import tells_moves
    if not tells_moves(env_id):
        problem = f"{env_id} does not list its legal moves, so no player can play it at random"
        raise InputError(field, problem, fix)
