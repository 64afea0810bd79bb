"""Streamed answers of the server as a client sees them."""

import contextlib
import json
import threading
from collections.abc import Iterator
from itertools import pairwise

import openai
import pytest

from live_server import ASK, TOKEN, engine_over, running
from matrices import first_of
from sparring.engine.server import create_app
from sparring.learn.policy import PolicyModel
from tiny_models import tiny_policy

POLICY = tiny_policy()


@pytest.mark.parametrize("seed", first_of([0, 1, 2, 3], 2))
def test_the_pieces_of_a_stream_join_to_the_whole_answer(live, seed):
    asked = {"model": "tiny", "messages": ASK, "seed": seed, "max_tokens": 60, "logprobs": True}
    ids = {"return_token_ids": True}
    live.engine.forget_contexts()
    whole = live.client().chat.completions.create(**asked, extra_body=ids)
    live.engine.forget_contexts()
    stream = live.client().chat.completions.create(
        **asked, extra_body=ids, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content for delta in deltas) == whole.choices[0].message.content
    assert len(deltas) > 10
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
    logprobs = [token for chunk in chunks[1:] for token in chunk.choices[0].logprobs.content]
    assert logprobs == whole.choices[0].logprobs.content
    for token in logprobs:
        if "\N{REPLACEMENT CHARACTER}" not in token.token:
            assert token.bytes == list(token.token.encode())
    assert {chunk.object for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    tokens = [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids]
    assert tokens == whole.choices[0].token_ids
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("chat/completions", {"messages": ASK}),
        ("completions", {"prompt": ["rules", "rules of"]}),
        ("completions", {"prompt": ["rules", [5, 6]], "echo": True}),
    ],
)
def test_every_chunk_has_the_counts_so_far_if_they_are_wanted(live, route, asked):
    body = {"model": "tiny", "seed": 1, "n": 2, "max_tokens": 8, **asked}
    whole = live.post(f"/v1/{route}", json=body).json()["usage"]

    def counts(**options):
        options = {"include_usage": True, **options}
        sent = live.post(f"/v1/{route}", json={**body, "stream": True, "stream_options": options}).text
        return [json.loads(line[6:])["usage"] for line in sent.split("\n\n") if line.startswith("data: {")]

    found = counts(continuous_usage_stats=True)
    assert found[-1] == whole
    assert all(one["total_tokens"] == one["prompt_tokens"] + one["completion_tokens"] for one in found)
    for before, after in pairwise(found):
        assert before["prompt_tokens"] <= after["prompt_tokens"]
        assert before["completion_tokens"] <= after["completion_tokens"]
    assert len({one["completion_tokens"] for one in found}) > 3
    assert set(map(json.dumps, counts(continuous_usage_stats=False))) == {"null", json.dumps(whole)}


def test_a_stream_of_several_choices_gives_the_index_of_each(live):
    asked = {"model": "tiny", "messages": ASK, "seed": 5, "n": 2}
    texts = {0: "", 1: ""}
    for chunk in live.client().chat.completions.create(**asked, stream=True):
        assert chunk.usage is None
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    whole = live.client().chat.completions.create(**asked)
    assert list(texts.values()) == [choice.message.content for choice in whole.choices]


@contextlib.contextmanager
def held_at(policy: PolicyModel, forward_pass: int) -> Iterator[threading.Event]:
    """Block the model, and with it the server, in a forward pass until the event is set."""
    layer = policy.model.get_base_model().model.layers[0]
    original, released, passes = layer.forward, threading.Event(), 0

    def forward(*args, **kwargs):
        nonlocal passes
        passes += 1
        if passes == forward_pass:
            assert released.wait(60)
        return original(*args, **kwargs)

    layer.forward = forward
    try:
        yield released
    finally:
        released.set()
        layer.forward = original


def test_tokens_are_sent_as_they_are_sampled():
    """The twelfth token is not sampled before the client has received the first one."""
    policy = tiny_policy()
    engine = engine_over(policy)
    with held_at(policy, 12) as released, running(create_app(engine, token=TOKEN), engine) as live:
        asked = {"messages": ASK, "temperature": 0, "extra_body": {"return_token_ids": True}}
        stream = live.client().chat.completions.create(model="tiny", max_tokens=40, stream=True, **asked)
        tokens: list[int] = []
        for chunk in stream:
            tokens += chunk.choices[0].model_extra.get("token_ids", [])
            if tokens and not released.is_set():
                assert engine.stats.generated_tokens < 12
                released.set()
        assert len(tokens) == engine.stats.generated_tokens > 12


def test_a_client_that_leaves_a_stream_cancels_its_request():
    policy = tiny_policy()
    engine = engine_over(policy, max_queue=1)
    with held_at(policy, 4) as released, running(create_app(engine, token=TOKEN), engine) as live:
        stream = live.client().chat.completions.create(
            model="tiny", messages=ASK, temperature=0, max_tokens=200, stream=True
        )
        next(stream)
        stream.close()
        released.set()
        # The queue holds one request, so another is accepted only when the first has ended.
        answer = None
        while answer is None:
            with contextlib.suppress(openai.InternalServerError):
                answer = live.client().chat.completions.create(model="tiny", messages=ASK, max_tokens=1)
    assert engine.stats.requests == 2
    assert engine.stats.generated_tokens < 200


def test_a_stream_that_breaks_off_gives_the_reason():
    policy = tiny_policy()
    engine = engine_over(policy)
    with held_at(policy, 4) as released, running(create_app(engine, token=TOKEN), engine) as live:
        stream = live.client().chat.completions.create(
            model="tiny", messages=ASK, temperature=0, max_tokens=200, stream=True
        )
        next(stream)
        live.loop.call_soon_threadsafe(engine.withdraw, "tiny")
        released.set()
        with pytest.raises(openai.APIError, match="tiny is no longer served"):
            list(stream)
