import asyncio
import functools
import math
from collections import Counter
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_requests import (
    PROMPTS,
    answers,
    ask,
    ask_all,
    assert_logprobs_are_the_learners,
    learner_logprobs,
    make_engine,
    refusal,
)
from matrices import first_of
from sparring.core import EpisodeError, InputError, SparringError, TransientError
from sparring.core.errors import is_transient
from sparring.core.messages import said
from sparring.engine import sampling
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import BASE, TRAINED, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import ARCHITECTURES, CONTEXT_LENGTH, perturb_adapter, text_prompt, tiny_policy


@pytest.fixture(scope="module", params=ARCHITECTURES)
def policy(request) -> PolicyModel:
    return tiny_policy(request.param)


@functools.cache
def shared_policy() -> PolicyModel:
    return tiny_policy("qwen3")


# Log-probabilities and sampling


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
async def test_log_probabilities_equal_the_learners_for_the_same_tokens(policy, temperature):
    responses = await ask_all(make_engine(policy), temperature=temperature)
    assert_logprobs_are_the_learners(policy, responses, temperature=temperature)


async def test_temperature_zero_always_takes_the_likeliest_token(policy):
    responses = await ask_all(make_engine(policy), temperature=0.0)
    assert all(logprob == 0 for r in responses for logprob in r.completion_logprobs)
    for response in responses[:: len(range(6))]:
        context = list(response.prompt_token_ids)
        for token in response.completion_token_ids:
            vocabulary = [[other] for other in range(259)]
            with torch.no_grad(), policy.adapter(TRAINED):
                logprobs_V = plan_logprobs(policy, build_plan([context] * 259, vocabulary))
            assert token == int(logprobs_V.argmax())
            context.append(token)


async def test_different_seeds_sample_independently_from_the_distribution(policy):
    """Chi-square test of 4,000 first tokens after one prompt, with rare tokens in one class."""
    engine, count = make_engine(policy), 4000
    drawn = await asyncio.gather(*(ask(engine, "abc", seed, max_tokens=1) for seed in range(count)))
    counts = Counter(response.completion_token_ids[0] for response in drawn)
    prompt = drawn[0].prompt_token_ids
    with torch.no_grad(), policy.adapter(TRAINED):
        logprobs_V = plan_logprobs(policy, build_plan([prompt] * 259, [[token] for token in range(259)]))
    expected = {token: count * math.exp(logprob) for token, logprob in enumerate(logprobs_V.tolist())}
    common = [token for token in expected if expected[token] >= 10]
    pairs = [(counts[token], expected[token]) for token in common]
    pairs.append((count - sum(seen for seen, _ in pairs), count - sum(wanted for _, wanted in pairs)))
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    degrees = len(pairs) - 1
    assert degrees > 20
    assert chi_square < degrees + 2.6 * math.sqrt(2 * degrees)  # about the 99.5% quantile
    assert engine.stats.computed_tokens == len(prompt)


async def test_later_tokens_do_not_repeat_the_draws_of_earlier_ones(policy):
    engine = make_engine(policy)
    responses = await asyncio.gather(*(ask(engine, "abc", seed, max_tokens=4) for seed in range(300)))
    sequences = {tuple(response.completion_token_ids) for response in responses}
    assert len(sequences) > 290


@pytest.mark.parametrize("together", first_of([True, False]))
async def test_the_same_seed_gives_the_same_answer_whatever_other_requests_there_are(policy, together):
    expected = answers(await ask_all(make_engine(policy)))
    engine = make_engine(policy)
    if together:
        noise = [asyncio.create_task(ask(engine, f"noise {i}", i)) for i in range(30)]
        responses = await ask_all(engine)
        await asyncio.gather(*noise)
    else:
        responses = [await ask(engine, text, seed) for text in PROMPTS for seed in range(6)]
    assert answers(responses) == expected


async def test_without_a_seed_answers_differ_from_call_to_call(policy):
    engine = make_engine(policy)
    texts = {tuple((await ask(engine, "abc", None)).completion_token_ids) for _ in range(5)}
    assert len(texts) > 1


@pytest.mark.parametrize("seed", [-1, 2**64, 2**63 - 1])
async def test_any_integer_is_a_seed(policy, seed):
    engine = make_engine(policy)
    first, second = await ask(engine, "abc", seed), await ask(engine, "abc", seed)
    assert first.completion_token_ids == second.completion_token_ids


# Ends of answers


async def test_an_answer_ends_with_a_stop_token_or_at_the_limit(policy):
    responses = await ask_all(make_engine(policy), range(60), temperature=1.2)
    (stop,) = policy.stop_token_ids
    decode = functools.partial(policy.tokenizer.decode, skip_special_tokens=True)
    for response in responses:
        tokens = response.completion_token_ids
        if response.finish_reason == "stop":
            assert tokens.index(stop) == len(tokens) - 1
            assert decode(tokens[:-1]) == response.text
        else:
            assert (response.finish_reason, len(tokens)) == ("length", 8)
            assert stop not in tokens
            assert decode(tokens) == response.text
        assert len(response.completion_logprobs) == len(tokens)
        assert response.completion == [said("assistant", response.text, tokens)]
    assert {response.finish_reason for response in responses} == {"stop", "length"}


async def test_a_stop_token_that_is_not_special_is_not_in_the_text():
    policy = tiny_policy()
    vocabulary = policy.tokenizer.get_vocab()
    policy.stop_token_ids = [id for token, id in vocabulary.items() if token.isalpha() and token.isascii()]
    engine = make_engine(policy, max_tokens=40)
    responses = [await ask(engine, "abc", seed) for seed in range(10)]
    assert {response.finish_reason for response in responses} == {"stop"}
    for response in responses:
        *tokens, stop = response.completion_token_ids
        assert stop in policy.stop_token_ids
        assert response.text == policy.tokenizer.decode(tokens)
        assert not any(letter.isalpha() and letter.isascii() for letter in response.text)


async def test_a_call_may_set_its_own_limit(policy):
    engine = make_engine(policy)
    long, short = await asyncio.gather(ask(engine, "abc", 1), ask(engine, "abc", 1, max_tokens=3))
    assert short.completion_token_ids == long.completion_token_ids[:3]
    assert short.finish_reason == "length"


async def test_tokens_are_omitted_if_they_are_not_requested(policy):
    response = await ask(make_engine(policy), "abc", 1, return_tokens=False)
    assert response.prompt_token_ids is response.completion_token_ids is response.completion_logprobs is None


# Scoring


async def test_scores_equal_the_learners_log_probabilities_of_whole_answers(policy):
    engine = make_engine(policy)
    engine.publish(BASE, BASE, 0)
    texts = ["check", "call", "c", ""]
    for model, adapter in ((None, TRAINED), (BASE, BASE)):
        scores = await engine.score(text_prompt("rules"), texts, model=model)
        plan = build_plan(
            [policy.render(text_prompt("rules"))] * 4,
            [policy.encode_answer(text_prompt("rules"), text) for text in texts],
        )
        with torch.no_grad(), policy.adapter(adapter):
            logprobs_S = plan_logprobs(policy, plan)[torch.from_numpy(plan.prediction_S)]
        expected = torch.zeros(4).index_add(0, torch.from_numpy(plan.sample_S), logprobs_S)
        assert scores == pytest.approx(expected.tolist(), abs=5e-5)


# Given answers

GIVEN = ["check", "call", "c", ""]


async def give_all(engine, **options):
    asked = (engine.give(text_prompt(prompt), text, **options) for prompt in PROMPTS for text in GIVEN)
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_a_given_answer_has_the_tokens_and_the_learners_log_probabilities(policy, temperature):
    responses = await give_all(make_engine(policy), temperature=temperature)
    assert_logprobs_are_the_learners(policy, responses, temperature=temperature)
    asked = [(text_prompt(prompt), text) for prompt in PROMPTS for text in GIVEN]
    for response, (prompt, text) in zip(responses, asked, strict=True):
        ids = policy.encode_answer(prompt, text)
        assert (response.prompt_token_ids, response.completion_token_ids) == (policy.render(prompt), ids)
        assert (response.text, response.finish_reason) == (text, "stop")
        assert response.completion == [said("assistant", text, ids)]


async def test_answers_that_are_drawn_beside_given_ones_stay_the_same(policy):
    expected = answers(await ask_all(make_engine(policy)))
    engine = make_engine(policy)
    given, drawn = await asyncio.gather(give_all(engine), ask_all(engine))
    assert answers(drawn) == expected
    assert engine.stats.requests == len(given) + len(drawn)
    assert engine.stats.generated_tokens == sum(len(r.completion_token_ids) for r in [*given, *drawn])
    computed = engine.stats.computed_tokens
    assert answers(await give_all(engine)) == answers(given)
    assert engine.stats.computed_tokens == computed, "its context is cached as that of a drawn answer"


async def test_a_given_answer_that_could_not_be_drawn_is_one_line(policy):
    engine, prompt = make_engine(policy), text_prompt("abc")
    size = len(policy.render(prompt)) + len(policy.encode_answer(prompt, "checks"))
    assert (await make_engine(policy, max_context=size).give(prompt, "checks")).text == "checks"
    small = make_engine(policy, max_context=size - 1)
    assert f"exceed the context of {size - 1}" in await refusal(small.give(prompt, "checks"))
    assert "only the likeliest answer" in await refusal(engine.give(prompt, "c", temperature=0.0))


async def test_a_given_answer_may_be_longer_than_one_that_is_drawn(policy):
    engine, prompt = make_engine(policy, max_tokens=6), text_prompt("abc")
    long = await engine.give(prompt, "checks")
    assert long.completion_token_ids == policy.encode_answer(prompt, "checks")
    assert (len(long.completion_token_ids), long.finish_reason) == (7, "stop")


# What is computed


async def test_a_prompt_is_computed_once_for_any_number_of_requests(policy):
    engine = make_engine(policy)
    responses = await asyncio.gather(*(ask(engine, "rules rules", seed, max_tokens=3) for seed in range(50)))
    prompt = responses[0].prompt_token_ids
    fed = {tuple(r.completion_token_ids[:length]) for r in responses for length in (1, 2)}
    fed = {tokens for tokens in fed if policy.stop_token_ids[0] not in tokens}
    assert engine.stats.computed_tokens == len(prompt) + len(fed)
    assert engine.stats.forward_passes == 3
    assert engine.stats.requests == 50
    assert engine.stats.generated_tokens == sum(len(r.completion_token_ids) for r in responses)
    await ask(engine, "rules rules", 0, max_tokens=3)
    assert engine.stats.forward_passes == 3


async def test_all_waiting_requests_are_computed_together(policy):
    engine = make_engine(policy, max_tokens=4)
    await asyncio.gather(*(ask(engine, f"prompt {i}", i) for i in range(40)))
    assert engine.stats.forward_passes == 4


@pytest.mark.parametrize("options", first_of([{"max_cached_tokens": 40}, {"max_batch_tokens": 3}]))
async def test_small_batches_and_small_caches_give_the_same_answers(policy, options):
    expected = await ask_all(make_engine(policy))
    engine = make_engine(policy, **options)
    for _ in range(2):
        responses = await ask_all(engine)
        assert answers(responses) == answers(expected)
        assert_logprobs_are_the_learners(policy, responses)
    if "max_cached_tokens" in options:
        assert engine.stats.computed_tokens > 2 * sum(map(len, PROMPTS))


async def test_dropped_logits_are_computed_again(policy, monkeypatch):
    expected = answers(await ask_all(make_engine(policy)))
    monkeypatch.setattr(sampling, "STORED_LOGITS_BYTES", 1)
    engine = make_engine(policy)
    for _ in range(2):
        responses = await ask_all(engine)
        assert answers(responses) == expected
        assert_logprobs_are_the_learners(policy, responses)


async def test_forgotten_prompts_are_rendered_again(policy, monkeypatch):
    expected = answers(await ask_all(make_engine(policy)))
    monkeypatch.setattr("sparring.core.chat_tokens.MAX_RENDERED_CHARACTERS", 3)
    assert answers(await ask_all(make_engine(policy))) == expected


requests = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=6),
        st.integers(0, 5),  # seed
        st.integers(1, 5),  # max_tokens
        st.sampled_from([0.0, 0.7, 1.0]),
        st.sampled_from(["default", BASE]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(requests, st.integers(11, 40), st.integers(1, 20), st.sampled_from([1, 600, 2**20]))
def test_each_request_in_any_mixture_gets_the_answer_that_it_gets_alone(
    asked, max_cached_tokens, max_batch_tokens, stored
):
    policy = shared_policy()

    async def answer(engine: EmbeddedEngine, request) -> tuple[list[int], str, str]:
        text, seed, max_tokens, temperature, model = request
        options = {"max_tokens": max_tokens, "temperature": temperature, "model": model}
        return answers([await ask(engine, text, seed, **options)])[0]

    async def answer_together() -> tuple[list[tuple[list[int], str, str]], int]:
        engine = make_engine(policy, max_cached_tokens=max_cached_tokens, max_batch_tokens=max_batch_tokens)
        engine.publish(BASE, BASE, 0)
        together = await asyncio.gather(*(answer(engine, request) for request in asked))
        return together, engine.stats.most_cached_tokens

    async def answer_alone(request) -> tuple[list[int], str, str]:
        engine = make_engine(policy)
        engine.publish(BASE, BASE, 0)
        return await answer(engine, request)

    with patch.object(sampling, "STORED_LOGITS_BYTES", stored):
        together, most_cached_tokens = asyncio.run(answer_together())
    assert most_cached_tokens <= max_cached_tokens
    assert together == [asyncio.run(answer_alone(request)) for request in asked]


# Versions


async def test_a_published_version_answers_all_later_requests():
    policy = tiny_policy()
    engine = make_engine(policy)
    before = await ask_all(engine)
    perturb_adapter(policy, seed=5)
    engine.publish("default", TRAINED, 1)
    after = await ask_all(engine)
    assert [r.policy_version for r in before + after] == [0] * len(before) + [1] * len(after)
    assert answers(before) != answers(after)
    assert_logprobs_are_the_learners(policy, after)
    assert await engine.get_policy_version() == 1


async def test_requests_in_progress_continue_with_a_version_published_meanwhile():
    policy = tiny_policy()
    engine = make_engine(policy)
    tasks = [asyncio.create_task(ask(engine, text, 1)) for text in PROMPTS]
    while engine.stats.forward_passes < 3:
        await asyncio.sleep(0)
    perturb_adapter(policy, "old", seed=1)  # the adapter of tiny_policy
    perturb_adapter(policy, seed=5)
    engine.publish("default", TRAINED, 1)
    responses = await asyncio.gather(*tasks)

    old = learner_logprobs(policy, responses, "old")
    new = learner_logprobs(policy, responses, TRAINED)
    long = [i for i, response in enumerate(responses) if len(response.completion_token_ids) == 8]
    assert long
    for i in long:
        expected = old[i][:2] + new[i][2:]  # no token of the third pass had been sampled yet
        assert responses[i].completion_logprobs == pytest.approx(expected, abs=2e-5)
        assert responses[i].policy_version == 0


async def test_contexts_may_be_forgotten_while_requests_are_in_progress(policy):
    expected = answers(await ask_all(make_engine(policy)))
    engine = make_engine(policy)
    task = asyncio.create_task(ask_all(engine))
    for passes in (1, 4):
        while engine.stats.forward_passes < passes:
            await asyncio.sleep(0)
        engine.forget_contexts()
    assert answers(await task) == expected


# Several models


async def serve_three(policy: PolicyModel) -> EmbeddedEngine:
    perturb_adapter(policy, "frozen", seed=4)
    engine = make_engine(policy)
    engine.publish(BASE, BASE, 0)
    engine.publish("frozen", "frozen", 7)
    return engine


async def test_adapters_in_one_batch_give_the_same_answers_as_alone(policy):
    alone = {}
    for name in ("default", BASE, "frozen"):
        alone[name] = answers(await ask_all(await serve_three(policy), model=name))
    assert alone["default"] != alone[BASE] != alone["frozen"] != alone["default"]
    engine = await serve_three(policy)
    tasks = {name: asyncio.create_task(ask_all(engine, model=name)) for name in alone}
    for name, task in tasks.items():
        responses = await task
        assert answers(responses) == alone[name]
        assert_logprobs_are_the_learners(policy, responses, name=name)
        assert {r.policy_version for r in responses} == {7 if name == "frozen" else 0}


async def test_a_frozen_copy_keeps_answering_while_the_trained_adapter_changes():
    policy = tiny_policy()
    engine = make_engine(policy)
    policy.load_adapter_state(policy.adapter_state(), "copy")
    engine.publish("copy", "copy", 0)
    expected = answers(await ask_all(engine, model="copy"))
    assert answers(await ask_all(engine)) == expected
    perturb_adapter(policy, seed=6)
    engine.publish("default", TRAINED, 1)
    engine.forget_contexts()
    assert answers(await ask_all(engine, model="copy")) == expected
    assert answers(await ask_all(engine)) != expected


async def test_withdrawing_a_model_ends_its_requests_for_good_and_makes_its_name_unknown(policy):
    engine = await serve_three(policy)
    task = asyncio.create_task(ask(engine, "abc", 1, model="frozen"))
    other = asyncio.create_task(ask(engine, "abc", 1))
    while engine.stats.forward_passes < 2:
        await asyncio.sleep(0)
    engine.withdraw("frozen")
    with pytest.raises(EpisodeError, match="frozen is no longer served") as caught:
        await task
    assert not is_transient(caught.value)
    assert len((await other).completion_token_ids) > 0
    with pytest.raises(InputError, match="does not serve frozen"):
        await ask(engine, "abc", 1, model="frozen")
    assert engine.names() == ["default", BASE]


async def test_requests_to_an_engine_that_is_closed_may_be_tried_elsewhere(policy):
    engine = await serve_three(policy)
    tasks = [asyncio.create_task(ask(engine, "abc", 1, model=name)) for name in (TRAINED, BASE)]
    while engine.stats.forward_passes < 2:
        await asyncio.sleep(0)
    engine.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(type(error), str(error)) for error in found] == 2 * [(TransientError, "the engine was closed")]
    assert engine.names() == []


# Rejected requests


async def test_the_error_for_an_unknown_model_names_the_known_ones(policy):
    engine = await serve_three(policy)
    with pytest.raises(InputError, match=r"nobody.*default, base, frozen"):
        await ask(engine, "abc", 1, model="nobody")


async def test_requests_that_exceed_the_context_are_rejected(policy):
    engine = make_engine(policy, max_context=20)
    assert (await ask(engine, "x" * 12, 1)).prompt_token_ids
    assert "exceed the context of 20" in await refusal(ask(engine, "x" * 13, 1))
    assert "exceed the context of 20" in await refusal(ask(engine, "x" * 11, 1, max_tokens=10))
    assert "exceed the context of 20" in await refusal(engine.score(text_prompt("x"), ["y" * 20]))


async def test_the_context_is_limited_by_the_model_and_by_the_cache(policy):
    assert make_engine(policy).max_context == CONTEXT_LENGTH
    assert make_engine(policy, max_context=10_000).max_context == CONTEXT_LENGTH
    assert make_engine(policy, max_cached_tokens=64).max_context == 64


async def test_a_full_queue_rejects_further_requests_and_serves_the_others(policy):
    engine = make_engine(policy, max_queue=5)
    results = await asyncio.gather(*(ask(engine, "abc", seed) for seed in range(7)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, SparringError)]
    assert len(refused) == 2
    assert "5 requests are in progress" in str(refused[0])
    assert (await ask(engine, "abc", 1)).completion_token_ids


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
async def test_impossible_temperatures_are_rejected(policy, temperature):
    assert "temperature" in await refusal(ask(make_engine(policy), "abc", 1, temperature=temperature))


async def test_empty_prompts_and_answers_without_tokens_are_rejected(policy):
    engine = make_engine(policy)
    assert "max_tokens" in await refusal(ask(engine, "abc", 1, max_tokens=0))
    assert "messages" in await refusal(ask(engine, "", 1))


# Failures


@pytest.mark.parametrize("failing_pass", [1, 3])
async def test_a_failed_forward_pass_fails_all_its_requests_and_the_engine_continues(
    monkeypatch, failing_pass
):
    policy = tiny_policy()
    expected = answers(await ask_all(make_engine(policy)))
    engine = make_engine(policy)
    engine.publish("other", BASE, 0)
    layers = policy.model.get_base_model().model.layers
    original, passes = layers[1].forward, 0

    def failing(*args, **kwargs):
        nonlocal passes
        passes += 1
        if passes == failing_pass:
            raise RuntimeError("out of memory")
        return original(*args, **kwargs)

    monkeypatch.setattr(layers[1], "forward", failing)
    asked = [ask(engine, text, 1, model=name) for text in PROMPTS for name in ("default", "other")]
    results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout=60)
    assert all(isinstance(result, SparringError) for result in results)
    assert "out of memory" in str(results[0])
    assert answers(await ask_all(engine)) == expected


async def test_weights_that_are_not_numbers_are_reported():
    policy = tiny_policy()
    engine = make_engine(policy)
    broken = {key: torch.full_like(value, math.nan) for key, value in policy.adapter_state().items()}
    policy.load_adapter_state(broken)
    assert "not numbers" in await refusal(ask(engine, "abc", 1))


async def test_a_score_that_is_rejected_half_way_leaves_no_requests_behind(policy):
    engine = make_engine(policy, max_queue=2)
    assert "2 requests are in progress" in await refusal(engine.score(text_prompt("rules"), ["a", "b", "c"]))
    while len(asyncio.all_tasks()) > 1:  # until the engine has nothing left to do
        await asyncio.sleep(0)
    assert engine.stats.forward_passes == 0
    assert len(await engine.score(text_prompt("rules"), ["a", "b"])) == 2
    assert engine.running == 0


@pytest.mark.parametrize("passes", [0, 2])
async def test_cancelled_requests_do_not_block_the_others(policy, passes):
    expected = answers(await ask_all(make_engine(policy), range(1)))
    engine = make_engine(policy, max_cached_tokens=40)
    # They are cancelled before anything is computed, or after their last token is computed but not sampled.
    cancelled = [asyncio.create_task(ask(engine, f"other {i}", i, max_tokens=2)) for i in range(10)]
    kept = asyncio.create_task(ask_all(engine, range(1)))
    await asyncio.sleep(0)
    while engine.stats.forward_passes < passes:
        await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    assert answers(await asyncio.wait_for(kept, timeout=60)) == expected
    results = await asyncio.gather(*cancelled, return_exceptions=True)
    assert any(isinstance(result, asyncio.CancelledError) for result in results)


async def test_waiting_requests_fail_if_the_engine_is_cancelled(policy):
    engine = make_engine(policy)
    waiting = asyncio.create_task(ask(engine, "abc", 1))
    while engine.stats.forward_passes < 2:
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
        task.cancel()
    with pytest.raises(SparringError, match="cancelled"):
        await waiting
    assert (await ask(engine, "abc", 1)).completion_token_ids


def test_an_engine_outlives_an_event_loop(policy):
    engine = make_engine(policy)

    async def abandoned():
        task = asyncio.create_task(ask(engine, "abc", 1))
        while engine.stats.forward_passes < 2:
            await asyncio.sleep(0)
        return task

    asyncio.run(abandoned())
    response = asyncio.run(ask(engine, "abc", 1))
    assert answers([response]) == answers([asyncio.run(ask(make_engine(policy), "abc", 1))])
