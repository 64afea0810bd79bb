"""Answers that share nothing, whose new tokens read keys and values where they are, in many model families.

Prompts are longer than the families' windows of 32 tokens.
"""

import asyncio
from unittest.mock import patch

import pytest

from engine_requests import assert_logprobs_are_the_learners
from family_models import family_model
from matrices import first_of
from sparring.core import ModelResponse
from sparring.engine import cached_attention
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.key_store import KeyStore
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from tiny_models import perturb_adapter, text_prompt

PROMPTS = [letter * (30 + 3 * place) for place, letter in enumerate("abcdef")]
FAMILIES = [
    "gpt-oss",  # sinks
    "Gemma 2",  # soft caps
    "DeepSeek-V3",  # keys and values of other sizes
    "Llama",
    "Mistral, window of 32",
    "Gemma 1",
    "Gemma 3",
    "Qwen2, window of 32",
    "Qwen3",
    "Qwen3-MoE",
    "Phi",
    "Phi-3, window of 32",
    "OLMo 3",
    "SmolLM3",
    "Granite",
    "EXAONE 4",
    "GLM 4",
    "Cohere 2",
    "StarCoder 2",
    "Helium",
]


def answer_all(policy: PolicyModel) -> list[ModelResponse]:
    engine = EmbeddedEngine(policy, max_tokens=12)
    engine.publish(TRAINED, TRAINED, 0)

    async def ask() -> list[ModelResponse]:
        return await asyncio.gather(
            *(engine.complete(text_prompt(text), seed=seed) for seed, text in enumerate(PROMPTS))
        )

    return asyncio.run(ask())


@pytest.mark.parametrize("family", first_of(FAMILIES, 3))
def test_keys_are_read_in_place_as_they_would_be_copied(family):
    policy = PolicyModel(str(family_model(family)), LoraSettings(4, 8.0))
    perturb_adapter(policy)
    with patch.object(KeyStore, "scores", autospec=True, side_effect=KeyStore.scores) as scores:
        found = answer_all(policy)
        assert scores.called
        scores.reset_mock()
        with patch.object(cached_attention, "READ_IN_PLACE", frozenset()):
            copied = answer_all(policy)
        assert not scores.called
    for one, other in zip(found, copied, strict=True):
        assert one.completion_token_ids == other.completion_token_ids
        assert one.completion_logprobs == pytest.approx(other.completion_logprobs, abs=1e-5)
    assert_logprobs_are_the_learners(policy, found)
