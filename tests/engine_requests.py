"""Requests to an embedded engine over a tiny model, for tests."""

import asyncio

import pytest

from selfplay.core import ModelResponse, SelfplayError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.policy import TRAINED, PolicyModel
from tiny_models import text_prompt

PROMPTS = ["a", "ab", "abc", "abd", "rules rules rules: move 1", "rules rules rules: move 2", "xyz" * 10]


def make_engine(policy: PolicyModel, **options) -> EmbeddedEngine:
    engine = EmbeddedEngine(policy, **{"max_tokens": 8, **options})
    engine.publish("default", TRAINED, 0)
    return engine


async def ask(engine: EmbeddedEngine, text: str, seed: int | None, **options) -> ModelResponse:
    return await engine.complete(text_prompt(text), seed=seed, **options)


async def ask_all(engine: EmbeddedEngine, seeds: range = range(6), **options) -> list[ModelResponse]:
    return await asyncio.gather(*(ask(engine, text, seed, **options) for text in PROMPTS for seed in seeds))


def answers(responses: list[ModelResponse]) -> list[tuple[list[int], str, str]]:
    return [(r.completion_token_ids, r.finish_reason, r.text) for r in responses]


async def refusal(request) -> str:
    with pytest.raises(SelfplayError) as caught:
        await request
    assert "\n" not in str(caught.value)
    return str(caught.value)
