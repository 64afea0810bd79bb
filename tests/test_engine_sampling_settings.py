"""Sampling as models ask for it: the engine draws as transformers does; server and client pass it on."""

import asyncio
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from live_server import ASK, TOKEN, engine_over, running
from replying_server import completion, http, serving
from sparring.config.model import SamplingSettings
from sparring.core import CallSettings, InputError, Sampling
from sparring.engine.answering import Shaping
from sparring.engine.openai_client import OpenAIClient
from sparring.engine.sampling import shaped_logits
from sparring.engine.server import create_app
from sparring.learn.own_sampling import drawing
from tiny_models import logits_of, tiny_policy

POLICY = tiny_policy()
SIZE = 12
rows = st.lists(st.floats(-9, 9, width=32), min_size=SIZE, max_size=SIZE, unique=True)
contexts = st.lists(st.integers(0, SIZE - 1), max_size=20)
samplings = st.builds(
    Sampling,
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    top_k=st.integers(0, SIZE + 2),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.2, 5)),
)


def of_transformers(
    logits_V: torch.Tensor, ids: list[int], sampling: Sampling, temperature: float
) -> torch.Tensor:
    """The log-probabilities with which transformers' own processors draw, in vLLM's order."""
    processors = LogitsProcessorList()
    if ids and sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    processors.append(TemperatureLogitsWarper(temperature))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    return processors(torch.tensor([ids], dtype=torch.long), logits_V[None])[0].log_softmax(-1)


# Distributions


@given(rows, contexts, samplings, st.floats(0.1, 3))
def test_distributions_are_those_of_transformers(row, context, sampling, temperature):
    logits_1V = torch.tensor([row])
    shaped = shaped_logits(logits_1V, temperature, Shaping(sampling), [context])[0]
    found = (shaped / temperature).log_softmax(-1)
    expected = of_transformers(logits_1V[0], context, sampling, temperature)
    different = found.isfinite() != expected.isfinite()
    assert int(different.sum()) <= 1  # sums of float32 may end on either side of a bound
    if not different.any():
        torch.testing.assert_close(found.exp(), expected.exp(), atol=1e-5, rtol=1e-4)
    assert logits_1V.tolist() == [row]


@given(rows, contexts, samplings)
def test_the_likeliest_token_after_the_penalty_is_taken_at_temperature_0(row, context, sampling):
    logits_1V = torch.tensor([row])
    shaped = shaped_logits(logits_1V, 0.0, Shaping(sampling), [context])[0]
    only = replace(Sampling(), repetition_penalty=sampling.repetition_penalty)
    expected = of_transformers(logits_1V[0], context, only, 1.0)
    assert expected[shaped.argmax()] == expected.max()


@given(samplings, st.integers(0, 2**32), st.floats(0.3, 2))
def test_the_engine_draws_kept_tokens_with_the_chances_that_transformers_gives_them(
    sampling, seed, temperature
):
    engine = engine_over(POLICY)

    async def ask() -> Any:
        asked = [
            engine.complete(ASK, temperature, 4, model="tiny", seed=seed + number, sampling=sampling)
            for number in range(4)
        ]
        return await asyncio.gather(*asked)

    for answer in asyncio.run(ask()):
        ids = list(answer.prompt_token_ids)
        for token, logprob in zip(answer.completion_token_ids, answer.completion_logprobs, strict=True):
            logits_V = logits_of(POLICY, ids)[-1].float()
            expected = of_transformers(logits_V, ids, sampling, temperature)
            assert logprob == pytest.approx(float(expected[token]), abs=1e-3)
            ids.append(token)


# Server and client


def test_every_route_has_a_repetition_penalty(live):
    client, asked = live.client(), {"repetition_penalty": 1.8}
    ids = POLICY.render(ASK)
    engine = engine_over(POLICY)
    sampling = Sampling(repetition_penalty=1.8)
    answer = asyncio.run(
        engine.complete(ASK, 0.7, 12, model="tiny", seed=3, sampling=sampling)
    ).completion_token_ids
    plain = asyncio.run(engine.complete(ASK, 0.7, 12, model="tiny", seed=3)).completion_token_ids
    assert answer != plain, "or this test cannot tell"
    common = {"model": "tiny", "seed": 3, "temperature": 0.7, "max_tokens": 12}
    body = asked | {"return_token_ids": True}
    chat = client.chat.completions.create(messages=ASK, extra_body=body, **common)
    text = client.completions.create(prompt=ids, extra_body=body, **common)
    parameters = asked | {"seed": 3, "temperature": 0.7, "max_tokens": 12}
    generated = live.post(
        "/inference/v1/generate", json={"model": "tiny", "token_ids": ids, "sampling_params": parameters}
    ).json()
    assert chat.choices[0].token_ids == answer
    assert text.choices[0].token_ids == answer
    assert generated["choices"][0]["token_ids"] == answer


OWN = CallSettings(0.5, sampling=Sampling(top_p=0.8, top_k=3, repetition_penalty=1.3))


def test_what_a_request_leaves_open_is_the_models_own_unless_it_asks_for_token_ids():
    engine = engine_over(POLICY)
    with running(create_app(engine, token=TOKEN, own=OWN), engine) as live:
        client = live.client()

        def chat(**asked: Any) -> str:
            common = {"model": "tiny", "messages": ASK, "max_tokens": 12, "seed": 5}
            return client.chat.completions.create(**common, **asked).choices[0].message.content

        own = {"temperature": 0.5, "top_p": 0.8}
        rest = {"top_k": 3, "repetition_penalty": 1.3}
        plain = {"temperature": 1.0, "top_p": 1.0}
        none = {"top_k": -1, "repetition_penalty": 1.0}
        assert chat() == chat(**own, extra_body=rest)
        assert chat(temperature=0.9) == chat(temperature=0.9, top_p=0.8, extra_body=rest)
        assert chat(**plain, extra_body=none) != chat()
        for_learners = chat(extra_body={"return_token_ids": True})
        assert for_learners == chat(**plain, extra_body=none)
        prompt = client.completions.create(model="tiny", prompt="abc", max_tokens=12, seed=5).choices[0].text
        same = client.completions.create(
            model="tiny", prompt="abc", max_tokens=12, seed=5, **own, extra_body=rest
        )
        assert prompt == same.choices[0].text


async def test_the_client_asks_the_server_for_the_same_draws(live):
    engine = engine_over(POLICY)
    client = OpenAIClient(api_key=TOKEN, model="tiny", base_url=f"{live.url}/v1")
    for sampling in (Sampling(top_p=0.5), Sampling(0.9, 5, 0.02, 1.4), Sampling()):
        over_http = await client.complete(ASK, max_tokens=12, seed=9, sampling=sampling)
        direct = await engine.complete(ASK, max_tokens=12, seed=9, model="tiny", sampling=sampling)
        assert over_http.completion_token_ids == direct.completion_token_ids
        assert over_http.completion_logprobs == pytest.approx(direct.completion_logprobs)
    await client.close()


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        (Sampling(), {}),
        (Sampling(top_p=0.9), {"top_p": 0.9}),
        (Sampling(0.9, 20, 0.1, 1.2), asdict(Sampling(0.9, 20, 0.1, 1.2))),
        (Sampling(min_p=0.2), {"min_p": 0.2}),
    ],
)
async def test_the_client_sends_what_changes_something(sampling, sent):
    async with serving(http(completion())) as server:
        client = OpenAIClient("a-key", "small", f"http://127.0.0.1:{server.port}/v1")
        await client.complete(ASK, return_tokens=False, sampling=sampling)
        await client.close()
    (body,) = server.bodies
    assert {name: body[name] for name in asdict(sampling) if name in body} == sent


@pytest.mark.parametrize("field", ["top_k", "min_p", "repetition_penalty"])
async def test_openai_has_no_sampling_beyond_top_p(field):
    client = OpenAIClient("a-key", "gpt", "https://api.openai.com/v1")
    value = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}[field]
    with pytest.raises(InputError, match=f"sampling: has {field}, which api.openai.com does not know"):
        await client.complete(ASK, sampling=replace(Sampling(), **{field: value}))


# What models say


def saved(directory, **generation: Any):
    GenerationConfig(**generation).save_pretrained(directory)
    return str(directory)


def test_a_models_own_settings_are_read(tmp_path):
    asked = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    model = saved(tmp_path, do_sample=True, **asked)
    from_model = SamplingSettings(from_model=True)
    own = drawing(from_model, model, "here")
    assert own == CallSettings(0.6, sampling=Sampling(0.95, 20, 0.05, 1.1))
    changed = SamplingSettings(from_model=True, top_k=0, top_p=1.0)
    assert drawing(changed, model, "here").sampling == Sampling(1.0, 0, 0.05, 1.1)
    assert drawing(SamplingSettings(min_p=0.3), model, "here") == CallSettings(sampling=Sampling(min_p=0.3))
    assert drawing(None, model, "here") == CallSettings()


def test_what_a_model_leaves_out_changes_nothing(tmp_path):
    model = saved(tmp_path, do_sample=True, top_p=0.7)
    own = drawing(SamplingSettings(from_model=True), model, "here")
    assert own == CallSettings(sampling=Sampling(top_p=0.7))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{}",
        '{"eos_token_id": 2, "do_sample": true}',
        '{"top_p": 0}',
        '{"top_p": 1.5}',
        '{"top_k": 0.5}',
        '{"top_k": -3}',
        '{"min_p": "all"}',
        '{"temperature": -1}',
        '{"temperature": NaN}',
        '{"repetition_penalty": 0}',
        "[1]",
        "{",
    ],
)
def test_a_model_without_usable_settings_is_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(InputError) as error:
        drawing(SamplingSettings(from_model=True), str(tmp_path), "evaluation.sampling")
    assert str(error.value).startswith("evaluation.sampling.from_model: ")
    assert "\n" not in str(error.value)
    assert "write settings such as top_p = 0.9" in str(error.value)


def test_the_bundled_model_says_nothing_and_is_not_downloaded_for_that(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"generation_config.json of smollm2-135m has none of temperature"):
        drawing(SamplingSettings(from_model=True), "smollm2-135m", "here")
    assert not [*tmp_path.iterdir()]


def test_the_settings_of_a_file_are_those_that_were_saved(tmp_path):
    saved(tmp_path, do_sample=True, top_k=7)
    assert json.loads((tmp_path / "generation_config.json").read_text())["top_k"] == 7
