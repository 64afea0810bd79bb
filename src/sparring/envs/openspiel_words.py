"""The words of OpenSpiel games, here of board games: rules, observations and moves.

Observations begin with what many positions share and end with what differs, so that prompts share prefixes.
"""

import re
from abc import ABC, abstractmethod
from typing import Any

_PLAIN = str.maketrans("[]\\", "()|")
_OWN_TAG = re.compile(r"^\[P\d+\]\s*(?=\S)")


class Wording(ABC):
    """The words of one OpenSpiel game. ``state`` is a ``pyspiel.State``, ``game`` a ``pyspiel.Game``."""

    @abstractmethod
    def rules(self, game: Any, pid: int) -> str:
        """Return the rules for ``pid``: constant text."""

    @abstractmethod
    def observation(self, state: Any, pid: int) -> str:
        """Return what ``pid`` knows at ``state``; irrelevant suits or transpositions may be left out."""

    @abstractmethod
    def moves(self, state: Any) -> list[str]:
        """Return distinct names of the legal moves, in the order of ``state.legal_actions()``."""


class PlainWording(Wording):
    """OpenSpiel's own strings, for games without their own wording here."""

    def rules(self, game: Any, pid: int) -> str:
        """Name the game and the seat."""
        name = game.get_type().long_name
        return f"The game is {name}. You are player {pid} of {game.num_players()}."

    def observation(self, state: Any, pid: int) -> str:
        """Give the information state (or observation) string, then the legal moves."""
        game_type = state.get_game().get_type()
        if game_type.provides_information_state_string and not _is_open(game_type):
            text = state.information_state_string(pid)
        elif game_type.provides_observation_string:
            text = state.observation_string(pid)
        else:
            text = str(state)
        return f"{text.strip()}\n{legal_line(self.moves(state))}"

    def moves(self, state: Any) -> list[str]:
        """Give OpenSpiel's action strings, distinct by action id.

        They have no brackets and no backslashes, and do not begin with the number of the player who moves.
        """
        actions, pid = state.legal_actions(), state.current_player()
        # Games that are written in Python have only the form with the player.
        names = [_plain_name(state.action_to_string(pid, action)) for action in actions]
        if len(set(names)) == len(names):
            return names
        return [f"{name} #{action}" for name, action in zip(names, actions, strict=True)]


class TicTacToeWording(Wording):
    """Tic-tac-toe with cells 0 to 8, row by row."""

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; the mark differs by seat."""
        return (
            "Tic-tac-toe. Cells are numbered 0 to 8, row by row. Three in a row win. "
            f"You play {'xo'[pid]}. Answer with the number of a free cell only."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the board with free cells as their numbers: a list would nearly triple the prompt."""
        cells = [
            str(index) if mark == "." else mark
            for index, mark in enumerate(state.observation_string(pid).replace("\n", ""))
        ]
        return "\n".join(" ".join(cells[start : start + 3]) for start in (0, 3, 6))

    def moves(self, state: Any) -> list[str]:
        """Give the numbers of the free cells."""
        return [str(action) for action in state.legal_actions()]


class PhantomTicTacToeWording(Wording):
    """Tic-tac-toe on a board that nobody sees, with cells 0 to 8: what a player tried, in this order.

    Positions that differ in their last tries share the rest of their prompt. Legal moves are not listed: a
    list would be most of what is not shared.
    """

    _TRY = re.compile(r"(\d),(\d|\?)")

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; the mark differs by seat."""
        abrupt = game.get_parameters()["gameversion"] == "abrupt"
        after = "your turn is over" if abrupt else "you try another cell"
        return (
            "Tic-tac-toe on a board that you do not see. Cells are numbered 0 to 8, row by row. Three in a "
            f"row win. If a cell that you try is taken, you are told so, and {after}. You play {'xo'[pid]}. "
            "Answer with the number of a cell that you have not tried yet."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the player's own tries, and those of the other if the game tells of them."""
        *rows, said = state.information_state_string(pid).split("\n")
        view, said_of = "".join(rows), []
        for seat, cell in self._TRY.findall(said):
            if int(seat) != pid:
                said_of.append("they try")
            else:
                said_of.append(f"{cell} taken" if view[int(cell)] != "xo"[pid] else cell)
        return f"Your tries: {', '.join(said_of) or 'none'}"

    def moves(self, state: Any) -> list[str]:
        """Give the numbers of the cells that were not tried."""
        return [str(action) for action in state.legal_actions()]


class NimWording(Wording):
    """Nim: stones in piles, and whose turn it is says nothing, so both seats share their prompts."""

    _ACTION = re.compile(r"pile:(\d+), take:(\d+);")

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; they are the same for both seats."""
        last = "loses" if game.get_parameters()["is_misere"] else "wins"
        return (
            "Nim. Players take turns to take any number of stones from one pile. Whoever takes the last "
            f"stone {last}. Answer with pile:stones only; 2:3 takes three stones from the second pile."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the stones in each pile, and the legal moves."""
        piles = str(state).partition(": ")[2]
        return f"Piles: {piles}. {legal_line(self.moves(state))}"

    def moves(self, state: Any) -> list[str]:
        """Give the pile and the number of stones of each move, such as ``2:3``."""
        pid = state.current_player()
        names = (state.action_to_string(pid, action) for action in state.legal_actions())
        return [self._ACTION.sub(r"\1:\2", name) for name in names]


def legal_line(moves: list[str]) -> str:
    """Return the line that lists the legal moves."""
    return f"Legal moves: {', '.join(moves)}."


def _plain_name(text: str) -> str:
    return " ".join(_OWN_TAG.sub("", text).translate(_PLAIN).split())


def _is_open(game_type: Any) -> bool:
    return bool(game_type.information == game_type.Information.PERFECT_INFORMATION)
