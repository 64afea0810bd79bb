"""A client with a known policy, for the tests of evaluation."""

import asyncio
import math
import random
import re
from collections.abc import Callable

from sparring.core import InferenceClient, Messages, ModelResponse

Policy = Callable[[str], dict[str, float]]


class TabularClient(InferenceClient):
    """Draws answers from, and scores them under, a policy: a function of the last message.

    Each model named in ``policies`` has its own; all others have ``policy``. Calls finish in an order that
    follows from ``order``. ``calls`` are (model, messages) in the order they came.
    """

    def __init__(self, policy: Policy, policies: dict[str, Policy] | None = None, order: int = 0) -> None:
        self.policy = policy
        self.policies = policies or {}
        self.order = random.Random(order)
        self.calls: list[tuple[str, Messages]] = []
        self.in_flight = 0
        self.max_in_flight = 0

    async def complete(
        self, messages, temperature=1.0, max_tokens=None, return_tokens=True, *, model=None, seed=None
    ):
        chances = await self._ask(messages, model)
        text = random.Random(seed).choices(list(chances), list(chances.values()))[0]
        return ModelResponse(text, [{"role": "assistant", "content": text}])

    async def score(self, messages, completions, *, model=None):
        chances = await self._ask(messages, model)
        return [math.log(chances[text]) if chances.get(text) else -math.inf for text in completions]

    async def _ask(self, messages: Messages, model: str | None) -> dict[str, float]:
        self.calls.append((model or "", messages))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        for _ in range(self.order.randrange(1, 5)):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return self.policies.get(model or "", self.policy)(messages[-1]["content"])


def legal_moves(observation: str) -> list[str]:
    """Read the legal moves off an observation of an OpenSpiel game: a list, or a board's free cells."""
    line = re.search(r"Legal moves: (.*?)\.( |$)", observation, re.MULTILINE)
    if line is not None:
        return line.group(1).split(", ")
    board = re.search(r"(^[\dxo] [\dxo] [\dxo]$\n?){3}", observation, re.MULTILINE)
    assert board is not None
    return re.findall(r"\d", board.group())


def uniform(observation: str) -> dict[str, float]:
    """Every legal move alike."""
    moves = legal_moves(observation)
    return dict.fromkeys(moves, 1 / len(moves))


def first_move(observation: str) -> dict[str, float]:
    """Always the first legal move."""
    return {legal_moves(observation)[0]: 1.0}


def nonsense(observation: str) -> dict[str, float]:
    """Never a legal move."""
    return {"dance": 1.0}
