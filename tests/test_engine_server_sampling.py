"""What a request can ask of the draws: stop strings, shapes of distributions, log-probabilities."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from live_server import ASK, TOKEN, Live, engine_over
from sparring.core import Arena, Role, Sampling
from sparring.engine.answering import Shaping
from sparring.engine.openai_client import OpenAIClient
from sparring.engine.sampling import shaped_logits
from tiny_models import logits_of, tiny_policy

POLICY = tiny_policy()


def ask(live: Live, **options: Any) -> Any:
    """Return the choice of an answer, with its token ids unless they are refused."""
    return live.client().chat.completions.create(model="tiny", messages=ASK, **options).choices[0]


def next_logits(ids: list[int]) -> torch.Tensor:
    return logits_of(POLICY, ids)[-1]


PROMPT = POLICY.render(ASK)
LOGITS = next_logits(PROMPT)
LOGPROBS = LOGITS.log_softmax(-1)


# Stop strings


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("places", [(4,), (9, 5), (11, 7)])
def test_an_answer_ends_before_the_first_stop_string_in_it(live, stream, places):
    whole = ask(live, seed=1, max_tokens=60).message.content
    stops = [whole[place : place + 2] for place in places]
    expected = whole[: min(whole.index(one) for one in stops)]
    stop = stops[0] if len(stops) == 1 else stops
    asked = {"seed": 1, "max_tokens": 60, "stop": stop}
    if stream:
        chunks = list(live.client().chat.completions.create(model="tiny", messages=ASK, stream=True, **asked))
        text = "".join(chunk.choices[0].delta.content for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = ask(live, **asked)
        text, reason = choice.message.content, choice.finish_reason
    assert (text, reason) == (expected, "stop")


@pytest.mark.parametrize("stop", [None, "", [], [""]])
def test_an_empty_stop_string_stops_nothing(live, stop):
    assert ask(live, seed=1, max_tokens=9, stop=stop) == ask(live, seed=1, max_tokens=9)


async def test_a_roles_stop_strings_work_over_the_servers_api_as_in_the_engine(live):
    engine = engine_over(tiny_policy())
    whole = (await engine.complete(ASK, temperature=0, max_tokens=30, model="tiny")).text
    stop = whole[6:8]
    client = OpenAIClient(api_key=TOKEN, model="tiny", base_url=f"{live.url}/v1")
    answers = []
    for one in (client, engine):
        arena = Arena(one)
        arena.add_role(Role("speaker", stop=(stop,), max_tokens=30, temperature=0))
        answers.append(await arena.call_model(ASK, "speaker", model="tiny"))
    await client.close()
    over_http, direct = answers
    assert over_http.text == direct.text == whole[: whole.index(stop)]
    assert over_http.completion_token_ids == direct.completion_token_ids
    assert over_http.completion_logprobs == direct.completion_logprobs


# Shapes


logits_of_rows = st.lists(st.floats(-9, 9, width=32), min_size=12, max_size=12, unique=True)


@given(logits_of_rows, st.floats(0.01, 1), st.integers(0, 14), st.floats(0, 1), st.floats(0.1, 3))
def test_shaped_logits_keep_what_the_library_keeps(row, top_p, top_k, min_p, temperature):
    logits_1V = torch.tensor([row])
    shaped = shaped_logits(logits_1V, temperature, Shaping(Sampling(top_p, top_k, min_p)), [[]])
    warpers = [MinPLogitsWarper(min_p)] if min_p > 0 else []
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    expected = logits_1V / temperature
    for warper in warpers:
        expected = warper(None, expected)
    different = shaped.isfinite() != expected.isfinite()
    assert int(different.sum()) <= 1  # sums of float32 may end on either side of a bound
    assert shaped[0, int(logits_1V.argmax())] == logits_1V.max()
    assert logits_1V.tolist() == [row]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"top_p": 0.5}, lambda p: (p.sort(descending=True).values.cumsum(0) < 0.5).sum() + 1),
        ({"extra_body": {"top_k": 3}}, lambda p: 3),
        ({"extra_body": {"min_p": 0.3}}, lambda p: (p >= 0.3 * p.max()).sum()),
    ],
)
def test_only_what_a_shape_keeps_is_drawn_and_everything_of_it(live, asked, kept):
    ordered = LOGPROBS.argsort(descending=True)[: int(kept(LOGPROBS.exp()))].tolist()
    assert 1 < len(ordered) < 40
    extra = {"extra_body": {**asked.pop("extra_body", {}), "return_token_ids": True}}
    answer = live.client().chat.completions.create(
        model="tiny", messages=ASK, max_tokens=1, n=128, seed=5, logprobs=True, **asked, **extra
    )
    drawn = Counter(choice.token_ids[0] for choice in answer.choices)
    rare = [
        token for token in ordered if float((LOGPROBS[token] - LOGPROBS[ordered].logsumexp(0)).exp()) < 0.05
    ]
    assert set(ordered) - set(rare) <= set(drawn) <= set(ordered)
    expected = LOGPROBS - LOGPROBS[ordered].logsumexp(0)
    for choice in answer.choices:  # as drawn, because ids are asked for
        (told,) = choice.logprobs.content
        assert told.logprob == pytest.approx(float(expected[choice.token_ids[0]]), abs=1e-4)


def test_a_bias_moves_a_token_to_certain_or_impossible(live):
    least, most = int(LOGPROBS.argmin()), int(LOGPROBS.argmax())
    extra = {"return_token_ids": True}
    forced = ask(live, max_tokens=1, temperature=0, logit_bias={least: 100}, extra_body=extra)
    assert forced.token_ids == [least]
    without = ask(live, max_tokens=1, temperature=0, logit_bias={str(most): -100}, extra_body=extra)
    assert without.token_ids == [int(LOGPROBS.argsort(descending=True)[1])]


def test_an_answer_with_a_shape_is_the_same_beside_others(live):
    asked = {"seed": 7, "max_tokens": 12, "top_p": 0.7, "temperature": 0.9}
    alone = ask(live, **asked).message.content
    beside = live.client().chat.completions.create(model="tiny", messages=ASK, n=4, **asked)
    assert beside.choices[0].message.content == alone


# Log-probabilities


@pytest.mark.parametrize(
    "asked", [{"temperature": 0}, {"temperature": 0.5}, {"top_p": 0.6}, {"temperature": 1}]
)
def test_log_probabilities_are_the_models_own_unless_ids_are_asked_for(live, asked):
    plain = ask(live, seed=8, max_tokens=6, logprobs=True, top_logprobs=3, **asked)
    learner = ask(live, seed=8, max_tokens=6, logprobs=True, extra_body={"return_token_ids": True}, **asked)
    assert plain.message.content == learner.message.content
    ids = list(PROMPT)
    for token, told, drawn in zip(
        learner.token_ids, plain.logprobs.content, learner.logprobs.content, strict=True
    ):
        own = next_logits(ids).log_softmax(-1)
        assert told.logprob == pytest.approx(float(own[token]), abs=1e-4)
        best = own.topk(3)
        assert [one.logprob for one in told.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert told.top_logprobs[0].bytes == list(bytes(told.top_logprobs[0].bytes))
        if asked == {"temperature": 0}:
            assert drawn.logprob == 0.0
        elif asked == {"temperature": 0.5}:
            scaled = (next_logits(ids) / 0.5).log_softmax(-1)
            assert drawn.logprob == pytest.approx(float(scaled[token]), abs=1e-4)
        ids.append(token)


def test_the_joined_bytes_of_tokens_are_the_text(live):
    choice = ask(live, seed=1, max_tokens=40, logprobs=True, top_logprobs=20)
    assert len(choice.logprobs.content[0].top_logprobs) == 20
    spelled = b"".join(
        bytes(token.bytes) for token in choice.logprobs.content if not token.token.startswith("<|im_end")
    )
    assert spelled.decode(errors="replace") == choice.message.content
