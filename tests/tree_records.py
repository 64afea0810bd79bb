"""Records of small games of two seats, of which the same histories return."""

import math
import random
from dataclasses import replace

from sparring.core import TrainingRecord
from tiny_models import make_record

BET, PASS = [4, 5], [4, 6, 7]
MOVES = [BET, PASS]


def move(game: str, place: int, prompt: list[int], drawn: list[int], reward: float) -> TrainingRecord:
    """An answer of the seat whose turn it is, drawn with a chance of a half."""
    record = make_record(
        prompt,
        drawn,
        reward,
        logprobs=[math.log(0.5), *[0.0] * (len(drawn) - 1)],
        alternatives=MOVES,
    )
    return replace(record, role_id=f"player_{place % 2}", rollout_id=game, place=place, turn=place // 2)


def played(name: str, card: int, first: list[int], second: list[int]) -> list[TrainingRecord]:
    """Return a game: seat 0 has a card and moves, then seat 1, who has seen only the move."""
    stake = 1.0 + (first == BET) + (second == BET)
    won = stake if card else -stake
    return [
        move(name, 0, [1, 2, 10 + card], first, won),
        move(name, 1, [9, 8, first[1]], second, -won),
    ]


def tree_games(seed: int, number: int) -> list[TrainingRecord]:
    """Return the records of random games, in another order than that of their steps."""
    draw = random.Random(seed)
    games = [
        played(f"{seed}-{n}", draw.randrange(2), draw.choice(MOVES), draw.choice(MOVES))
        for n in range(number)
    ]
    records = [record for game in games for record in game]
    return draw.sample(records, len(records))
