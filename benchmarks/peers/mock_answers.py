"""Answers for KuhnPoker without a model: random legal actions in the ``\\boxed{}`` form, at no cost.

Both sides of the comparison with unstable-rl import this file, each in an environment of its own.
"""

import random

OPENING = (
    r"Nobody has bet yet. \boxed{[check]}",
    r"My card is good enough for a bet. \boxed{[bet]}",
)
FACING_A_BET = (
    r"There is a bet and my card is too low. \boxed{[fold]}",
    r"There is a bet and I want to see the card. \boxed{[call]}",
)
_ACTIONS = "Your available actions are:"


class MockAnswers:
    """Draws answers from a generator of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.draw = random.Random(seed)

    def answer(self, prompt: str) -> str:
        """A legal action for the last list of actions in ``prompt``."""
        facing_a_bet = prompt.find("'[fold]'", prompt.rfind(_ACTIONS)) >= 0
        return self.draw.choice(FACING_A_BET if facing_a_bet else OPENING)
