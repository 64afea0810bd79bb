import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.collection import (
    ComposeFinalRewardTransforms,
    ComposeStepRewardTransforms,
    DivideByGameRange,
    FinalRewardTransform,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    NormalizeRewardsByRole,
    NormalizeRewardsByTurn,
    PenaltyForInvalidMove,
    RewardForFormat,
    RewardForReasoning,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    SamePromptBaseline,
    StepBuffer,
    WinDrawLossFormatter,
)
from sparring.core import InputError, ModelResponse, Step, Trajectory
from sparring.core.messages import said


def make_step(reward=0.0, env_id="Kuhn", pid=0, prompt_ids=None, info=None):
    """Return a step as a buffer gives it to the sampling transforms."""
    made = Step("role", [], [], prompt_ids, [1], [-0.1], env_id=env_id, pid=pid, info=info or {})
    made.advantage = reward
    return made


def make_trajectory(feedbacks):
    steps = [make_step(info={"format_feedback": feedback}) for feedback in feedbacks]
    return Trajectory(0, "Kuhn", 1.0, steps)


def advantages_of(steps):
    return [step.advantage for step in steps]


def test_role_advantage_reads_the_baseline_before_updating_it():
    transform = RoleAdvantageFormatter(tau=0.5)
    assert transform({0: 1.0, 1: -1.0}) == {0: 1.0, 1: -1.0}
    assert transform({0: 1.0, 1: -1.0}) == {0: 0.5, 1: -0.5}
    assert transform({0: 1.0}) == {0: 0.25}
    assert transform({1: 0.0}) == {1: 0.75}


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


@pytest.mark.parametrize("cls", [RoleAdvantageFormatter, RoleAdvantageByEnvFormatter])
def test_the_baseline_of_a_role_moves_by_tau_towards_the_reward(cls):
    transform = cls(tau=0.25)
    assert [transform({0: 8.0}, "Kuhn")[0] for _ in range(3)] == [8.0, 6.0, 4.5]
    stays, follows = cls(tau=0.0), cls(tau=1.0)
    assert [stays({0: 8.0}, "Kuhn")[0] for _ in range(2)] == [8.0, 8.0]
    assert [follows({0: 8.0}, "Kuhn")[0] for _ in range(2)] == [8.0, 0.0]


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


@pytest.mark.parametrize(
    ("transform", "names"),
    [
        (ComposeFinalRewardTransforms([WinDrawLossFormatter()]), "'WinDrawLossFormatter'"),
        (RoleAdvantageFormatter(), ""),
    ],
)
def test_a_state_of_other_transforms_or_of_no_stack_is_refused(transform, names):
    line = rf"saved with \[{names}\], but the buffer has \['RoleAdvantageFormatter'\]"
    with pytest.raises(InputError, match=line):
        ComposeFinalRewardTransforms([RoleAdvantageFormatter()]).load_state_dict(transform.state_dict())


@pytest.mark.parametrize("info", [{}, {"format_feedback": {}}, {"format_feedback": {"other": True}}])
def test_a_step_without_feedback_is_no_invalid_move_and_not_well_formatted(info):
    trajectory = Trajectory(0, "Kuhn", 1.0, [make_step(info=info)])
    assert PenaltyForInvalidMove(0.25, -1.0)(trajectory, 0, 1.0) == 1.25
    assert RewardForFormat(1.0, -0.5)(trajectory, 0, 1.0) == 0.5


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
    assert RewardForFormat(penalty=0.25)(trajectory, 0, 1.0) == 1.0
    assert [PenaltyForInvalidMove()(trajectory, index, 1.0) for index in (1, 2)] == [1.0, 1.0]


def test_only_a_thought_that_ended_is_rewarded():
    answers = ["<think>hm</think>4", "<think></think>4", "<think>hm", "4"]
    responses = [ModelResponse(text, [said("assistant", text)]).read_by("auto") for text in answers]
    trajectory = Trajectory(0, "Kuhn", 1.0, [one.to_step("role", "Go") for one in responses])
    transform = RewardForReasoning(0.5, -0.25)
    assert [transform(trajectory, index, 1.0) for index in range(4)] == [1.5, 0.75, 0.75, 0.75]


def test_normalize_rewards_by_hand():
    steps = [make_step(reward) for reward in (1.0, 1.0, -1.0, 3.0)]
    assert advantages_of(NormalizeRewards()(steps)) == [0.0, 0.0, -2.0, 2.0]
    # Population deviation of (0, 0, -2, 2) is sqrt(2), not the sample's sqrt(8 / 3).
    z_scored = advantages_of(NormalizeRewards(z_score=True)(steps))
    assert z_scored == pytest.approx([0.0, 0.0, -math.sqrt(2), math.sqrt(2)], rel=1e-7)
    assert NormalizeRewards(True)([]) == []


def test_z_scores_of_almost_constant_rewards_are_damped_by_the_epsilon():
    steps = [make_step(0.0), make_step(2e-8)]
    assert advantages_of(NormalizeRewards(z_score=True)(steps)) == pytest.approx([-0.5, 0.5])
    steps = [make_step(0.0), make_step(1e-200)]
    assert advantages_of(NormalizeRewardsByEnv(z_score=True)(steps)) == pytest.approx([0.0, 0.0])


def test_normalize_by_env_keeps_environments_apart_and_the_order_of_steps():
    rewards = [(1.0, "A"), (10.0, "B"), (5.0, "A"), (10.0, "B")]
    centred, scaled = (
        NormalizeRewardsByEnv(z_score)([make_step(*one) for one in rewards]) for z_score in (False, True)
    )
    assert [step.env_id for step in centred] == [step.env_id for step in scaled] == ["A", "B", "A", "B"]
    assert advantages_of(centred) == pytest.approx([-2.0, 0.0, 2.0, 0.0], rel=1e-7)
    assert advantages_of(scaled) == pytest.approx([-1.0, 0.0, 1.0, 0.0], rel=1e-7)


def turn_of(rewards, rollout_id, turn, pid):
    """The answers of one turn, with these rewards."""
    info = {"rollout_id": rollout_id, "turn": turn}
    steps = [make_step(reward, pid=pid, info=info) for reward in rewards]
    for step in steps:
        step.role_id = f"player_{pid}"
    return steps


def test_the_advantages_of_at_grpo_by_hand():
    """(r - mean) / deviation among the answers of one turn; AT-GRPO, arXiv 2510.11062."""
    steps = [
        *turn_of([2.0, 0.0, 0.0, 2.0], "one", 0, 0),
        *turn_of([1.0, 0.0, 0.0, 0.0], "one", 1, 1),
        *turn_of([5.0, 5.0, 5.0, 5.0], "one", 2, 0),
        *turn_of([-3.0, 1.0], "two", 0, 0),
        *turn_of([7.0], "two", 1, 1),
    ]
    third = math.sqrt(3)
    wanted = [1, -1, -1, 1, third, -1 / third, -1 / third, -1 / third, 0, 0, 0, 0, -1, 1, 0]
    assert advantages_of(NormalizeRewardsByTurn(z_score=True)(steps)) == pytest.approx(wanted, abs=1e-7)
    assert [step.advantage for step in steps[8:12]] == [0.0] * 4
    steps = turn_of([1.0, 0.0, 0.0, 0.0], "one", 1, 1)
    assert advantages_of(NormalizeRewardsByTurn()(steps)) == [0.75, -0.25, -0.25, -0.25]


def test_answers_of_two_policies_at_one_turn_are_not_compared():
    steps = turn_of([1.0, 3.0, 10.0, 20.0], "one", 0, 0)
    for step in steps[2:]:
        step.policy = "other"
    assert advantages_of(NormalizeRewardsByTurn()(steps)) == [-1.0, 1.0, -5.0, 5.0]


def paid_trajectory(pid, paid):
    """A player's game that pays these rewards after its turns."""
    trajectory = Trajectory(pid, "Kuhn", sum(paid), [], role_id=f"player_{pid}", rollout_id=f"{pid}-{paid}")
    trajectory.steps = turn_of([0.0] * len(paid), "", 0, pid)
    for step, reward in zip(trajectory.steps, paid, strict=True):
        step.info = {"step_reward": reward}
    return trajectory


def test_the_advantages_of_marshal_by_hand():
    """R = the sum of rewards from a turn on, less the mean over all turns of the role; arXiv 2510.15414."""
    buffer = StepBuffer(100, None, None, None, NormalizeRewardsByRole(), discount=1.0)
    for pid, paid in ((0, [1.0, 0.0, 2.0]), (0, [-1.0]), (1, [0.0, 4.0])):
        buffer.add_player_trajectory(paid_trajectory(pid, paid), "Kuhn")
    steps = {(step.info["rollout_id"], step.info["step_index"]): step for step in buffer.draw(None)}
    # Sums from each turn on: 3, 2, 2 and -1 of one seat, with mean 1.5; 4 and 4 of the other.
    assert {place: step.advantage for place, step in steps.items()} == {
        ("0-[1.0, 0.0, 2.0]", 0): 1.5,
        ("0-[1.0, 0.0, 2.0]", 1): 0.5,
        ("0-[1.0, 0.0, 2.0]", 2): 0.5,
        ("0-[-1.0]", 0): -2.5,
        ("1-[0.0, 4.0]", 0): 0.0,
        ("1-[0.0, 4.0]", 1): 0.0,
    }


class Halved(FinalRewardTransform):
    """A transform of one's own, which does not say what becomes of rewards on the way."""

    def __call__(self, x, env_id=None):
        return {pid: reward / 2 for pid, reward in x.items()}


class Numpy(FinalRewardTransform):
    """Returns what is no float of Python."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, x, env_id=None):
        return {pid: self.kind(reward) for pid, reward in x.items()}


@pytest.mark.parametrize("kind", [np.float32, np.int64, Fraction, int])
def test_a_final_transform_may_return_any_number_and_what_is_written_is_a_float(kind):
    buffer = StepBuffer(100, None, Numpy(kind))
    buffer.add_player_trajectory(paid_trajectory(0, [1.0, 2.0]), "Kuhn")
    steps = buffer.draw(None)
    stages = [step.info["reward_stages"]["final_transformed"] for step in steps]
    assert [step.reward for step in steps] == stages == [3.0, 3.0]
    assert {type(one) for one in (*stages, *(step.reward for step in steps))} == {float}


ROLE_BASELINE = RoleAdvantageFormatter({0: 0.5}, tau=0.0)
PAID = [3.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("transforms", "returns"),
    [
        ([], [4.0, 1.0, 1.0]),
        ([DivideByGameRange({"Kuhn": 2.0})], [2.0, 0.5, 0.5]),
        ([DivideByGameRange({"Other": 2.0})], [4.0, 1.0, 1.0]),
        ([WinDrawLossFormatter()], [1.0, 1.0, 1.0]),
        ([ROLE_BASELINE], [3.5, 0.5, 0.5]),
        ([DivideByGameRange({"Kuhn": 2.0}), ROLE_BASELINE], [1.5, 0.0, 0.0]),
        ([WinDrawLossFormatter(), ROLE_BASELINE], [0.5, 0.5, 0.5]),
        ([Halved()], [2.0, -1.0, -1.0]),
    ],
)
def test_rewards_on_the_way_are_in_the_unit_of_the_games(transforms, returns):
    buffer = StepBuffer(100, None, ComposeFinalRewardTransforms(transforms), discount=1.0)
    buffer.add_player_trajectory(paid_trajectory(0, PAID), "Kuhn")
    steps = sorted(buffer.draw(None), key=lambda step: step.info["step_index"])
    assert [step.reward for step in steps] == pytest.approx(returns)


def test_roles_of_other_environments_and_policies_are_not_compared():
    steps = [make_step(reward, env_id) for reward, env_id in ((1.0, "A"), (3.0, "A"), (9.0, "B"), (7.0, "A"))]
    steps[3].policy = "other"
    assert advantages_of(NormalizeRewardsByRole()(steps)) == [-1.0, 1.0, 0.0, 0.0]


@given(st.floats(-1e6, 1e6), st.integers(1, 7), st.booleans())
def test_constant_rewards_become_exactly_zero(reward, count, z_score):
    kinds = (NormalizeRewards, NormalizeRewardsByEnv, NormalizeRewardsByRole, NormalizeRewardsByTurn)
    for transform in [kind(z_score) for kind in kinds]:
        assert advantages_of(transform([make_step(reward) for _ in range(count)])) == [0.0] * count


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("AB")), min_size=1), st.booleans())
def test_normalized_rewards_are_finite_and_centred_in_each_environment(entries, z_score):
    steps = [make_step(reward, env_id) for reward, env_id in entries]
    NormalizeRewardsByEnv(z_score)(steps)
    for env_id in {env_id for _, env_id in entries}:
        rewards = [step.advantage for step in steps if step.env_id == env_id]
        assert all(map(math.isfinite, rewards))
        assert math.fsum(rewards) == pytest.approx(0.0, abs=1e-3)


def test_same_prompt_baseline_shrinks_the_prompts_mean_towards_the_seats():
    steps = [
        make_step(1.0, prompt_ids=[7, 8], info={"rollout_id": "a"}),
        make_step(0.0, prompt_ids=[7, 8], info={"rollout_id": "b"}),
        make_step(2.0, prompt_ids=[7, 8], info={"rollout_id": "c"}),
        make_step(5.0, prompt_ids=[9], info={"rollout_id": "d"}),
    ]
    # (sum of the prompt's others + 4 * mean of the seat's others) / (number of the prompt's others + 4)
    seats = [7 / 3, 8 / 3, 6 / 3, 3 / 3]
    baselines = [(2 + 4 * seats[0]) / 6, (3 + 4 * seats[1]) / 6, (1 + 4 * seats[2]) / 6, seats[3]]
    expected = [step.advantage - baseline for step, baseline in zip(steps, baselines, strict=True)]
    assert advantages_of(SamePromptBaseline()(steps)) == pytest.approx(expected)


def test_same_prompt_baseline_leaves_out_the_whole_episode_and_not_only_the_step():
    win = [make_step(1.0, prompt_ids=[turn], info={"rollout_id": "win"}) for turn in range(40)]
    losses = [
        make_step(-1.0, prompt_ids=[100 * game + turn], info={"rollout_id": f"loss {game}"})
        for game in (1, 2, 3)
        for turn in range(2)
    ]
    SamePromptBaseline()([*win, *losses])
    assert advantages_of(win) == pytest.approx([2.0] * 40)
    assert advantages_of(losses) == pytest.approx([-2 / 3] * 6)


def test_same_prompt_baseline_learns_from_one_game_in_each_seat():
    steps = [
        make_step(reward, pid=pid, prompt_ids=[pid, turn], info={"rollout_id": "only"})
        for pid, reward in [(0, 1.0), (1, -1.0)]
        for turn in range(5)
    ]
    assert advantages_of(SamePromptBaseline()(steps)) == [1.0] * 5 + [-1.0] * 5


def test_same_prompt_baseline_counts_a_prompt_across_seats_and_environments():
    steps = [make_step(1.0, "A", 0, [1]), make_step(3.0, "B", 1, [1])]
    assert advantages_of(SamePromptBaseline()(steps)) == [-2.0, 2.0]
    steps = [make_step(reward, "A", pid, [1]) for pid, reward in enumerate([1.0, 3.0, 8.0])]
    assert advantages_of(SamePromptBaseline()(steps)) == [-4.5, -1.5, 6.0]


def test_same_prompt_baseline_compares_the_steps_of_one_policy():
    steps = [make_step(reward, prompt_ids=[1]) for reward in (1.0, 2.0, 30.0, 50.0)]
    for step in steps[2:]:
        step.policy = "exploiter"
    assert advantages_of(SamePromptBaseline()(steps)) == [-1.0, 1.0, -20.0, 20.0]


def test_same_prompt_baseline_counts_a_prompt_as_often_as_an_episode_came_to_it():
    twice = [make_step(1.0, prompt_ids=[1], info={"rollout_id": "twice"}) for _ in range(2)]
    once = [make_step(0.0, prompt_ids=[1], info={"rollout_id": "once"})]
    elsewhere = [make_step(3.0, prompt_ids=[2], info={"rollout_id": "elsewhere"})]
    SamePromptBaseline()([*twice, *once, *elsewhere])
    # The two other steps at the prompt, and 4 times the mean of 1.0 and 3.0, the two other episodes.
    assert advantages_of(once) == pytest.approx([-(2 * 1.0 + 4 * 2.0) / (2 + 4)])
    assert advantages_of(twice) == pytest.approx([1.0 - (0.0 + 4 * 1.5) / (1 + 4)] * 2)
    assert advantages_of(elsewhere) == [3.0 - 0.5]


def test_same_prompt_baseline_counts_a_step_without_ids_in_its_seat_only():
    steps = [make_step(1.0), make_step(4.0), make_step(0.0, pid=1)]
    assert advantages_of(SamePromptBaseline()(steps)) == [-3.0, 3.0, 0.0]


GAMES = st.lists(
    st.tuples(
        st.sampled_from([-1.0, 0.0, 1.0, 13.0]), st.integers(0, 1), st.lists(st.integers(0, 3), min_size=1)
    ),
    min_size=1,
    max_size=8,
)


@given(GAMES, st.floats(-5, 5))
def test_same_prompt_baseline_never_depends_on_the_outcome_of_its_own_episode(games, outcome):
    def advantages(games):
        batch = [
            make_step(reward, pid=pid, prompt_ids=[prompt], info={"rollout_id": str(number)})
            for number, (reward, pid, prompts) in enumerate(games)
            for prompt in prompts
        ]
        return advantages_of(SamePromptBaseline()(batch))

    (_, pid, prompts), rest = games[0], games[1:]
    before = advantages(games)[: len(prompts)]
    after = advantages([(outcome, pid, prompts), *rest])[: len(prompts)]
    baselines = [games[0][0] - advantage for advantage in before]
    assert [outcome - advantage for advantage in after] == pytest.approx(baselines, abs=1e-9)
