"""``max_cached_tokens`` bounds the cache, and every request still gets an answer."""

import asyncio

import pytest

from engine_requests import answers, ask, make_engine, refusal
from selfplay.core import EpisodeError, ModelResponse
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.policy import BASE, PolicyModel
from tiny_models import tiny_policy


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return tiny_policy()


@pytest.mark.parametrize("names", [["default"], ["default", BASE]])
async def test_at_most_max_cached_tokens_are_kept_and_answers_do_not_change(policy, names):
    """24 requests of at most 80 tokens whose prompts share nothing, from one model or two."""
    prompts = [f"{number:02d}" + "x" * (2 * number % 40) for number in range(24)]

    async def ask_24(engine: EmbeddedEngine) -> list[ModelResponse]:
        engine.publish(BASE, BASE, 0)
        asked = (
            ask(engine, text, seed, max_tokens=38, model=names[seed % len(names)])
            for seed, text in enumerate(prompts)
        )
        return await asyncio.wait_for(asyncio.gather(*asked), timeout=300)

    free, bounded = make_engine(policy), make_engine(policy, max_cached_tokens=256)
    expected, responses = await ask_24(free), await ask_24(bounded)
    assert answers(responses) == answers(expected)
    assert free.stats.most_cached_tokens > 2 * 256
    assert 128 < bounded.stats.most_cached_tokens <= 256
    assert bounded.stats.generated_tokens == free.stats.generated_tokens


async def test_requests_are_admitted_in_order_of_arrival(policy):
    """A long request is not overtaken forever by short ones that would fit beside it."""
    engine = make_engine(policy, max_cached_tokens=64)
    order: list[str] = []

    async def ask_and_note(name: str, text: str, **options) -> None:
        await ask(engine, text, 1, **options)
        order.append(name)

    def ask_short(number: int) -> asyncio.Task[None]:
        return asyncio.create_task(ask_and_note("short", f"{number:03d}", max_tokens=4))

    tasks = [ask_short(number) for number in range(10)]
    tasks.append(asyncio.create_task(ask_and_note("long", "y" * 60, max_tokens=4)))
    tasks += [ask_short(number) for number in range(10, 100)]
    await asyncio.wait_for(asyncio.gather(*tasks), timeout=300)
    assert len(order) == 101
    assert order.index("long") == 10


async def test_a_request_above_the_bound_is_rejected_with_the_name_of_the_setting(policy):
    engine = make_engine(policy, max_cached_tokens=20)
    line = await refusal(ask(engine, "x" * 13, 1))
    assert line.endswith("exceed the context of 20; shorten the prompt or raise inference.max_cached_tokens")
    assert (await ask(engine, "x" * 12, 1)).completion_token_ids


async def test_withdrawing_a_model_lets_waiting_requests_for_another_continue(policy):
    engine = make_engine(policy, max_cached_tokens=64)
    engine.publish(BASE, BASE, 0)
    leaving = asyncio.create_task(ask(engine, "x" * 30, 1, max_tokens=30, model=BASE))
    waiting = asyncio.create_task(ask(engine, "y" * 40, 1, max_tokens=20))
    while engine.stats.forward_passes < 2:
        await asyncio.sleep(0)
    assert engine.running == 1
    engine.withdraw(BASE)
    assert (await asyncio.wait_for(waiting, timeout=60)).completion_token_ids
    with pytest.raises(EpisodeError, match="no longer served"):
        await leaving
