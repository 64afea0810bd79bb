"""The description that the learner writes of an adapter, and how an engine checks the adapter against it."""

import asyncio
import gc
import json
import math
import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.core import InputError, SparringError
from sparring.core.adapters import DELIVERY_FILE, MANIFEST_FILE
from sparring.core.manifest import CANARY_TEXT, MAX_CANARY_TOKENS, Expectation
from sparring.engine.adapters import (
    TOLERANCES,
    Delivery,
    DeliveryError,
    changes_nothing,
    check_delivery,
    file_hash,
    tolerance_of,
)
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.checkpoints import canary_tokens, save_adapter, write_delivery
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.model_files import load_chat_tokens
from sparring.learn.policy import BASE, TRAINED
from sparring.learn.trie import build_plan
from tiny_models import ARCHITECTURES, CONTEXT_LENGTH, text_prompt, tiny_policy

BASE_DELIVERY = Delivery("base", 0, "", (-1.0, -2.0))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def policy(request):
    return tiny_policy(request.param)


@pytest.fixture
def saved(policy, tmp_path):
    save_adapter(tmp_path / "000012", policy, "tiny")
    write_delivery(tmp_path / "000012", policy, TRAINED, 12)
    return tmp_path / "000012"


def learners(policy, ids: list[int], adapter: str) -> list[float]:
    plan = build_plan([ids[:1]], [ids[1:]])
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan)
    return [float(logprobs_C[prediction]) for prediction in plan.prediction_S]


def check(delivery: Delivery, canary: float | None = None, base: float = -9.0, **given_) -> None:
    """Check a delivery whose learner has described it by a canary, and the base model by another."""
    said = None if canary is None else Expectation(delivery.version, delivery.sha256, canary, base)
    usual = {"before": None, "changes_nothing": False, "tolerance": 0.1}
    check_delivery(delivery, said, base=BASE_DELIVERY, **(usual | given_))


# Writing the description


async def test_the_engine_finds_what_the_learner_has_described(policy, saved):
    said = Expectation.read(saved)
    assert said is not None
    assert (said.version, said.sha256) == (12, file_hash(saved))
    engine = EmbeddedEngine(policy)
    engine.publish("default", TRAINED, 12)
    logprobs = engine.logprobs(canary_tokens(policy))
    assert said.canary == pytest.approx(sum(logprobs) / len(logprobs), abs=1e-5)
    assert sorted(path.name for path in saved.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        DELIVERY_FILE,
        MANIFEST_FILE,
    ]


def test_a_model_is_not_kept_in_memory_after_its_adapter_is_written(tmp_path):
    model = tiny_policy()
    save_adapter(tmp_path, model, "tiny")
    write_delivery(tmp_path, model, TRAINED, 1)
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


def test_different_adapters_have_different_canaries(policy, saved):
    write_delivery(saved, policy, BASE, 13)
    said = Expectation.read(saved)
    ids = canary_tokens(policy)
    assert said.canary == pytest.approx(sum(learners(policy, ids, BASE)) / (len(ids) - 1), abs=1e-5)
    assert said.canary != pytest.approx(sum(learners(policy, ids, TRAINED)) / (len(ids) - 1), abs=1e-2)


def test_the_canarys_tokens_are_those_of_vllms_engine(policy):
    ids = load_chat_tokens(policy.model_name).encode(CANARY_TEXT)[:MAX_CANARY_TOKENS]
    assert canary_tokens(policy) == ids
    assert len(ids) > 10


def test_an_adapter_without_a_description_has_no_expectation(tmp_path):
    assert Expectation.read(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 12, "sha256": "ab"}',
        '{"version": 12, "sha256": "ab", "canary": -1.0}',
        '{"version": "12", "sha256": "ab", "canary": -1.0, "base": -1.0}',
        '{"version": 12, "sha256": 5, "canary": -1.0, "base": -1.0}',
        '{"version": 12, "sha256": "ab", "canary": NaN, "base": -1.0}',
        '{"version": 12, "sha256": "ab", "canary": -1.0, "base": NaN}',
        '{"version": true, "sha256": "ab", "canary": -1.0, "base": -1.0}',
    ],
)
def test_the_error_for_a_damaged_description_is_one_line_that_names_the_file(tmp_path, text):
    (tmp_path / DELIVERY_FILE).write_text(text)
    with pytest.raises(InputError, match=r"delivery\.json is damaged") as caught:
        Expectation.read(tmp_path)
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
said_things = st.fixed_dictionaries({}, optional=dict.fromkeys(("version", "sha256", "canary"), json_values))


@settings(deadline=None)
@given(st.binary(max_size=60) | said_things.map(lambda said: json.dumps(said).encode()))
def test_any_content_of_the_file_gives_an_expectation_or_an_error(tmp_path_factory, content):
    directory = tmp_path_factory.mktemp("said")
    (directory / DELIVERY_FILE).write_bytes(content)
    try:
        said = Expectation.read(directory)
    except InputError:
        return
    assert isinstance(said, Expectation)
    assert math.isfinite(said.canary)
    assert isinstance(said.version, int)


# Checking an adapter


def test_an_adapter_that_answers_like_the_base_is_not_delivered_unless_it_changes_nothing():
    alike = Delivery("default", 3, "ab", BASE_DELIVERY.canary)
    with pytest.raises(DeliveryError, match=r"default version 3 was not delivered: .* like the base model"):
        check(alike)
    check(alike, changes_nothing=True)


def test_new_weights_must_answer_differently_from_the_previous_version():
    before = Delivery("default", 2, "ab", (-3.0, -4.0))
    with pytest.raises(DeliveryError, match="exactly like version 2"):
        check(Delivery("default", 3, "cd", before.canary), before=before)
    check(Delivery("default", 3, "ab", before.canary), before=before)
    check(Delivery("default", 3, "cd", (-3.0, -4.1)), before=before)


@pytest.mark.parametrize(
    ("expected", "delivered"), [(-3.5, True), (-3.41, True), (-3.3, False), (-3.7, False)]
)
def test_the_canary_must_equal_the_learners_up_to_rounding(expected, delivered):
    new = Delivery("default", 3, "cd", (-3.0, -4.0))
    if delivered:
        check(new, canary=expected)
        return
    with pytest.raises(DeliveryError, match=r"the canary's log-probability is -3\.5000 per token"):
        check(new, canary=expected)


def test_an_adapter_whose_canary_is_not_a_number_is_not_delivered():
    with pytest.raises(DeliveryError):
        check(Delivery("default", 3, "cd", (math.nan, -4.0)), canary=-3.5)


def test_an_adapter_changes_nothing_until_it_is_trained(policy, saved, tmp_path):
    untrained = tiny_policy(perturbed=False)
    save_adapter(tmp_path / "untrained", untrained, "tiny")
    assert changes_nothing(tmp_path / "untrained")
    assert not changes_nothing(saved)


def test_missing_and_damaged_files_are_named(saved):
    (saved / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is damaged"):
        changes_nothing(saved)
    (saved / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        file_hash(saved)


def test_the_error_can_be_sent_between_processes():
    error = pickle.loads(pickle.dumps(DeliveryError("default", 12, "it differs")))
    assert str(error) == "default version 12 was not delivered: it differs"
    assert (error.name, error.version, error.problem) == ("default", 12, "it differs")
    assert isinstance(error, SparringError)


def test_every_type_of_weights_has_a_tolerance():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert tolerance_of(dtype) == TOLERANCES[str(dtype).removeprefix("torch.")]


# EmbeddedEngine.logprobs


@pytest.mark.parametrize("max_batch_tokens", [2048, 7])
async def test_log_probabilities_of_given_tokens_equal_the_learners(policy, max_batch_tokens):
    engine = EmbeddedEngine(policy, max_batch_tokens=max_batch_tokens)
    engine.publish("default", TRAINED, 1)
    engine.publish("base", BASE, 0)
    ids = canary_tokens(policy)
    for model, adapter in (("default", TRAINED), ("base", BASE)):
        assert engine.logprobs(ids, model=model) == pytest.approx(learners(policy, ids, adapter), abs=2e-5)


async def test_computing_log_probabilities_of_given_tokens_does_not_change_other_answers(policy):
    async def answers(engine: EmbeddedEngine, canaries: int) -> list[float]:
        engine.publish("default", TRAINED, 1)
        asked = asyncio.ensure_future(engine.complete(text_prompt("abc"), max_tokens=20, seed=1))
        for _ in range(canaries):
            await asyncio.sleep(0)
            engine.logprobs(canary_tokens(policy))
        return (await asked).completion_logprobs

    assert await answers(EmbeddedEngine(policy), 3) == await answers(EmbeddedEngine(policy), 0)


async def test_too_many_tokens_are_rejected_and_one_token_has_no_log_probabilities(policy):
    engine = EmbeddedEngine(policy, max_context=8)
    engine.publish("default", TRAINED, 1)
    assert engine.logprobs([5]) == []
    assert len(engine.logprobs([5] * CONTEXT_LENGTH)) == CONTEXT_LENGTH - 1
    with pytest.raises(SparringError, match=f"{CONTEXT_LENGTH + 1} tokens exceed the model's context"):
        engine.logprobs([5] * (CONTEXT_LENGTH + 1))
    with pytest.raises(InputError, match="does not serve other"):
        engine.logprobs([5, 6], model="other")


# Updates too small to be visible


def is_delivered(delivery: Delivery, **given_) -> bool:
    try:
        check(delivery, **given_)
    except DeliveryError:
        return False
    return True


@pytest.mark.parametrize(("canary", "delivered"), [(-1.5001, True), (-1.45, False)])
def test_a_first_update_must_be_visible_if_the_learner_measured_a_change(canary, delivered):
    """With a low learning rate, the first updates of a 16-bit model do not change its outputs."""
    unchanged = Delivery("default", 1, "a", BASE_DELIVERY.canary, canary)
    assert is_delivered(unchanged, canary=canary, base=-1.5) == delivered


@pytest.mark.parametrize(("canary", "delivered"), [(-1.4502, True), (-1.40, False)])
def test_an_update_must_be_visible_if_the_learner_measured_a_change(canary, delivered):
    before = Delivery("default", 1, "a", (-1.0, -1.9), -1.4501)
    unchanged = Delivery("default", 2, "b", before.canary)
    assert is_delivered(unchanged, canary=canary, base=-1.5, before=before) == delivered
