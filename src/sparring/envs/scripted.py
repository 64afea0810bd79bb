"""Scripted players: uniformly random among legal moves, optimal where OpenSpiel can solve the game, or with a
policy from a file."""

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparring.core import InputError, derive_seed
from sparring.envs.catalog import library_of
from sparring.envs.game import Game
from sparring.envs.policy_lines import checked_chances, is_policy_file, read_lines

if TYPE_CHECKING:
    from sparring.envs.openspiel_game import OpenSpielGame
    from sparring.envs.textarena_game import TextArenaGame

PLAYER_NAMES = ("random", "optimal")
TEXTARENA_TICTACTOE = ("TicTacToe-v0", "TicTacToe-v0-train")


class ScriptedPlayer(ABC):
    """A player that needs no model. It holds no state of a game, so one player serves any number of games."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @abstractmethod
    def act(self, game: Game, rng_seed: int) -> str:
        """Return a legal move for the current player of ``game``; the same seeds give the same move."""

    def _draw(self, weights: dict[Any, float], rng_seed: int) -> Any:
        draw = random.Random(derive_seed(self._seed, rng_seed))
        return draw.choices(list(weights), list(weights.values()))[0]


class RandomPlayer(ScriptedPlayer):
    """A player that is uniform among the legal moves, in games that list them."""

    def act(self, game: Game, rng_seed: int) -> str:
        return str(self._draw(dict.fromkeys(game.legal_actions() or [], 1.0), rng_seed))


class TablePlayer(ScriptedPlayer):
    """A player that draws from a policy for an OpenSpiel game."""

    @abstractmethod
    def policy(self, state: Any) -> dict[int, float]:
        """Return the probability of each action that it may take at a ``pyspiel.State``."""

    def act(self, game: Game, rng_seed: int) -> str:
        table = cast("OpenSpielGame", game)
        action = self._draw(self.policy(table.state), rng_seed)
        index: int = table.state.legal_actions().index(action)
        return table.legal_actions()[index]


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


class TextArenaTicTacToePlayer(ScriptedPlayer):
    """Perfect play of TextArena's TicTacToe, computed from OpenSpiel's."""

    def __init__(self, seed: int) -> None:
        from sparring.envs.solver import solve

        super().__init__(seed)
        self._solution = solve("tic_tac_toe")

    def act(self, game: Game, rng_seed: int) -> str:
        state = _tic_tac_toe_state(cast("TextArenaGame", game).board)
        return f"[{self._draw(self._solution.policy(state), rng_seed)}]"


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
    if name == "random":
        check_moves_are_told(env_id, "opponent", "Choose a model as the opponent")
        return RandomPlayer(seed)
    if is_policy_file(name):
        if library_of(env_id) != "openspiel":
            raise InputError("opponent", f"{name} is a policy for OpenSpiel's games", "Choose one of them")
        return PolicyPlayer(name, seed)
    if name != "optimal":
        raise InputError("opponent", f"no scripted player {name!r}", f"Use one of {', '.join(PLAYER_NAMES)}")
    if library_of(env_id) == "openspiel":
        return OptimalPlayer(env_id, seed)
    if env_id in TEXTARENA_TICTACTOE:
        return TextArenaTicTacToePlayer(seed)
    raise InputError(
        "opponent",
        f"no optimal player for {env_id}, only for {TEXTARENA_TICTACTOE[1]} and small OpenSpiel games",
        "Use random as the opponent",
    )


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
