"""Legal moves of TextArena games, read from the game state, for the families where this is reliable."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

_SPACE = re.compile(r"\s+")
_COLUMN = re.compile(r"\[(?:col)?\s*(\d+)\]")
_PAIR = re.compile(r"\[(\d+)\s*,?\s*(\d+)\]")
_CELL_NAMES = tuple(f"[{index}]" for index in range(400))
_ROCK_PAPER_SCISSORS = {"[r]": "[rock]", "[p]": "[paper]", "[s]": "[scissors]"}


@dataclass(frozen=True)
class Family:
    """Functions that read the moves of the games of one TextArena class.

    ``legal`` lists the current player's moves in the spelling of the game's prompt; ``spell`` converts other
    spellings that the game accepts. ``board_is_all``: the board shows everything that matters, so that the
    messages about earlier moves can be left out.
    """

    legal: Callable[[Any], list[str]]
    spell: Callable[[str], str]
    board_is_all: bool = False


def add_brackets(action: str) -> str:
    """Return the stripped action, and add square brackets if it contains none."""
    action = action.strip()
    return action if "[" in action or "]" in action else f"[{action}]"


def family_of(class_name: str) -> Family | None:
    """Return the family of a TextArena environment's class, or ``None`` if it does not list its moves."""
    return _FAMILIES.get(class_name)


def _lower(action: str) -> str:
    """Return lower case with one space between words and no space at the inner edges of brackets."""
    return _SPACE.sub(" ", action.lower()).replace("[ ", "[").replace(" ]", "]")


def _spell_column(action: str) -> str:
    return _COLUMN.sub(r"[col \1]", _lower(action))


def _spell_pair(action: str) -> str:
    return _PAIR.sub(r"[\1, \2]", _lower(action))


def _spell_mark(action: str) -> str:
    return _lower(action).upper()


def _spell_throw(action: str) -> str:
    action = _lower(action)
    return _ROCK_PAPER_SCISSORS.get(action, action)


def _free_cells(env: Any) -> list[str]:
    cells = chain.from_iterable(env.state.game_state["board"])
    return [name for name, cell in zip(_CELL_NAMES, cells, strict=False) if cell == ""]


def _free_marks(env: Any) -> list[str]:
    return [f"[{mark} {cell[1:]}" for cell in _free_cells(env) for mark in "XO"]


def _open_columns(env: Any) -> list[str]:
    top = env.state.game_state["board"][0]
    return [f"[col {column}]" for column, cell in enumerate(top) if cell == "."]


def _kuhn_moves(env: Any) -> list[str]:
    return [f"[{move}]" for move in env.state.game_state["current_legal_action_tree"]]


def _nim_moves(env: Any) -> list[str]:
    piles = env.state.game_state["piles"]
    return [f"[{pile} {count}]" for pile, size in enumerate(piles) for count in range(1, size + 1)]


def _othello_moves(env: Any) -> list[str]:
    moves = [f"[{row}, {column}]" for row, column in env.state.game_state["valid_moves"]]
    return moves or ["[skip]"]


def _always(*moves: str) -> Callable[[Any], list[str]]:
    return lambda env: list(moves)


_FAMILIES: dict[str, Family] = {
    "BlackjackEnv": Family(_always("[hit]", "[stand]"), _lower),
    "ConnectFourEnv": Family(_open_columns, _spell_column, board_is_all=True),
    "IteratedRockPaperScissorsEnv": Family(_always("[rock]", "[paper]", "[scissors]"), _spell_throw),
    "KuhnPokerEnv": Family(_kuhn_moves, _lower),
    "NimEnv": Family(_nim_moves, _lower, board_is_all=True),
    "OthelloEnv": Family(_othello_moves, _spell_pair, board_is_all=True),
    "PigDiceEnv": Family(_always("[roll]", "[hold]"), _lower),
    "SimpleTakEnv": Family(_free_cells, _lower, board_is_all=True),
    "ThreePlayerTicTacToeEnv": Family(_free_cells, _lower, board_is_all=True),
    "TicTacToeEnv": Family(_free_cells, _lower, board_is_all=True),
    "WildTicTacToeEnv": Family(_free_marks, _spell_mark, board_is_all=True),
}
