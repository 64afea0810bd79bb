import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay.core import InputError, SelfplayError, Step, Trajectory
from selfplay.replay import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    SamePromptBaseline,
    SamplingRewardTransform,
    StepRewardTransform,
    WinDrawLossFormatter,
)


def make_step(reward=0.0, env_id="Kuhn", pid=0, prompt_ids=None, info=None):
    return Step(
        "role", [], [], prompt_ids, [1], [-0.1], reward=reward, env_id=env_id, pid=pid, info=info or {}
    )


def make_trajectory(feedbacks):
    steps = [make_step(info={"format_feedback": feedback}) for feedback in feedbacks]
    return Trajectory(0, "Kuhn", 1.0, steps)


def rewards_of(steps):
    return [step.reward for step in steps]


def test_win_draw_loss_maps_scores_by_sign():
    assert WinDrawLossFormatter()({0: 2.0, 1: -2.0, 2: 0.0}) == {0: 1.0, 1: -1.0, 2: 0.0}
    assert WinDrawLossFormatter(3.0, 0.5, -2.0)({0: 0.1, 1: -9, 2: 0}) == {0: 3.0, 1: -2.0, 2: 0.5}


def test_role_advantage_reads_the_baseline_before_updating_it():
    transform = RoleAdvantageFormatter(tau=0.5)
    assert transform({0: 1.0, 1: -1.0}) == {0: 1.0, 1: -1.0}
    assert transform({0: 1.0, 1: -1.0}) == {0: 0.5, 1: -0.5}
    assert transform({0: 1.0}) == {0: 0.25}
    assert transform({1: 0.0}) == {1: 0.75}


def test_role_advantage_with_the_originals_tau_reaches_0_632_after_1000_wins():
    transform = RoleAdvantageFormatter(tau=0.001)
    for _ in range(1000):
        transform({0: 1.0})
    assert transform.role_advantage[0] == pytest.approx(1 - 0.999**1000)
    assert transform.role_advantage[0] == pytest.approx(0.632, abs=0.001)


def test_role_advantage_instances_share_no_baselines():
    start = {0: 0.5}
    first = RoleAdvantageFormatter(role_advantage=start)
    first({0: 1.0, 1: 1.0})
    assert start == {0: 0.5}
    assert RoleAdvantageFormatter()({0: 1.0, 1: 1.0}) == {0: 1.0, 1: 1.0}
    assert RoleAdvantageByEnvFormatter()({0: 1.0}, "Kuhn") == {0: 1.0}


def test_role_advantage_by_env_keeps_a_baseline_for_each_environment_and_seat():
    transform = RoleAdvantageByEnvFormatter(default_role_adv=0.5, tau=0.5)
    assert transform({0: 1.0}, "Kuhn") == {0: 0.5}
    assert transform({0: 1.0}, "Kuhn") == {0: 0.25}
    assert transform({0: 1.0}, "Tak") == {0: 0.5}
    assert transform({1: 1.0}, "Kuhn") == {1: 0.5}


@pytest.mark.parametrize("tau", [-0.1, 1.5, math.nan])
@pytest.mark.parametrize("cls", [RoleAdvantageFormatter, RoleAdvantageByEnvFormatter])
def test_a_tau_outside_0_to_1_is_refused(cls, tau):
    with pytest.raises(InputError, match="tau"):
        cls(tau=tau)


def test_final_transforms_continue_from_their_saved_baselines():
    def build():
        return ComposeFinalRewardTransforms(
            [WinDrawLossFormatter(), RoleAdvantageFormatter(), RoleAdvantageByEnvFormatter()]
        )

    original = build()
    for reward in (1.0, 1.0, -1.0):
        original({0: reward}, "Kuhn")
        original({1: -reward}, "Tak/v0, odd id")
    restored = build()
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for pid, env_id in [(0, "Kuhn"), (1, "Tak/v0, odd id"), (0, "new")]:
        assert restored({pid: 1.0}, env_id) == original({pid: 1.0}, env_id)


def test_a_state_of_other_transforms_is_refused():
    state = ComposeFinalRewardTransforms([RoleAdvantageFormatter()]).state_dict()
    with pytest.raises(InputError, match="RoleAdvantageFormatter"):
        ComposeFinalRewardTransforms([WinDrawLossFormatter()]).load_state_dict(state)


def test_format_reward_and_invalid_move_penalty_by_hand():
    trajectory = make_trajectory(
        [
            {"correct_answer_format": True},
            {"correct_answer_format": False, "invalid_move": False},
            {"correct_answer_format": True, "invalid_move": True},
        ]
    )
    transform = ComposeStepRewardTransforms([RewardForFormat(1.5, -0.5), PenaltyForInvalidMove(1.0, -1.0)])
    assert [transform(trajectory, index, 1.0) for index in range(3)] == [3.5, 1.5, 1.5]
    assert RewardForFormat(0.25)(trajectory, 1, 1.0) == 1.0
    assert PenaltyForInvalidMove()(trajectory, 2, 1.0) == 1.0


def test_format_reward_without_feedback_is_an_error_and_not_a_guess():
    with pytest.raises(SelfplayError, match="correct_answer_format"):
        RewardForFormat(1.0)(make_trajectory([{}]), 0, 1.0)


def test_normalize_rewards_by_hand():
    steps = [make_step(reward) for reward in (1.0, 1.0, -1.0, 3.0)]
    assert rewards_of(NormalizeRewards()(steps)) == [0.0, 0.0, -2.0, 2.0]
    # Population deviation of (0, 0, -2, 2) is sqrt(2), not the sample's sqrt(8 / 3).
    z_scored = rewards_of(NormalizeRewards(z_score=True)(steps))
    assert z_scored == pytest.approx([0.0, 0.0, -math.sqrt(2), math.sqrt(2)], rel=1e-7)
    assert NormalizeRewards(True)([]) == []


def test_z_scores_of_almost_constant_rewards_are_damped_by_the_epsilon():
    steps = [make_step(0.0), make_step(2e-8)]
    assert rewards_of(NormalizeRewards(z_score=True)(steps)) == pytest.approx([-0.5, 0.5])
    steps = [make_step(0.0), make_step(1e-200)]
    assert rewards_of(NormalizeRewardsByEnv(z_score=True)(steps)) == pytest.approx([0.0, 0.0])


def test_normalize_by_env_keeps_environments_apart_and_the_order_of_steps():
    steps = [make_step(1.0, "A"), make_step(10.0, "B"), make_step(3.0, "A"), make_step(10.0, "B")]
    normalized = NormalizeRewardsByEnv(z_score=True)(steps)
    assert [step.env_id for step in normalized] == ["A", "B", "A", "B"]
    assert rewards_of(normalized) == pytest.approx([-1.0, 0.0, 1.0, 0.0], rel=1e-7)


@given(st.floats(-1e6, 1e6), st.integers(1, 7), st.booleans())
def test_constant_rewards_become_exactly_zero(reward, count, z_score):
    for transform in (NormalizeRewards(z_score), NormalizeRewardsByEnv(z_score)):
        assert rewards_of(transform([make_step(reward) for _ in range(count)])) == [0.0] * count


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("AB")), min_size=1), st.booleans())
def test_normalized_rewards_are_finite_and_centred_in_each_environment(entries, z_score):
    steps = [make_step(reward, env_id) for reward, env_id in entries]
    NormalizeRewardsByEnv(z_score)(steps)
    for env_id in {env_id for _, env_id in entries}:
        rewards = [step.reward for step in steps if step.env_id == env_id]
        assert all(map(math.isfinite, rewards))
        assert math.fsum(rewards) == pytest.approx(0.0, abs=1e-3)


def test_same_prompt_baseline_leaves_the_step_itself_out():
    steps = [
        make_step(1.0, prompt_ids=[7, 8]),
        make_step(0.0, prompt_ids=[7, 8]),
        make_step(2.0, prompt_ids=[7, 8]),
        make_step(5.0, prompt_ids=[9]),
        make_step(5.0, prompt_ids=None),
        make_step(4.0, prompt_ids=[9], pid=1, env_id="Tak"),
    ]
    SamePromptBaseline()(steps[:5])
    # The steps with prompts of their own fall back to the other steps of their seat: (1+0+2+5)/4 = 2.
    assert rewards_of(steps[:5]) == [0.0, -1.5, 1.5, 3.0, 3.0]
    SamePromptBaseline()(steps[5:])
    assert rewards_of(steps[5:]) == [4.0]


def test_same_prompt_baseline_counts_a_prompt_across_seats_and_environments():
    steps = [make_step(1.0, "A", 0, [1]), make_step(3.0, "B", 1, [1])]
    assert rewards_of(SamePromptBaseline()(steps)) == [-2.0, 2.0]


# The three custom transforms that seed 000 documents, word for word in their interface.


class ScaleRewardTransform(FinalRewardTransform):
    def __init__(self, alpha: float = 0.1):
        self.alpha = alpha

    def __call__(self, x, env_id=None):
        return {pid: r * self.alpha for pid, r in x.items()}


class DiscountFutureRewards(StepRewardTransform):
    def __init__(self, gamma: float = 0.99):
        self.gamma = gamma

    def __call__(self, trajectory, step_index, base_reward):
        return base_reward * (self.gamma**step_index)


class ClampRewards(SamplingRewardTransform):
    def __init__(self, min_r: float = -1.0, max_r: float = 1.0):
        self.min_r, self.max_r = min_r, max_r

    def __call__(self, steps, env_id=None):
        for s in steps:
            s.reward = max(self.min_r, min(self.max_r, s.reward))
        return steps


class DropZeros(SamplingRewardTransform):
    def __call__(self, steps):
        return [step for step in steps if step.reward != 0]


def test_documented_custom_final_transform_runs_unchanged():
    transforms = ComposeFinalRewardTransforms([WinDrawLossFormatter(), ScaleRewardTransform(alpha=0.2)])
    assert transforms({0: 5.0, 1: -3.0}, "Kuhn") == {0: 0.2, 1: -0.2}
    transforms.load_state_dict(transforms.state_dict())


def test_documented_custom_step_transform_runs_unchanged():
    transforms = ComposeStepRewardTransforms(
        [RewardForFormat(reward=0.05, penalty=-0.05), DiscountFutureRewards(gamma=0.5)]
    )
    trajectory = make_trajectory([{"correct_answer_format": True}, {"correct_answer_format": False}])
    assert transforms(trajectory, 0, 1.0) == pytest.approx(1.05)
    assert transforms(trajectory, 1, 1.0) == pytest.approx(0.475)


def test_documented_custom_sampling_transform_runs_unchanged():
    transforms = ComposeSamplingRewardTransforms(
        [NormalizeRewardsByEnv(z_score=False), ClampRewards(min_r=-2, max_r=2), DropZeros()]
    )
    steps = [make_step(reward) for reward in (0.0, 3.0, 6.0, 3.0)]
    assert rewards_of(transforms(steps)) == [-2, 2]
