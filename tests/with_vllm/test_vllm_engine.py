"""VLLMEngine on vLLM itself, with a random Llama in float32."""

import asyncio
import math
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from small_models import saved_adapter, small_model, small_policy
from sparring.core import EpisodeError, InputError, ModelResponse, Sampling, SparringError
from sparring.core.errors import is_transient
from sparring.core.manifest import Expectation
from sparring.engine.adapters import file_hash
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.vllm_engine import VLLMEngine
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import BASE, TRAINED, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import CONTEXT_LENGTH, text_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = ["a", "ab", "abc", "abd", "rules rules rules: move 1", "rules rules rules: move 2", "xyz" * 10]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    """A policy with the adapters ``v1`` to ``v4``, which have different weights."""
    return small_policy()


@pytest.fixture(scope="module")
def adapters(policy, tmp_path_factory) -> dict[int, Path]:
    """Directories of the adapters 1 to 4, and of the untrained adapter 0."""
    root = tmp_path_factory.mktemp("adapters")
    untrained = {0: saved_adapter(policy, root / "0", None)}
    trained = {}
    for seed in range(1, 5):
        trained[seed] = saved_adapter(policy, root / str(seed), seed)
        policy.load_adapter_state(policy.adapter_state(TRAINED), f"v{seed}")
    return untrained | trained


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running():
    engine = VLLMEngine(str(small_model()), max_tokens=8, max_queue=400, max_adapters=3, dtype="float32")
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(running, adapters):
    """The engine with adapter 1 as ``default`` and the base as ``base``, withdrawn after each test."""
    await running.publish("default", adapters[1], 1)
    await running.publish("base", None, 0)
    yield running
    for name in running.names():
        await running.withdraw(name)
    await asyncio.gather(*running._unloading)
    assert not await running._llm.list_loras()


async def ask_all(engine: VLLMEngine, model: str, seeds=range(4), **options) -> list[ModelResponse]:
    asked = [
        engine.complete(text_prompt(text), seed=seed, model=model, **options)
        for text in PROMPTS
        for seed in seeds
    ]
    return await asyncio.gather(*asked)


def learners(policy: PolicyModel, adapter: str, responses: list[ModelResponse], temperature: float = 1.0):
    """Return the learner's log-probabilities of the same tokens."""
    plan = build_plan([r.prompt_token_ids for r in responses], [r.completion_token_ids for r in responses])
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan, temperature)
    logprobs: list[list[float]] = [[] for _ in responses]
    for sample, prediction in zip(plan.sample_S, plan.prediction_S, strict=True):
        logprobs[sample].append(float(logprobs_C[prediction]))
    return logprobs


def assert_drawn_from(policy, adapter: str, responses: list[ModelResponse], temperature: float = 1.0) -> None:
    for response, expected in zip(responses, learners(policy, adapter, responses, temperature), strict=True):
        assert response.completion_logprobs == pytest.approx(expected, abs=CLOSE)


def canary_of(policy: PolicyModel, adapter: str, canary: list[int]) -> float:
    response = ModelResponse("", [], prompt_token_ids=canary[:1], completion_token_ids=canary[1:])
    (logprobs,) = learners(policy, adapter, [response])
    return sum(logprobs) / len(logprobs)


def answers(responses: list[ModelResponse]) -> list[tuple[list[int], str, str]]:
    return [(r.completion_token_ids, r.finish_reason, r.text) for r in responses]


# Log-probabilities and sampling


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_base_and_adapters_in_one_batch_each_sample_from_their_own_distribution(
    engine, policy, adapters, temperature
):
    await engine.publish("other", adapters[2], 7)
    models = {"default": ("v1", 1), "other": ("v2", 7), "base": (BASE, 0)}
    mixed = await asyncio.gather(*(ask_all(engine, model, temperature=temperature) for model in models))
    for (adapter, version), responses in zip(models.values(), mixed, strict=True):
        assert_drawn_from(policy, adapter, responses, temperature)
        assert {response.policy_version for response in responses} == {version}
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_drawn_from(policy, "v2", mixed[0], temperature)


async def test_it_agrees_with_the_embedded_engine_on_the_same_prompts(engine, policy, adapters):
    embedded = EmbeddedEngine(policy, max_tokens=8)
    embedded.publish("default", "v1", 1)
    embedded.publish("base", BASE, 0)
    for model in ("default", "base"):
        for text in PROMPTS:
            prompt, answers = text_prompt(text), ["", "yes", "move 12"]
            ours = await engine.complete(prompt, 0.0, model=model)
            theirs = await embedded.complete(prompt, 0.0, model=model)
            assert ours == theirs
            scores = await engine.score(prompt, answers, model=model)
            assert scores == pytest.approx(await embedded.score(prompt, answers, model=model), abs=1e-3)


async def test_it_draws_with_the_sampling_of_the_embedded_engine(engine, policy, adapters):
    embedded = EmbeddedEngine(policy, max_tokens=8)
    embedded.publish("default", "v1", 1)
    for text in PROMPTS:
        prompt = text_prompt(text)
        for sampling in (Sampling(repetition_penalty=1.6), Sampling(top_p=0.5, repetition_penalty=0.8)):
            ours = await engine.complete(prompt, 0.0, model="default", sampling=sampling)
            theirs = await embedded.complete(prompt, 0.0, model="default", sampling=sampling)
            assert ours == theirs
        likeliest = await embedded.complete(prompt, 0.0, model="default")
        for sampling in (Sampling(top_k=1), Sampling(min_p=1.0), Sampling(top_p=1e-6)):
            only = await engine.complete(prompt, 1.0, model="default", seed=1, sampling=sampling)
            assert only.completion_token_ids == likeliest.completion_token_ids
            assert only.completion_logprobs == pytest.approx([0.0] * len(only.completion_logprobs))


async def test_an_answer_that_was_not_drawn_is_refused(engine):
    with pytest.raises(InputError, match=r"inference.engine: vLLM has no log-probabilities for an answer"):
        await engine.give(text_prompt("a"), "yes")


async def test_prompts_are_rendered_as_by_the_learner(engine, policy):
    messages = [{"role": "user", "content": "rules\n\n42"}, {"role": "assistant", "content": "[1]"}]
    response = await engine.complete(messages)
    assert response.prompt_token_ids == policy.render(messages) == engine.tokens.render(messages)
    assert engine.tokens.encode_answer(messages, "yes") == policy.encode_answer(messages, "yes")
    assert engine.tokens.stop_token_ids == policy.stop_token_ids


async def test_the_stop_token_is_in_the_ids_but_not_in_the_text(engine, policy):
    responses = await ask_all(engine, "default", range(40), max_tokens=30)
    stopped = [response for response in responses if response.finish_reason == "stop"]
    assert 0 < len(stopped) < len(responses)
    for response in responses:
        ends = [token in policy.stop_token_ids for token in response.completion_token_ids]
        assert ends == [False] * (len(ends) - 1) + [response in stopped]
        assert len(response.completion_logprobs) == len(ends)
        kept = response.completion_token_ids[: len(ends) - (response in stopped)]
        assert response.text == policy.tokenizer.decode(kept, skip_special_tokens=True)


async def test_a_seed_gives_the_same_answer_whatever_else_is_in_the_batch(engine, adapters):
    await engine.publish("other", adapters[2], 1)
    crowd = asyncio.gather(*(ask_all(engine, name, range(100, 105)) for name in ("other", "base")))
    beside = await ask_all(engine, "default")
    await crowd
    assert answers(await ask_all(engine, "default")) == answers(beside)
    assert answers(await ask_all(engine, "default", range(4, 8))) != answers(beside)
    first, second = await engine.complete(text_prompt("a")), await engine.complete(text_prompt("a"))
    assert answers([first]) != answers([second])


async def test_prompts_with_seeds_may_exceed_one_forward_pass(engine, policy):
    """vLLM 0.32 crashes on a CPU if it computes only a part of a prompt that has a seed."""
    prompts = [text_prompt(f"{number:03}" * 60) for number in range(40)]
    asked = [engine.complete(prompt, seed=seed) for seed, prompt in enumerate(prompts)]
    assert_drawn_from(policy, "v1", await asyncio.gather(*asked))


# Versions


async def test_a_new_version_takes_over_and_requests_in_progress_end_with_the_old_one(
    engine, policy, adapters
):
    old = asyncio.create_task(ask_all(engine, "default", max_tokens=60))
    while not engine._served["default"].requests:
        await asyncio.sleep(0)
    await engine.publish("default", adapters[2], 2)
    assert not old.done()
    new = await ask_all(engine, "default")
    old_responses = await old
    assert {response.policy_version for response in old_responses} == {1}
    assert {response.policy_version for response in new} == {2}
    assert_drawn_from(policy, "v1", old_responses)
    assert_drawn_from(policy, "v2", new)
    assert await engine.get_policy_version() == 2


async def test_no_request_is_lost_when_versions_change_under_load(engine, policy, adapters):
    asked = []
    for version in range(2, 14):
        asked += [asyncio.create_task(ask_all(engine, "default", [version, 2 * version]))]
        await engine.publish("default", adapters[1 + version % 4], version)
    responses = [response for group in asked for response in await group]
    assert len(responses) == 12 * 2 * len(PROMPTS)
    versions = {response.policy_version for response in responses}
    assert len(versions) > 1
    for version in versions:
        adapter = "v1" if version == 1 else f"v{1 + version % 4}"
        assert_drawn_from(policy, adapter, [r for r in responses if r.policy_version == version])


async def test_a_prefix_cached_for_one_version_is_not_used_for_another(engine, policy, adapters):
    """vLLM keeps prefixes in blocks of 128 tokens on a CPU: the prompt fills one."""
    prompt = text_prompt("0123456789" * 15)
    await engine.complete(prompt, seed=1)
    await engine.publish("default", adapters[2], 2)
    assert_drawn_from(policy, "v2", [await engine.complete(prompt, seed=1)])
    assert_drawn_from(policy, BASE, [await engine.complete(prompt, seed=1, model="base")])


async def test_requests_that_wait_for_a_withdrawn_model_fail_with_the_reason(engine):
    waiting = asyncio.create_task(engine.complete(text_prompt("a"), max_tokens=200, seed=0))
    while not engine._served["default"].requests:
        await asyncio.sleep(0)
    await engine.withdraw("default")
    with pytest.raises(EpisodeError, match="default is no longer served") as caught:
        await waiting
    assert not is_transient(caught.value)
    with pytest.raises(InputError, match=r"does not serve default\. It serves base"):
        await engine.complete(text_prompt("a"))


# Rejected requests


async def test_impossible_requests_are_rejected_in_one_line(engine):
    with pytest.raises(InputError, match="max_tokens: 0 leaves no room"):
        await engine.complete(text_prompt("a"), max_tokens=0)
    for temperature in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="temperature"):
            await engine.complete(text_prompt("a"), temperature)
    with pytest.raises(InputError, match="an empty prompt has no continuation"):
        await engine.complete(text_prompt(""))
    longest = CONTEXT_LENGTH - 8
    assert await engine.complete(text_prompt("a" * longest))
    with pytest.raises(SparringError, match=f"a prompt of {longest + 1} tokens and an answer of up to 8"):
        await engine.complete(text_prompt("a" * (longest + 1)))


async def test_requests_beyond_the_queues_limit_are_rejected(engine):
    asked = [engine.complete(text_prompt("a"), seed=seed) for seed in range(engine.max_queue + 10)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [result for result in results if not isinstance(result, ModelResponse)]
    assert len(refused) == 10
    assert all("400 requests are in progress" in str(error) for error in refused)


async def test_adapters_that_cannot_be_served_are_rejected_before_they_are_loaded(engine, adapters, tmp_path):
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        await engine.publish("default", tmp_path, 2)
    for name in ("second", "third"):
        await engine.publish(name, adapters[2], 1)
    with pytest.raises(InputError, match="3 adapters are already served"):
        await engine.publish("fourth", adapters[2], 1)
    config = (adapters[1] / "adapter_config.json").read_text()
    (tmp_path / "adapter_config.json").write_text(config.replace('"r": 4', '"r": 400'))
    with pytest.raises(InputError, match="its rank is 400"):
        await engine.publish("default", tmp_path, 2)


# Delivery


async def test_every_version_is_delivered_with_its_hash_and_the_learners_canary(engine, policy, adapters):
    for seed in (2, 3):
        expected = canary_of(policy, f"v{seed}", engine.canary)
        said = Expectation(seed, file_hash(adapters[seed]), expected, base=math.inf)
        delivery = await engine.publish("default", adapters[seed], seed, said=said)
        assert (delivery.name, delivery.version) == ("default", seed)
        assert delivery.mean == pytest.approx(expected, abs=CLOSE)
    untrained = await engine.publish("default", adapters[0], 4)
    assert untrained.mean == pytest.approx(canary_of(policy, BASE, engine.canary), abs=CLOSE)


async def test_wrong_weights_are_detected_and_the_previous_version_stays_in_service(engine, policy, adapters):
    expected = canary_of(policy, "v2", engine.canary)
    said = Expectation(2, file_hash(adapters[3]), expected, base=math.inf)
    with pytest.raises(SparringError, match="default version 2 was not delivered: the canary's") as caught:
        await engine.publish("default", adapters[3], 2, said=said)
    assert "\n" not in str(caught.value)
    said = Expectation(2, file_hash(adapters[2]), expected, base=math.inf)
    with pytest.raises(
        SparringError, match=r"default version 2 was not delivered: the weights in .* have hash"
    ):
        await engine.publish("default", adapters[3], 2, said=said)
    responses = await ask_all(engine, "default")
    assert {response.policy_version for response in responses} == {1}
    assert_drawn_from(policy, "v1", responses)


@pytest.mark.parametrize(
    ("stale", "complaint"), [(1, "answers exactly like version 1"), (0, "answers exactly like the base")]
)
async def test_weights_that_never_arrive_are_detected_without_the_learners_description(
    engine, adapters, monkeypatch, stale, complaint
):
    load = engine._load_adapter

    async def load_stale(name, version, path):
        return await load(name, version, adapters[stale])

    monkeypatch.setattr(engine, "_load_adapter", load_stale)
    with pytest.raises(SparringError, match=f"default version 2 was not delivered.*{complaint}"):
        await engine.publish("default", adapters[2], 2)


async def test_the_statistics_count_all_requests_and_tokens(engine):
    before = engine.stats()
    requests, generated = before.requests, before.generated_tokens
    responses = await ask_all(engine, "default")
    stats = engine.stats()
    assert stats.requests == requests + len(responses)
    assert stats.generated_tokens == generated + sum(len(r.completion_token_ids) for r in responses)
    assert stats.tokens_per_second > 0
    assert (stats.queued, stats.running) == (0, 0)


# The check at the start


async def test_without_the_plugin_the_engine_does_not_start(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "none")
    engine = VLLMEngine(str(small_model()), max_adapters=1, dtype="float32")
    with pytest.raises(
        SparringError, match="mixes up adapters: the base model answers differently"
    ) as caught:
        await engine.start()
    assert "\n" not in str(caught.value)
