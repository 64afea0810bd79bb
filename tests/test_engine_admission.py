import asyncio

import pytest

from engine_requests import make_engine
from sparring.core.messages import said
from sparring.engine.admission import MOST_OVERTAKEN, Admission, Request, ServedModel
from tiny_models import text_prompt, tiny_policy

ROOM = 1000


def request(model: ServedModel, prompt: list[int], max_tokens: int) -> Request:
    future = asyncio.get_running_loop().create_future()
    return Request(model, future, prompt, max_tokens, temperature=1.0, seed=0, version=0)


def own_tokens(number: int, length: int) -> list[int]:
    return [number * ROOM + place for place in range(length)]


def end(admission: Admission, one: Request, drawn: list[int]) -> None:
    """End an active request as if it had drawn these tokens."""
    one.drawn = drawn
    one.node = one.model.cache.insert(drawn[:-1], one.node)
    one.future.set_result(None)
    one.model.end_requests()
    admission.room_was_made()


async def play(admission: Admission, model: ServedModel, prompt: list[int], drawn: list[int]) -> None:
    one = request(model, prompt, len(drawn))
    admission.add(one)
    admission.admit([model])
    assert one in model.active
    end(admission, one, drawn)


async def test_a_conversation_goes_on_before_requests_whose_prompts_are_unknown():
    admission, model = Admission(ROOM), ServedModel("adapter", 0)
    first = request(model, own_tokens(1, 300), 101)
    blocking = request(model, own_tokens(2, 300), 201)
    for one in (first, blocking):
        admission.add(one)
    admission.admit([model])
    other = request(model, own_tokens(3, 300), 101)
    admission.add(other)
    answer = own_tokens(4, 101)
    end(admission, first, answer)
    later = request(model, [*first.prompt, *answer, 7], 20)
    admission.add(later)
    admission.admit([model])
    assert model.active == [blocking, later]
    assert model.cache.find(later.prompt)[1] == len(later.prompt)
    end(admission, blocking, own_tokens(5, 2))
    admission.admit([model])
    assert model.active == [later, other]


async def test_a_request_is_overtaken_a_limited_number_of_times():
    admission, model = Admission(ROOM), ServedModel("adapter", 0)
    await play(admission, model, own_tokens(1, 100), [7])
    other = request(model, own_tokens(2, 10), 2)
    admission.add(other)
    for _ in range(2 * MOST_OVERTAKEN):
        admission.add(request(model, own_tokens(1, 100), 2))
    admission.admit([model])
    assert model.active.index(other) == MOST_OVERTAKEN


async def test_the_oldest_contexts_are_dropped_first_and_those_of_waiting_requests_last():
    admission, model = Admission(ROOM), ServedModel("adapter", 0)
    for number in range(3):
        await play(admission, model, own_tokens(number, 300), [7])
    blocking = request(model, own_tokens(3, 100), 200)
    admission.add(blocking)
    admission.admit([model])
    matched = [model.cache.find(own_tokens(number, 300))[1] for number in range(3)]
    assert matched == [0, 300, 300]
    going_on = request(model, [*own_tokens(1, 300), 7], 500)
    admission.add(going_on)
    admission.admit([model])
    assert model.active == [blocking]
    assert model.cache.find(own_tokens(1, 300))[1] == 300
    end(admission, blocking, [7])
    admission.admit([model])
    assert model.active == [going_on]
    assert model.cache.find(own_tokens(2, 300))[1] == 0


async def test_what_fits_only_without_any_other_context_is_admitted_in_the_end():
    admission, model = Admission(ROOM), ServedModel("adapter", 0)
    await play(admission, model, own_tokens(1, 600), [7])
    known = request(model, own_tokens(1, 600), 300)
    large = request(model, own_tokens(2, 500), 501)
    admission.add(large)
    admission.add(known)
    admission.admit([model])
    assert model.active == [known]
    end(admission, known, own_tokens(3, 2))
    admission.admit([model])
    assert model.active == [large]
    assert model.cache.find(own_tokens(1, 600))[1] == 0


@pytest.mark.parametrize("conversations", [1, 12])
async def test_a_conversation_is_computed_once_although_others_wait_for_room(conversations):
    engine = make_engine(tiny_policy("qwen3"), max_tokens=4, max_cached_tokens=500)

    async def converse(number: int) -> int:
        messages = text_prompt(f"{number:02}" * 50)
        for turn in range(3):
            answer = await engine.complete(messages, seed=turn)
            messages = [
                *messages,
                said("assistant", answer.text, answer.completion_token_ids),
                *text_prompt("go"),
            ]
        return len(answer.prompt_token_ids) + len(answer.completion_token_ids)

    lengths = await asyncio.gather(*(converse(number) for number in range(conversations)))
    assert sum(lengths) > 500 * (conversations > 1)
    assert engine.stats.most_cached_tokens <= 500
    assert engine.stats.computed_tokens <= sum(lengths)
