"""A model whose weights are damaged fails its own requests, and nobody else's."""

import asyncio
import math

import pytest

from live_server import TOKEN, engine_over, running
from matrices import first_of
from sparring.core import SparringError
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.server import create_app
from sparring.learn.policy import BASE, PolicyModel
from tiny_models import text_prompt, tiny_policy

MODELS = ("tiny", "base", "broken")


def with_broken(value: float) -> EmbeddedEngine:
    """An engine that also serves the base model and an adapter with a wrong number in each matrix."""
    policy: PolicyModel = tiny_policy()
    state = policy.adapter_state()
    for weight in state.values():
        weight[0, 0] = value
    policy.load_adapter_state(state, "of-broken")
    engine = engine_over(policy)
    engine.publish("base", BASE, 0)
    engine.publish("broken", "of-broken", 1)
    return engine


async def ask(engine: EmbeddedEngine, model: str, seed: int) -> object:
    prompt = text_prompt(f"rules, number {seed}")
    return await engine.complete(prompt, 0.9, 8, model=model, seed=seed)


@pytest.mark.parametrize("value", first_of([math.nan, math.inf, 1e30]))
async def test_requests_to_a_broken_model_fail_and_those_beside_them_are_right(value):
    engine = with_broken(value)
    asked = [(model, seed) for seed in range(20) for model in MODELS]
    answers = await asyncio.gather(*(ask(engine, *one) for one in asked), return_exceptions=True)
    alone = with_broken(0.0)
    for (model, seed), answer in zip(asked, answers, strict=True):
        if model == "broken":
            assert isinstance(answer, SparringError)
            assert str(answer).startswith("the model's logits are not numbers")
        else:
            expected = await ask(alone, model, seed)
            assert answer.text == expected.text
            assert answer.completion_logprobs == pytest.approx(expected.completion_logprobs, abs=1e-4)
    assert engine.running == 0


async def test_a_broken_models_prompt_has_no_log_probabilities_and_others_do():
    engine = with_broken(math.nan)
    with running(create_app(engine, token=TOKEN), engine) as live:
        async with live.async_client() as client:
            asked = [
                client.completions.create(model=m, prompt="rules", echo=True, logprobs=1, max_tokens=0)
                for m in MODELS
            ]
            good, base, broken = await asyncio.gather(*asked, return_exceptions=True)
            for answer in (good, base):
                assert all(one < 0 for one in answer.choices[0].logprobs.token_logprobs[1:])
            assert broken.status_code == 503
            assert "not numbers" in broken.message


async def test_contexts_of_a_broken_model_do_not_spoil_the_memory_that_others_use_later():
    engine = with_broken(math.nan)
    await asyncio.gather(*(ask(engine, "broken", seed) for seed in range(8)), return_exceptions=True)
    engine.withdraw("broken")  # frees the keys and values, which are numbers no more
    answers = await asyncio.gather(*(ask(engine, "tiny", seed) for seed in range(8)))
    alone = with_broken(0.0)
    for seed, answer in enumerate(answers):
        assert answer.text == (await ask(alone, "tiny", seed)).text
