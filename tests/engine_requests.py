"""Requests to an embedded engine over a tiny model, for tests."""

import asyncio

import pytest
import torch

from sparring.core import ModelResponse, SparringError
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.trie import build_plan
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
    with pytest.raises(SparringError) as caught:
        await request
    assert "\n" not in str(caught.value)
    return str(caught.value)


def learner_logprobs(
    policy: PolicyModel, responses: list[ModelResponse], name: str = TRAINED, temperature: float = 1.0
) -> list[list[float]]:
    plan = build_plan([r.prompt_token_ids for r in responses], [r.completion_token_ids for r in responses])
    with torch.no_grad(), policy.adapter(name):
        logprobs_C = plan_logprobs(policy, plan, temperature)
    logprobs: list[list[float]] = [[] for _ in responses]
    for sample, prediction in zip(plan.sample_S, plan.prediction_S, strict=True):
        logprobs[sample].append(float(logprobs_C[prediction]))
    return logprobs


def assert_logprobs_are_the_learners(policy, responses, **options) -> None:
    expected = learner_logprobs(policy, responses, **options)
    for response, logprobs in zip(responses, expected, strict=True):
        assert response.completion_logprobs == pytest.approx(logprobs, abs=2e-5)
