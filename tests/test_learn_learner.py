import math

import pytest
import torch

from sparring.core import SparringError, TrainingRecord
from sparring.learn.algorithms import Reinforce
from sparring.learn.batch import pack
from sparring.learn.learner import Learner
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import AVERAGE, BASE, TRAINED, PolicyModel
from sparring.learn.schedules import Schedule
from sparring.learn.trie import build_plan
from tiny_models import algorithm_of, constant, make_record, tiny_policy

RATE = 1e-3
RECORDS = [
    make_record([1, 2, 3], [4, 5], 1.0),
    make_record([1, 2, 3], [4, 6, 7], -1.0),
    make_record([9, 8], [1], 0.5),
]


def make_learner(policy: PolicyModel, rate: float = RATE, **fields) -> Learner:
    return Learner(policy, Reinforce(), constant(rate, **fields))


def sampled_logprobs(policy: PolicyModel, prompt: list[int], completion: list[int]) -> list[float]:
    with torch.no_grad(), policy.adapter(TRAINED):
        return plan_logprobs(policy, build_plan([prompt], [completion])).tolist()


def weights(policy: PolicyModel, name: str = TRAINED) -> dict[str, torch.Tensor]:
    return policy.adapter_state(name)


def assert_equal_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Schedule(1.0, 0.0, 5), [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0]),
        (Schedule(1.0, 0.5, 3), [1.0, 0.75, 0.5, 0.5, 0.5]),
        (Schedule(1.0, 1.0, 10, warmup=3), [0.25, 0.5, 0.75, 1.0, 1.0]),
        (Schedule(0.2, 0.002, 3, geometric=True), [0.2, 0.02, 0.002, 0.002]),
        (Schedule(1.0, 0.0, 3, geometric=True), [1.0, 0.5, 0.0]),
        (Schedule(0.3, 0.1, 1), [0.3]),
    ],
)
def test_schedules_take_these_values(schedule, values):
    assert [schedule.at(step) for step in range(len(values))] == pytest.approx(values)


@pytest.mark.parametrize("ratio", [1.0, 4.0, 0.5])
def test_the_first_update_moves_each_weight_by_its_learning_rate_against_its_gradient(ratio):
    """AdamW without momentum or decay: g / (sqrt(g^2) + eps)."""
    policy = tiny_policy()
    learner = make_learner(policy, grad_clip=1e9, loraplus_ratio=ratio)
    before = weights(policy)
    metrics = learner.update(RECORDS)
    assert metrics["learning_rate"] == pytest.approx(RATE)
    for (name, old), parameter in zip(before.items(), policy.adapter_parameters(), strict=True):
        rate = RATE * ratio if name.endswith("lora_B.weight") else RATE
        expected = old - rate * parameter.grad / (parameter.grad.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_to_a_global_norm_and_the_whole_norm_is_reported():
    policy = tiny_policy()
    free = make_learner(policy, grad_clip=1e9).update(RECORDS)["grad_norm"]
    policy = tiny_policy()
    metrics = make_learner(policy, grad_clip=free / 10).update(RECORDS)
    clipped = torch.stack([p.grad.norm() for p in policy.adapter_parameters()]).norm()
    assert metrics["grad_norm"] == pytest.approx(free, rel=1e-5)
    assert float(clipped) == pytest.approx(free / 10, rel=1e-3)


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_weights(advantage):
    policy = tiny_policy()
    learner, before = make_learner(policy), weights(policy)
    with pytest.raises(SparringError, match="not finite"):
        learner.update([make_record([1], [2], advantage)])
    assert_equal_weights(weights(policy), before)
    assert learner.version == 0


def test_tokens_sampled_by_the_policy_itself_show_no_mismatch():
    policy = tiny_policy()
    logprobs = sampled_logprobs(policy, [1, 2], [3, 4])
    record = make_record([1, 2], [3, 4], logprobs=logprobs)
    assert make_learner(policy, max_mismatch=1e-4).update([record])["mismatch"] < 1e-5


@pytest.mark.parametrize("shift", [0.5, -0.5, math.nan])
@pytest.mark.parametrize("steps", [{}, {"minibatches": 2}, {"epochs": 2}, {"minibatches": 2, "epochs": 2}])
def test_log_probabilities_of_another_model_stop_the_run_and_keep_the_weights(shift, steps):
    policy = tiny_policy()
    learner, before = make_learner(policy, max_mismatch=0.2, **steps), weights(policy)
    logprobs = [logprob + shift for logprob in sampled_logprobs(policy, [1, 2], [3, 4])]
    records = [make_record([1, 2], [3, 4], logprobs=logprobs) for _ in range(2)]
    with pytest.raises(SparringError, match="disagree"):
        learner.update(records)
    assert_equal_weights(weights(policy), before)


@pytest.mark.parametrize("shift", [10.8, -10.8, math.nan])
def test_log_probabilities_of_another_model_are_detected_on_tokens_of_an_older_version(shift):
    policy = tiny_policy()
    learner, before = make_learner(policy, max_mismatch=0.2), weights(policy)
    learner.version = 5
    logprobs = [logprob + shift for logprob in sampled_logprobs(policy, [1, 2], [3, 4])]
    with pytest.raises(SparringError, match="nats per token of older versions"):
        learner.update([make_record([1, 2], [3, 4], logprobs=logprobs, policy_version=4)])
    assert_equal_weights(weights(policy), before)
    assert learner.version == 5


def test_tokens_of_an_older_version_may_differ_by_what_an_update_changes():
    policy = tiny_policy()
    logprobs = sampled_logprobs(policy, [1, 2], [3, 4])
    learner = make_learner(policy, max_mismatch=1e-4)
    learner.version = 5
    record = make_record([1, 2], [3, 4], logprobs=[logprobs[0] - 0.3, logprobs[1]], policy_version=4)
    metrics = learner.update([record])
    assert metrics["stale_mismatch"] == pytest.approx(0.15, rel=1e-3)


@pytest.mark.parametrize(("version", "stale"), [(None, [False, False]), (3, [True, False])])
def test_records_are_stale_if_an_older_version_sampled_them(version, stale):
    records = [make_record([1], [2], policy_version=2), make_record([1], [2], policy_version=3)]
    batch = pack(records, version=version, max_train_len=None, with_answers=False)
    assert batch.stale_R.tolist() == stale


def test_completions_are_cut_at_max_train_len_and_prompts_that_fill_it_are_left_out():
    records = [
        make_record([1, 2], [3, 4, 5, 6], logprobs=[-1.0, -2.0, -3.0, -4.0]),
        make_record([1, 2, 3, 4], [5]),
        make_record([1, 2, 3], [5, 6]),
    ]
    batch = pack(records, version=None, max_train_len=4, with_answers=False)
    assert batch.num_answers == 2
    (plan,) = batch.plans
    assert plan.sample_S.tolist() == [0, 0, 1]
    assert plan.predict_token_C[plan.prediction_S].tolist() == [3, 4, 5]
    assert batch.tokens(plan, torch.device("cpu")).behaviour_S.tolist() == [-1.0, -2.0, 0.0]


def test_a_loss_is_told_by_how_many_answers_advantages_are_divided():
    records = [make_record([1], [2, 3], advantage=3.0), make_record([1], [4]), make_record([1], [5])]
    batch = pack(records, version=None, max_train_len=None, with_answers=False)
    for plan in batch.plans:
        tokens = batch.tokens(plan, torch.device("cpu"))
        assert tokens.num_answers == 3
        advantages = [records[place].advantage for place in tokens.sample_S.tolist()]
        assert (tokens.advantage_S * tokens.num_answers).tolist() == pytest.approx(advantages)


def test_a_batch_in_which_all_prompts_are_too_long_is_rejected():
    with pytest.raises(SparringError, match="max_train_len"):
        make_learner(tiny_policy(), max_train_len=2).update(RECORDS)


@pytest.mark.parametrize("power", [0, 1])
def test_an_average_of_all_updates_weighs_them_by_a_power_of_their_number(power):
    policy = tiny_policy()
    learner = make_learner(policy, 0.1, average_decay=0.99, average_power=power)
    seen = [weights(policy)]
    for _ in range(4):
        learner.update(RECORDS)
        seen.append(weights(policy))
    shares = [(version + 1) ** power for version in range(len(seen))]
    expected = {
        key: sum(share * one[key] for share, one in zip(shares, seen, strict=True)) / sum(shares)
        for key in seen[0]
    }
    torch.testing.assert_close(weights(policy, AVERAGE), expected)


def test_saved_tensors_do_not_change_with_later_updates():
    learner = make_learner(tiny_policy())
    learner.update(RECORDS)
    saved = learner.tensors()
    copies = {key: value.clone() for key, value in saved.items()}
    learner.update(RECORDS)
    assert all(torch.equal(saved[key], copies[key]) for key in saved)


def test_learning_raises_the_probability_of_what_was_rewarded():
    policy = tiny_policy(perturbed=False)
    learner = make_learner(policy)
    good, bad = ([1, 2], [3]), ([1, 2], [4])
    records: list[TrainingRecord] = [make_record(*good, 1.0), make_record(*bad, -1.0)]
    before = [sum(sampled_logprobs(policy, *pair)) for pair in (good, bad)]
    for _ in range(5):
        learner.update(records)
    after = [sum(sampled_logprobs(policy, *pair)) for pair in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]


@pytest.mark.parametrize("nats", [30, 100])
def test_one_token_that_the_policy_has_made_very_unlikely_does_not_dominate_an_update(nats):
    """A weight of e30 would dominate the gradient, and e100 is not finite. Low temperatures cause them."""
    policy, prompt, temperature = tiny_policy(), [1, 2, 3], 1.5 / nats
    plan = build_plan([prompt] * 250, [[token] for token in range(250)])
    logprobs = {}
    for name in (BASE, TRAINED):
        with torch.no_grad(), policy.adapter(name):
            logprobs[name] = plan_logprobs(policy, plan, temperature)
    token = int((logprobs[BASE] - logprobs[TRAINED]).argmax())
    assert logprobs[BASE][token] - logprobs[TRAINED][token] > nats

    learner = Learner(policy, algorithm_of(Reinforce, kl_weight=0.1), constant(RATE, max_mismatch=0.2))
    drawn = float(logprobs[TRAINED][token])
    metrics = learner.update([make_record(prompt, [token], 0.0, logprobs=[drawn], temperature=temperature)])
    assert metrics["kl_to_base"] <= 10
    assert metrics["grad_norm"] == 0.0


def test_a_mismatch_that_was_not_measured_is_not_reported():
    policy = tiny_policy()
    learner = make_learner(policy)
    fresh, stale = make_record([1, 2], [3]), make_record([1, 2], [3], policy_version=-1)
    learner.version = 0
    assert {name for name in learner.update([fresh]) if "mismatch" in name} == {"mismatch"}
    assert {name for name in learner.update([stale]) if "mismatch" in name} == {"stale_mismatch"}
