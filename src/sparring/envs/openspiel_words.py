"""The words of OpenSpiel games: rules, observations and moves.

Observations begin with what many positions share and end with what differs, so that prompts share prefixes.
"""

import re
from abc import ABC, abstractmethod
from typing import Any

CARD_NAMES = "23456789TJQK"
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
        return f"{text.strip()}\n{_legal_line(self.moves(state))}"

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


class KuhnWording(Wording):
    """Kuhn poker for two to ten players: check, bet, call, fold."""

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; they are the same for every seat."""
        players = game.num_players()
        deck = ", ".join(_kuhn_deck(players))
        return (
            f"Kuhn poker, {players} players, cards {deck} (lowest first). Everyone pays 1 chip and gets one "
            "card. A bet or a call costs 1 more chip. The highest card that did not fold wins all chips. "
            "Answer with your move only."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the betting so far, the legal moves and the card, in this order."""
        players = state.num_players()
        history = state.history()
        said = []
        bet_made = False
        for turn, action in enumerate(history[players:]):
            who = _who(turn % players, pid, players)
            said.append(f"{who} {self._name(action, bet_made)}")
            bet_made = bet_made or action == 1
        betting = ", ".join(said) if said else "none"
        card = _kuhn_deck(players)[history[pid]]
        return f"Moves so far: {betting}. {_legal_line(self.moves(state))} Your card: {card}."

    def moves(self, state: Any) -> list[str]:
        """Give ``check`` and ``bet``, or ``fold`` and ``call`` after a bet."""
        bet_made = 1 in state.history()[state.num_players() :]
        return [self._name(action, bet_made) for action in state.legal_actions()]

    def _name(self, action: int, bet_made: bool) -> str:
        if bet_made:
            return "call" if action == 1 else "fold"
        return "bet" if action == 1 else "check"


class LeducWording(Wording):
    """Leduc poker: fold, call (which is also the check), raise."""

    _FIELD = re.compile(r"\[(\w+): ?([^\]]*)\]")
    _SUITS = 2

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; they are the same for every seat."""
        cards = ", ".join(self._ranks(game))
        return (
            f"Leduc poker, {game.num_players()} players. Cards {cards}, two of each. Everyone pays 1 chip "
            "and gets one card. Two rounds of betting, a raise is 2 chips in the first and 4 in the second, "
            "at most two raises a round. Before the second a public card is shown. A pair with it wins, else "
            "the highest card. Answer with your move only."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give both rounds of betting, the legal moves, the public card and the card, in this order."""
        fields = dict(self._FIELD.findall(state.information_state_string(pid)))
        first = self._betting(fields["Round1"])
        second = self._betting(fields["Round2"])
        game = state.get_game()
        public = self._card(game, fields["Public"]) if "Public" in fields else "none"
        return (
            f"Round 1: {first}. Round 2: {second}. {_legal_line(self.moves(state))} "
            f"Public card: {public}. Your card: {self._card(game, fields['Private'])}."
        )

    def moves(self, state: Any) -> list[str]:
        """Give ``fold``, ``call`` and ``raise``, as far as they are legal."""
        return [("fold", "call", "raise")[action] for action in state.legal_actions()]

    def _betting(self, actions: str) -> str:
        return " ".join(("fold", "call", "raise")[int(action)] for action in actions.split()) or "none"

    def _ranks(self, game: Any) -> str:
        return "A23456789TJQK"[-1 - game.num_players() :]

    def _card(self, game: Any, card: str) -> str:
        suits = 1 if game.get_parameters().get("suit_isomorphism") else self._SUITS
        return self._ranks(game)[int(card) // suits]


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
        return f"Piles: {piles}. {_legal_line(self.moves(state))}"

    def moves(self, state: Any) -> list[str]:
        """Give the pile and the number of stones of each move, such as ``2:3``."""
        pid = state.current_player()
        names = (state.action_to_string(pid, action) for action in state.legal_actions())
        return [self._ACTION.sub(r"\1:\2", name) for name in names]


def wording_for(short_name: str) -> Wording:
    """Return the wording of the game with this OpenSpiel short name."""
    if short_name == "kuhn_poker":
        return KuhnWording()
    if short_name == "leduc_poker":
        return LeducWording()
    if short_name == "tic_tac_toe":
        return TicTacToeWording()
    if short_name == "phantom_ttt":
        return PhantomTicTacToeWording()
    if short_name == "nim":
        return NimWording()
    return PlainWording()


def _legal_line(moves: list[str]) -> str:
    return f"Legal moves: {', '.join(moves)}."


def _kuhn_deck(players: int) -> str:
    return CARD_NAMES[len(CARD_NAMES) - players - 1 :]


def _who(pid: int, reader: int, players: int) -> str:
    if pid == reader:
        return "you"
    return "they" if players == 2 else f"player {pid}"


def _plain_name(text: str) -> str:
    return " ".join(_OWN_TAG.sub("", text).translate(_PLAIN).split())


def _is_open(game_type: Any) -> bool:
    return bool(game_type.information == game_type.Information.PERFECT_INFORMATION)
