import asyncio
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig

from engine_requests import PROMPTS, answers, ask, ask_all, assert_logprobs_are_the_learners, make_engine
from sparring.core import ModelResponse, pass_sizes
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.sampling import Logits
from sparring.learn.policy import BASE, TRAINED
from tiny_models import tiny_policy


async def test_adapters_in_one_forward_pass_answer_as_alone():
    policy = tiny_policy("qwen3")
    state = policy.adapter_state()
    for number in range(3):
        policy.load_adapter_state(
            {key: (number - 1) * value for key, value in state.items()}, f"copy-{number}"
        )
    generator = torch.Generator().manual_seed(0)
    for name, lora in {"rank": LoraConfig(r=3), "scale": LoraConfig(r=2, lora_alpha=7)}.items():
        lora.target_modules = ["q_proj", "up_proj"]
        policy.add_adapter(name, lora)
        for parameter in policy.adapter_parameters(name):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    names = [TRAINED, BASE, "copy-0", "copy-1", "copy-2", "rank", "scale"]

    async def play(models: list[str]) -> tuple[dict[str, list[ModelResponse]], int]:
        engine = EmbeddedEngine(policy, max_tokens=8)
        for name in models:
            engine.publish(name, name, 0)
        asked = [
            (name, ask(engine, text, seed, model=name))
            for name in models
            for text in PROMPTS
            for seed in range(3)
        ]
        answers = await asyncio.gather(*(call for _, call in asked))
        found = {
            name: [one for (of, _), one in zip(asked, answers, strict=True) if of == name] for name in models
        }
        return found, engine.stats.forward_passes

    together, passes = await play(names)
    alone = [await play([name]) for name in names]
    assert passes < 1.5 * max(count for _, count in alone)
    for name, (found, _) in zip(names, alone, strict=True):
        for one, other in zip(together[name], found[name], strict=True):
            assert one.completion_token_ids == other.completion_token_ids
            assert one.completion_logprobs == pytest.approx(other.completion_logprobs, abs=1e-5)
        assert_logprobs_are_the_learners(policy, together[name], name=name)


async def test_an_adapter_that_was_changed_or_replaced_plays_with_its_new_weights():
    policy = tiny_policy("qwen3")
    engine = make_engine(policy)
    await ask_all(engine)
    with torch.no_grad():
        for parameter in policy.adapter_parameters(TRAINED):
            parameter.mul_(1.5)
    engine.publish(TRAINED, TRAINED, 1)
    assert_logprobs_are_the_learners(policy, await ask_all(engine))
    optimizer = torch.optim.AdamW(policy.adapter_parameters(TRAINED), lr=0.1)
    for parameter in policy.adapter_parameters(TRAINED):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    engine.publish(TRAINED, TRAINED, 2)
    assert_logprobs_are_the_learners(policy, await ask_all(engine))
    state = policy.adapter_state()
    policy.load_adapter_state(state, "frozen")
    engine.publish("frozen", "frozen", 0)
    await ask_all(engine, model="frozen")
    engine.withdraw("frozen")
    policy.drop_adapter("frozen")
    policy.load_adapter_state({key: -value for key, value in state.items()}, "frozen")
    engine.publish("frozen", "frozen", 0)
    assert_logprobs_are_the_learners(policy, await ask_all(engine, model="frozen"), name="frozen")


async def test_an_engine_computes_the_same_without_masks_as_on_gpus():
    policy = tiny_policy("qwen3")
    expected = await ask_all(make_engine(policy))
    alone = await ask(make_engine(policy), PROMPTS[-1], 1)
    with patch.object(pass_sizes, "FLASH_DEVICES", {"cpu"}):
        found = await ask_all(make_engine(policy))
        found_alone = await ask(make_engine(policy), PROMPTS[-1], 1)
    assert answers(found) == answers(expected)
    assert answers([found_alone]) == answers([alone])
    assert_logprobs_are_the_learners(policy, [*found, found_alone])


async def test_what_is_known_of_the_next_token_holds_no_more_memory_than_its_own():
    engine = make_engine(tiny_policy())
    await ask_all(engine)
    known = [one for served in engine._served.values() for one in served.cache.next_tokens.values()]
    assert known
    for one in known:
        assert one.hidden_D.untyped_storage().nbytes() == one.hidden_D.nbytes


def test_distributions_at_ever_new_temperatures_are_dropped():
    logits = Logits([], torch.randn(2, 700))
    first = logits.at(1.0)
    for number in range(20):
        assert logits.at(1.0) is first, "it is in use"
        logits.at(2.0 + number)
    for number in range(20):
        logits.at(2.0 + number)
    assert logits.at(1.0) is not first
