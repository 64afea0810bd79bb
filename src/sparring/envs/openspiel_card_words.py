"""The words of OpenSpiel's games of cards and dice."""

import re
from typing import Any, ClassVar

from sparring.envs.openspiel_words import Wording, legal_line

CARD_NAMES = "23456789TJQK"


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
        return f"Moves so far: {betting}. {legal_line(self.moves(state))} Your card: {card}."

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
            f"Round 1: {first}. Round 2: {second}. {legal_line(self.moves(state))} "
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


class LiarsDiceWording(Wording):
    """Liar's dice: bids such as ``2-3``, and ``Liar``. A list of legal moves would be most of the prompt."""

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; they are the same for both seats."""
        own = game.get_parameters()
        sides, dice = own["dice_sides"], own["numdice"]
        what = "a die" if dice == 1 else f"{dice} dice"
        higher = "more dice, or as many and a higher face"
        if own["bidding_rule"] == "reset-quantity":
            higher = "a higher face, or the same face and more dice"
        return (
            f"Liar's dice. Two players roll {what} of {sides} sides each and see only their own. They take "
            "turns to bid: 2-3 says that at least two of all dice show 3, for which a "
            f"{sides} counts too. Each bid has {higher} than the last. Whoever doubts the last bid answers "
            "Liar and wins if it is false, else loses. Answer with a bid or Liar only."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the bids so far and the dice, in this order."""
        dice, *bids = state.information_state_string(pid).split()
        what = "die" if len(dice) == 1 else "dice"
        return f"Bids: {' '.join(bids) or 'none'}. Your {what}: {' '.join(dice)}."

    def moves(self, state: Any) -> list[str]:
        """Give the bids, such as ``2-3``, and ``Liar``."""
        return [state.action_to_string(state.current_player(), action) for action in state.legal_actions()]


class GoofspielWording(Wording):
    """Goofspiel in turns. Cards are named by their numbers; nobody sees what others bid for a prize."""

    _FIELD = re.compile(r"^(.+): ?(.*)$", re.MULTILINE)
    _ORDERS: ClassVar = {"ascending": ", the lowest first", "descending": ", the highest first"}
    _AIMS: ClassVar = {"win_loss": "Whoever has the most points wins"}

    def rules(self, game: Any, pid: int) -> str:
        """Give the rules; they are the same for every seat."""
        own = game.get_parameters()["game"]
        cards, order = own["num_cards"], self._ORDERS.get(own["points_order"], " in random order")
        rounds = own["num_turns"] if own["num_turns"] > 0 else cards
        aim = self._AIMS.get(own["returns_type"], "Points are what counts")
        return (
            f"Goofspiel, {own['players']} players, each with cards 1 to {cards}. Prizes of 1 to {cards} "
            f"points are shown one by one{order}; {rounds} are played for. For each, all bid one of their "
            "cards at the same time, which is then gone, and the highest bid takes the prize; nobody does if "
            f"the highest bids are equal. {aim}. Answer with the number of a card only."
        )

    def observation(self, state: Any, pid: int) -> str:
        """Give the rounds so far, the prize, the others' cards if these are open, and the own cards."""
        found = self._FIELD.findall(state.information_state_string(pid))
        fields = {name: text.split() for name, text in found}
        players, prizes = state.num_players(), fields["Point card sequence"]
        bids = [f"you bid {int(card) + 1}, " for card in fields.get(f"P{pid} action sequence", [])]
        said = []
        for place, winner in enumerate(fields["Win sequence"]):
            who = _who(int(winner), pid, players) if int(winner) >= 0 else "nobody"
            said.append(f"Prize {prizes[place]}: {bids[place] if bids else ''}{who} won.")
        said += [f"Prize now: {prizes[-1]}."] if len(prizes) > len(said) else []
        for seat in (*(one for one in range(players) if one != pid), pid):
            whose = _who(seat, pid, players).replace("you", "your").replace("they", "their").capitalize()
            if f"P{seat} hand" in fields:
                said.append(f"{whose} cards: {' '.join(fields[f'P{seat} hand'])}.")
        return " ".join(said)

    def moves(self, state: Any) -> list[str]:
        """Give the numbers of the cards."""
        return [str(action + 1) for action in state.legal_actions()]


def _kuhn_deck(players: int) -> str:
    return CARD_NAMES[len(CARD_NAMES) - players - 1 :]


def _who(pid: int, reader: int, players: int) -> str:
    if pid == reader:
        return "you"
    return "they" if players == 2 else f"player {pid}"
