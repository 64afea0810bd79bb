"""Policies of one run that learn in different ways: one with a critic, another from a baseline."""

import math
import shutil

import pytest

from core_programs import played
from game_runs import cut_back, metrics_of, resumed
from program_runs import adapter
from seat_runs import MIXED, critics_advantages
from sparring.collection.buffers import EpisodeBuffer, StepBuffer
from sparring.collection.rollout_log import BatchLog
from sparring.collection.transforms import NormalizeRewards, SamplingRewardTransform
from sparring.config import load_config
from sparring.core import CreditAssigner, InputError, ReinforcePPCredit, Step, Trajectory
from sparring.core.credit.assigners import assign
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.algorithms.reinforce import A2c
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.assembly import build_learner
from sparring.run.programs import build_program
from sparring.run.rewards import build_buffer
from tiny_models import tiny_model


def dotted(changes):
    return {name.replace("__", "."): value for name, value in changes.items()}


def test_critic_and_steps_of_a_policy_reach_its_learner_alone():
    config = load_config("quickstart", dotted(MIXED) | {"learning.epochs": "2", "learning.minibatches": "4"})
    base = PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0), policies=config.policies)
    first, second = (build_learner(config, base, name) for name in config.policies)
    assert isinstance(first.algorithm, Magnet)
    assert isinstance(second.algorithm, A2c)
    assert [(one.settings.epochs, one.settings.minibatches) for one in (first, second)] == [(3, 1), (2, 2)]
    assert first.critic is None
    assert second.critic is not None
    assert second.critic.settings.gae_lambda == 0.5


class LeavesOutTheLast(SamplingRewardTransform):
    def __call__(self, steps):
        return steps[:-1]


def advantages(buffer, played):
    """Return the advantages of steps by policy and reward, as a buffer gives them."""
    for policy, reward in played:
        step = Step("player_0", [], [], [1], [2], [-0.1], policy=policy)
        buffer.add_player_trajectory(Trajectory(0, "kuhn", reward, [step]), "kuhn")
    return {(one.policy, one.reward): one.advantage for one in buffer.draw(None)}


@pytest.mark.parametrize("cls", [StepBuffer, EpisodeBuffer])
def test_only_policies_without_a_critic_are_seen_by_a_sampling_transform(cls):
    played = [("first", 1.0), ("second", 50.0), ("first", 3.0), ("second", -50.0)]
    judged = {("second", 50.0): 50.0, ("second", -50.0): -50.0}

    def found(transform, *critics):
        buffer = cls(9, sampling_reward_transformation=transform, critics=frozenset(critics))
        return advantages(buffer, played)

    assert found(NormalizeRewards(), "second") == {("first", 1.0): -1.0, ("first", 3.0): 1.0} | judged
    left = found(LeavesOutTheLast(), "second")
    assert len(left) == 3
    assert left.items() >= judged.items()
    assert len(found(LeavesOutTheLast(), "first", "second")) == 4, "there is nothing for the transform"


def test_the_configured_baseline_is_that_of_the_other_policies_and_keeps_its_memory():
    config = load_config("quickstart", dotted(MIXED) | {"credit": '{type = "rae", decay = 0.5}'})
    buffer, again = build_buffer(config, None, None), build_buffer(config, None, None)
    played = [(policy, 1.0) for policy in config.policies]
    assert advantages(buffer, played) == {("first", 1.0): 1.0, ("second", 1.0): 1.0}
    assert advantages(buffer, played) == {("first", 1.0): 0.5, ("second", 1.0): 1.0}
    again.load_state_dict(buffer.state_dict())
    assert advantages(again, played) == {("first", 1.0): 0.25, ("second", 1.0): 1.0}


def two_policies():
    results = [played("ask", {"S": reward}) for reward in (1.0, 3.0, 50.0)]
    results[2].rollout.steps[0].policy = "judged"
    results[0].children.append(played("ask", {"S": -50.0}))
    results[0].children[0].rollout.steps[0].policy = "judged"
    return results


def test_credit_assigners_do_not_see_the_policies_with_a_critic():
    results = two_policies()
    assign(ReinforcePPCredit(), results, frozenset({"judged"}))
    steps = [step for result in results for one in result.trainable_rollouts() for step in one.steps]
    assert [step.advantage for step in steps] == [pytest.approx(-1.0), -50.0, pytest.approx(1.0), 50.0]
    assert [step.policy for step in steps] == ["default", "judged", "default", "judged"]
    assert [step.reward for step in steps] == [1.0, -50.0, 3.0, 50.0]


def test_a_credit_assigner_beside_critics_is_not_asked_about_nothing():
    class MeanOfAll(CreditAssigner):
        def compute(self, results):
            steps = [step for result in results for step in result.rollout.steps if step.policy]
            mean = sum(step.reward for step in steps) / len(steps)
            return {(result.rollout.id, 0): result.rollout.steps[0].reward - mean for result in results}

    results = two_policies()
    results[1].rollout.steps[0].policy = ""  # played by a fixed opponent
    assign(MeanOfAll(), results, frozenset({"default", "judged"}))
    assert [one.rollout.steps[0].advantage for one in results] == [1.0, 0.0, 50.0]


def test_a_program_keeps_its_credit_for_policies_without_a_critic():
    config = load_config("proposer-solver", {"learning.policies.proposer.critic": "{}"})
    arena = build_program(config)
    assert arena.credit_assigner == build_program(load_config("proposer-solver", {})).credit_assigner
    assert arena.critics == {"proposer"}


def test_one_policy_learns_by_magnet_and_another_with_a_critic(mixed):
    for line in metrics_of(mixed):
        assert {name for name in line if name.endswith("value_loss")} == {"learner/second/value_loss"}
        assert {name for name in line if name.endswith("listed_share")} == {"learner/first/listed_share"}
    for policy in ("first", "second"):
        before, after = adapter(mixed, 0, policy), adapter(mixed, 4, policy)
        assert any((before[name] != after[name]).any() for name in before)
    critics = [file.parent.name for file in (mixed / "checkpoints" / "step-000004").glob("*/critic.*")]
    assert critics == ["second"]


def test_only_the_policy_without_a_critic_has_a_baseline_in_the_batch(mixed):
    log, changed = BatchLog(mixed / "batches"), {"player_0": set(), "player_1": set()}
    for line in (line for number in range(1, 5) for line in log.read(number)):
        changed[line["role_id"]].add(line["rewards"]["sampled"] != line["rewards"]["step"])
    assert changed == {"player_0": {True}, "player_1": {False}}


def test_what_the_critic_gave_each_answer_is_logged_with_the_update_that_learned_from_it(mixed):
    found = critics_advantages(mixed)
    assert found
    assert all(map(math.isfinite, found))
    assert len({round(one, 6) for one in found}) > 2, "rewards are two or three values"
    names = sorted(path.name for path in (mixed / "batches").glob("advantages-*"))
    assert names == [f"advantages-00000{update}.jsonl.gz" for update in range(1, 5)]


@pytest.mark.slow  # test_run_local resumes a run with a critic by default
def test_a_resumed_run_with_both_equals_an_uninterrupted_one(mixed, tmp_path):
    shutil.copytree(mixed, tmp_path / "run")
    cut_back(tmp_path / "run", to=2)
    resumed(tmp_path / "run")
    for policy in ("first", "second"):
        once, again = adapter(mixed, 4, policy), adapter(tmp_path / "run", 4, policy)
        assert once.keys() == again.keys() != set()
        assert all((once[name] == again[name]).all() for name in once)


@pytest.mark.parametrize(
    ("preset", "changes", "line"),
    [
        (
            "quickstart",
            {"learning.policies.second.critic": None},
            r"second\.critic: is missing, but learning\.policies\.second\.algorithm is a2c",
        ),
        (
            "quickstart",
            {"learning.policies.first.critic": "{}"},
            r"learning\.policies\.first\.critic: is of no use to learning\.policies\.first\.algorithm",
        ),
        (
            "quickstart",
            {"learning.critic": "{}"},
            r"^learning\.critic: is of no use to learning\.policies\.first\.algorithm.* Give it to the",
        ),
        (
            "quickstart",
            {
                "learning.policies.first": "{}",
                "learning.skip_zero_advantages": "true",
            },
            r"learning\.skip_zero_advantages: is not for learning\.policies\.second\.critic",
        ),
        (
            "quickstart",
            {"learning.policies.first": "{critic = {}}", "rewards.sampling": "[]"},
            r"learning\.policies: every policy has a critic, which takes the place of rewards\.sampling",
        ),
        ("quickstart", {"learning.policies.first.epochs": "0"}, "at least 1"),
        (
            "quickstart",
            {"learning.policies.second.critic.gamma": "0"},
            r"learning\.policies\.second\.critic\.gamma",
        ),
    ],
)
def test_a_policy_whose_settings_make_no_sense_is_refused_in_one_line(preset, changes, line):
    with pytest.raises(InputError, match=line) as raised:
        load_config(preset, dotted(MIXED) | changes)
    assert "\n" not in str(raised.value)


def test_a_baseline_that_no_policy_of_a_program_uses_is_refused():
    critics = {f"learning.policies.{policy}.critic": "{}" for policy in ("proposer", "solver")}
    config = load_config("proposer-solver", critics | {"credit.type": "rae"})
    with pytest.raises(InputError, match=r"^learning\.policies: every policy has a critic"):
        build_program(config)
