"""What a job sends to a service with Tinker's API. tests/with_tinker trains with its SDK."""

import json
from types import SimpleNamespace

import pytest

from sparring.finetune.jobs.schema import TinkerHyperparameters
from sparring.finetune.tinker_plan import TinkerPlan
from sparring.learn.fine_tuning.examples import Renderer, WrongLine
from sparring.learn.model_files import load_chat_tokens
from tiny_models import tiny_model

TYPES = SimpleNamespace(
    Datum=SimpleNamespace, ModelInput=SimpleNamespace(from_ints=list), AdamParams=SimpleNamespace
)


@pytest.fixture(scope="module")
def renderer():
    return Renderer(load_chat_tokens(str(tiny_model("llama"))), 256)


def talk(*answers, **last):
    """A conversation with these answers."""
    messages = []
    for answer in answers:
        messages.append({"role": "user", "content": "play"})
        messages.append({"role": "assistant", "content": answer})
    messages[-1] |= last
    return messages


def plan_of(renderer, *talks, **given):
    content = b"\n".join(json.dumps({"messages": one}).encode() for one in talks)
    return TinkerPlan.of(content, renderer, TinkerHyperparameters(**given).settings(3))


def learned(renderer, datum):
    """The text whose tokens have a weight, and the ends of turns in it."""
    pairs = zip(datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["weights"], strict=True)
    ids = [token for token, weight in pairs if weight]
    ends = renderer.tokens.stop_token_ids
    return renderer.tokens.decode(ids), sum(one in ends for one in ids)


def test_a_conversation_is_sent_once_and_only_what_the_model_said_has_a_weight(renderer):
    one = talk("yes", "no", "maybe", weight=0)
    (datum,) = plan_of(renderer, one, n_epochs=1).data(0, TYPES)
    assert learned(renderer, datum) == ("yesno", 2)
    assert sum(datum.loss_fn_inputs["weights"]) == pytest.approx(1)
    whole = [*renderer.tokens.render(one[:3]), *renderer.tokens.encode_answer(one[:3], "no")]
    assert [*datum.model_input, datum.loss_fn_inputs["target_tokens"][-1]] == whole
    assert datum.model_input[1:] == datum.loss_fn_inputs["target_tokens"][:-1]


def test_an_epoch_has_every_conversation_once_and_the_weights_of_a_step_sum_to_one(renderer):
    answers = [f"move {number}" for number in range(5)]
    plan = plan_of(renderer, *map(talk, answers), n_epochs=2, batch_size=2)
    steps = [plan.data(step, TYPES) for step in range(plan.steps)]
    assert [len(one) for one in steps] == [2, 2, 1] * 2
    for epoch in (steps[:3], steps[3:]):
        assert sorted(learned(renderer, datum)[0] for step in epoch for datum in step) == answers
    for step in steps:
        assert sum(sum(one.loss_fn_inputs["weights"]) for one in step) == pytest.approx(1)


def test_a_conversation_that_is_too_long_is_named_by_its_line(renderer):
    with pytest.raises(WrongLine, match=r"^line 2: "):
        plan_of(renderer, talk("yes"), talk("no " * 300))


def test_the_learning_rate_rises_and_falls_as_in_jobs_of_our_own_server(renderer):
    plan = plan_of(renderer, *map(talk, "abcde"), n_epochs=4, batch_size=1, learning_rate_multiplier=2)
    rates = [plan.adam(step, TYPES).learning_rate for step in range(plan.steps)]
    assert max(rates) == rates[2] == pytest.approx(4e-4)
    assert rates[:3] == sorted(rates[:3])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] > 0
