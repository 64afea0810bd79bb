"""What the documents of UnstableBaselines 0.1 show in code, with calls and names as there.

The quick start, which needs a cluster, is in ``ray_quick_start.py``.
"""

import pytest

import sparring.compat.unstable.reward_transformations as retra
from sparring.collection import EpisodeBuffer, StepBuffer
from sparring.collection.transforms import FinalRewardTransform, StepRewardTransform
from sparring.core import Opponent, Step, Trajectory
from sparring.core.play import TaskMeta
from sparring.learn.algorithms import BaseAlgo
from sparring.population import ModelPool

GOOD = {"correct_answer_format": True}
BAD = {"correct_answer_format": False, "invalid_move": True}


def trajectory(pid=0, rewards=None, feedbacks=(GOOD, GOOD)):
    made = []
    for feedback in feedbacks:
        messages = [{"role": "user", "content": "see"}], [{"role": "assistant", "content": "do"}]
        made.append(Step(f"player_{pid}", *messages, info={"format_feedback": feedback}, pid=pid))
    rewards = rewards or {0: 3.0, 1: -3.0}
    return Trajectory(pid, "Tak", rewards[pid], made, final_rewards=rewards, num_turns=4)


class ScaleRewardTransform(retra.FinalRewardTransform):
    """Every reward times alpha."""

    def __init__(self, alpha: float = 0.1):
        self.alpha = alpha

    def __call__(self, x, env_id=None):
        return {seat: value * self.alpha for seat, value in x.items()}


class DiscountFutureRewards(retra.StepRewardTransform):
    """A discount for every step from the beginning."""

    def __init__(self, gamma: float = 0.99):
        self.gamma = gamma

    def __call__(self, trajectory, step_index, base_reward):
        return self.gamma**step_index * base_reward


class ClampRewards(retra.SamplingRewardTransform):
    """Rewards between two bounds."""

    def __init__(self, min_r: float = -1.0, max_r: float = 1.0):
        self.min_r, self.max_r = min_r, max_r

    def __call__(self, steps, env_id=None):
        for step in steps:
            step.reward = min(self.max_r, max(self.min_r, step.reward))
        return steps


def test_the_bases_of_transforms_are_the_same_under_both_names():
    bases = (retra.FinalRewardTransform, retra.StepRewardTransform)
    assert bases == (FinalRewardTransform, StepRewardTransform)


def test_the_final_transform_of_the_document():
    transforms = retra.ComposeFinalRewardTransforms(
        [retra.WinDrawLossFormatter(), ScaleRewardTransform(alpha=0.2)]
    )
    assert transforms({0: 17, 1: 4}) == {0: 0.2, 1: -0.2}
    assert transforms({0: 4, 1: 4}, "Tak") == {0: 0.0, 1: 0.0}
    assert transforms(x={0: 1, 1: 4}, env_id="Tak") == {0: -0.2, 1: 0.2}


def test_the_step_transform_of_the_document():
    step_transforms = retra.ComposeStepRewardTransforms(
        [retra.RewardForFormat(reward=0.05, penalty=-0.05), DiscountFutureRewards(gamma=0.97)]
    )
    played = trajectory(feedbacks=(GOOD, BAD, GOOD))
    found = [step_transforms(trajectory=played, step_index=i, base_reward=1.0) for i in range(3)]
    assert found == pytest.approx([1.05, 0.97 * 0.95, 0.97**2 * 1.05])


def test_the_sampling_transform_of_the_document():
    sampling_transforms = retra.ComposeSamplingRewardTransforms(
        [retra.NormalizeRewardsByEnv(z_score=True), ClampRewards(min_r=-2, max_r=2)]
    )
    buffer = StepBuffer(10, None, None, None, sampling_transforms)
    for reward in [0.0] * 9 + [100.0]:
        buffer.add_player_trajectory(Trajectory(0, "Tak", reward, [Step("a", [], [])]), "Tak")
    drawn = {step.reward: step.advantage for step in buffer.get_batch(10)}
    assert drawn == {0.0: pytest.approx(-1 / 3), 100.0: 2.0}


@pytest.mark.parametrize(("kind", "entries"), [(StepBuffer, 4), (EpisodeBuffer, 2)])
def test_a_buffer_with_the_transforms_of_the_quick_start(kind, entries):
    buffer = kind(
        max_buffer_size=768,
        tracker=None,
        final_reward_transformation=retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()]),
        step_reward_transformation=retra.ComposeStepRewardTransforms(
            [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
        ),
        sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
            [retra.NormalizeRewardsByEnv(True)]
        ),
        buffer_strategy="random",
    )
    buffer.add_player_trajectory(player_traj=trajectory(0), env_id="Tak")
    buffer.add_player_trajectory(player_traj=trajectory(1, feedbacks=(BAD, BAD)), env_id="Tak")
    assert (buffer.size(), buffer.continue_collection()) == (4, True)
    batch = buffer.get_batch(batch_size=entries)
    steps = batch if kind is StepBuffer else [step for episode in batch for step in episode]
    # 3 + 1.5 + 1 and -3 + 0 - 1, which are then centred and scaled
    assert sorted(step.advantage for step in steps) == pytest.approx([-1.0, -1.0, 1.0, 1.0])
    assert {step.reward for step in steps} == {5.5, -4.0}
    assert buffer.size() == 0
    buffer.stop()
    assert not buffer.continue_collection()
    buffer.add_player_trajectory(trajectory(0), "Tak")
    assert buffer.size() == 2, "stop() keeps data, and takes in games that were in flight"
    buffer.clear()
    assert buffer.size() == 0


def test_the_fields_of_the_data_structures_are_there_in_their_order():
    meta = TaskMeta("train", "Tak", 1, 17, "ckpt-3", "fixed-base")
    assert (meta.type, meta.env_id, meta.player_id, meta.seed) == ("train", "Tak", 1, 17)
    assert (meta.ckpt_uid, meta.opponent_uid) == ("ckpt-3", "fixed-base")
    opponent = Opponent("ckpt-3", "checkpoint", "adapters/3", (25.0, 8.0))
    assert (opponent.uid, opponent.kind, opponent.path_or_name, opponent.active) == (
        "ckpt-3",
        "checkpoint",
        "adapters/3",
        True,
    )
    played = trajectory(feedbacks=(GOOD, BAD))
    assert (played.obs, played.actions, played.extracted_actions) == (["see"] * 2, ["do"] * 2, ["do"] * 2)
    assert (played.final_rewards, played.num_turns) == ({0: 3.0, 1: -3.0}, 4)
    assert played.format_feedbacks == [GOOD, BAD]


@pytest.mark.parametrize(("reward", "higher"), [(1, "ckpt-1"), (-1, "fixed-model")])
def test_the_rating_of_whoever_wins_rises(reward, higher):
    pool = ModelPool(sample_mode="fixed", max_active_lora=3, tracker=None, lag_range=(1, 7))
    pool.add_checkpoint(path=None, iteration=1)
    pool.add_fixed(name="model", prior_mu=25.0)
    pool.push_game_outcome(
        uid_me="ckpt-1", uid_opp="fixed-model", final_reward=reward, action_seq=["a"], env_id="Tak"
    )
    means = {one.uid: one.rating[0] for one in pool.opponents()}
    assert max(("ckpt-1", "fixed-model"), key=means.__getitem__) == higher
    assert (pool.current_uid(), pool.latest_ckpt(), pool.sample(uid_me="ckpt-1")) == (
        "ckpt-1",
        "ckpt-1",
        "fixed-model",
    )


def test_an_algorithm_has_the_three_methods():
    assert {"initialize", "prepare_batch", "update"} <= set(vars(BaseAlgo))
