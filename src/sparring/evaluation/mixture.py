"""Mixture: a mixed strategy over policies, of which one is drawn for each game."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparring.core import derive_seed

Member = TypeVar("Member")
Changed = TypeVar("Changed")


@dataclass(frozen=True)
class Mixture(Generic[Member]):
    """Members and the probability of each. Whoever plays a mixture draws a member at the start of each game.

    Attributes:
        members: who may be drawn.
        weights: how often each is, in proportion.
    """

    members: tuple[Member, ...]
    weights: tuple[float, ...]

    def __str__(self) -> str:
        return "mixture"

    def draw(self, seed: int, seat: int) -> Member:
        """Return the member that makes all moves of a seat in the game with this seed."""
        return random.Random(derive_seed(seed, "mixture", seat)).choices(self.members, self.weights)[0]


def drawn(player: Member | Mixture[Member], seed: int, seat: int) -> Member:
    """Return who plays a seat in the game with this seed: the player itself, or a member of a mixture."""
    return player.draw(seed, seat) if isinstance(player, Mixture) else player


def mapped(
    player: Member | Mixture[Member], change: Callable[[Member], Changed]
) -> Changed | Mixture[Changed]:
    """Return the player, or each member of a mixture, changed."""
    if isinstance(player, Mixture):
        return Mixture(tuple(map(change, player.members)), player.weights)
    return change(player)


def average_policy(
    chances: Sequence[Sequence[Sequence[float]]],
    weights: Sequence[float],
    parents: Sequence[tuple[int, int] | None],
) -> list[list[float]]:
    """Return the policy that plays as a mixture does, whose members are drawn once for each game.

    In each information state it is the average over members, weighted by the member's probability and by the
    probability of the member's own earlier moves that lead there. By Kuhn's theorem, in a game of perfect
    recall nobody can tell it from the mixture. OpenSpiel's ``policy_aggregator`` computes the same.

    Args:
        chances: by member and information state, the probability of each legal action.
        weights: the probability of each member.
        parents: the same player's decision before each information state, as the earlier state's place in the
            list and the place of the action there; ``None`` if it is the player's first. Earlier states come
            first. A state that no member reaches has the average by ``weights`` alone.
    """
    reaches: list[list[float]] = []
    averages: list[list[float]] = []
    for place, parent in enumerate(parents):
        if parent is None:
            reach = list(weights)
        else:
            state, action = parent
            reach = [own * one[state][action] for own, one in zip(reaches[state], chances, strict=True)]
        reaches.append(reach)
        shares = reach if any(reach) else weights
        total = sum(shares)
        averages.append(
            [
                sum(share * one[place][action] for share, one in zip(shares, chances, strict=True)) / total
                for action in range(len(chances[0][place]))
            ]
        )
    return averages
