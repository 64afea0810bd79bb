"""``/v1/completions`` as a client sees it, against the model's own numbers."""

import math
from itertools import accumulate
from typing import Any

import openai
import pytest
import torch

from live_server import Live
from tiny_models import CONTEXT_LENGTH, STOP, logits_of, tiny_policy

POLICY = tiny_policy()
PROMPT = "The rules, in short:"
TEXT = "Köln: rules 日本"


def complete(live: Live, prompt: Any, **options: Any) -> Any:
    return live.client().completions.create(model="tiny", prompt=prompt, **options)


def model_logprobs(ids: list[int]) -> torch.Tensor:
    """The log-probabilities of transformers' own model at all positions after the first, TV."""
    return logits_of(POLICY, ids)[:-1].log_softmax(-1)


def encoded(text: str) -> list[int]:
    return POLICY.tokens.encode(text)


# Scoring


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echoed_prompt_has_the_models_log_probabilities_and_greedy_tokens(live, max_tokens, as_ids):
    ids = encoded(TEXT)
    answer = complete(
        live, ids if as_ids else TEXT, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    (choice,) = answer.choices
    expected_TV = model_logprobs(ids)
    told = choice.logprobs
    assert choice.text.startswith(TEXT)
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(ids) + max_tokens
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    for place, token in enumerate(ids[1:]):
        logprob, top = told.token_logprobs[place + 1], told.top_logprobs[place + 1]
        assert logprob == pytest.approx(float(expected_TV[place, token]), abs=1e-5)
        assert max(top.values()) == pytest.approx(float(expected_TV[place].max()), abs=1e-5)
        greedy = int(expected_TV[place].argmax()) == token
        assert (logprob == max(top.values())) == greedy
        assert len(top) == (1 if greedy else 2)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == max_tokens


def test_some_of_the_scored_tokens_are_greedy_ones(live):
    """Or else the test before could not tell."""
    greedy = encoded(PROMPT)
    for _ in range(12):
        greedy.append(int(model_logprobs([*greedy, 0])[-1].argmax()))
    told = complete(live, greedy, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    place = len(encoded(PROMPT))
    pairs = zip(told.token_logprobs[place:], told.top_logprobs[place:], strict=True)
    assert all(logprob == max(top.values()) for logprob, top in pairs)


def test_the_tokens_of_an_echo_are_named_by_text_or_bytes_and_placed_in_the_text(live):
    told = complete(live, TEXT, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
    names = [name.removeprefix("bytes:\\x") for name in told.tokens]
    spelled = [
        bytes.fromhex(name) if name != own else own.encode()
        for name, own in zip(names, told.tokens, strict=True)
    ]
    assert b"".join(spelled) == TEXT.encode()
    starts = [0, *accumulate(len(letter) for letter in TEXT)]
    expected = [start for start, letter in zip(starts, TEXT, strict=False) for _ in letter.encode()]
    assert told.text_offset == expected


def test_scores_do_not_depend_on_what_is_scored_at_the_same_time_or_was_before(live):
    texts = [f"{TEXT} {word}" for word in ("yes", "no", "perhaps", "yes")]
    live.engine.forget_contexts()
    alone = [
        complete(live, text, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs.token_logprobs
        for text in texts
    ]
    live.engine.forget_contexts()
    complete(live, texts[0], max_tokens=3)  # its contexts are there, but nobody has drawn after most of them
    together = complete(live, texts, echo=True, logprobs=0, max_tokens=0).choices
    assert [choice.index for choice in together] == [0, 1, 2, 3]
    for choice, expected in zip(together, alone, strict=True):
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected[1:], abs=1e-5)


def test_scoring_a_batch_shares_forward_passes(live):
    live.engine.forget_contexts()
    live.engine.reset_stats()
    complete(live, [f"{TEXT} {number}" for number in range(20)], echo=True, logprobs=1, max_tokens=0)
    assert live.engine.stats.forward_passes == 1
    assert live.engine.stats.computed_tokens < 2 * len(encoded(TEXT)) + 20


# Drawing


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_completion_continues_a_prompt_without_a_template(live, as_ids):
    ids = encoded(PROMPT)
    asked = {"seed": 3, "max_tokens": 12, "extra_body": {"return_token_ids": True}}
    (choice,) = complete(live, ids if as_ids else PROMPT, **asked).choices
    assert choice.prompt_token_ids == ids
    prompt = [{"role": "text", "content": PROMPT}]
    chat = live.client().chat.completions.create(model="tiny", messages=prompt, **asked).choices[0]
    assert (choice.text, choice.token_ids) == (chat.message.content, chat.token_ids)
    assert choice.logprobs is None


def test_each_prompt_has_its_answers_in_order_and_each_is_that_of_the_prompt_alone(live):
    asked = {"seed": 3, "max_tokens": 6, "n": 2}
    together = complete(live, [PROMPT, TEXT], **asked)
    alone = [choice.text for prompt in (PROMPT, TEXT) for choice in complete(live, prompt, **asked).choices]
    assert [choice.text for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert len(set(alone)) == 4
    assert together.usage.prompt_tokens == len(encoded(PROMPT)) + len(encoded(TEXT))
    assert together.usage.completion_tokens == 24


@pytest.mark.parametrize("options", [{}, {"echo": True, "logprobs": 2}, {"n": 2, "stop": ["a", "o"]}])
def test_a_stream_joins_to_the_whole_answer(live, options):
    asked = {"prompt": [PROMPT, TEXT], "seed": 2, "max_tokens": 20, **options}
    live.engine.forget_contexts()
    whole = live.client().completions.create(model="tiny", **asked)
    live.engine.forget_contexts()
    *chunks, last = list(
        live.client().completions.create(
            model="tiny", **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    assert last.usage == whole.usage
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    for choice in whole.choices:
        pieces = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [
            choice.finish_reason
        ]
        if choice.logprobs is not None:
            for field, values in choice.logprobs:
                assert [one for piece in pieces for one in getattr(piece.logprobs, field)] == values


def test_a_completion_without_a_limit_has_the_servers_limit_and_fits_the_context(live):
    assert complete(live, PROMPT, seed=3).usage.completion_tokens <= 16
    near = complete(live, "x" * (CONTEXT_LENGTH - 3))
    assert near.usage.total_tokens <= CONTEXT_LENGTH


def test_a_spelled_control_token_in_a_prompt_is_text_and_its_id_is_one(live):
    spelled = complete(live, STOP, max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    assert len(spelled.prompt_token_ids) == len(STOP)
    stop = POLICY.tokenizer.eos_token_id
    given = complete(live, [stop], max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    assert given.prompt_token_ids == [stop]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [PROMPT, ""]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"prompt": [5] * (CONTEXT_LENGTH + 1)}, "prompt"),
        ({"prompt": "x" * CONTEXT_LENGTH, "max_tokens": 1}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"extra_body": {"logit_bias": {"100000": 1}}}, "logit_bias"),
        ({"extra_body": {"logit_bias": {"5": 101}}}, "logit_bias.5"),
        ({"extra_body": {"messages": []}}, "messages"),
    ],
)
def test_the_error_for_an_impossible_completion_names_the_parameter(live, asked, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        live.client().completions.create(**{"model": "tiny", "prompt": PROMPT, **asked})
    assert refusal.value.param == param
    assert refusal.value.message.count("\n") == 0
    assert "Value error" not in refusal.value.message


def test_the_whole_context_can_be_scored_but_not_more(live):
    ids = [5] * CONTEXT_LENGTH
    told = complete(live, ids, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
    assert len(told.tokens) == CONTEXT_LENGTH
    assert all(math.isfinite(one) for one in told.token_logprobs[1:])
