"""Final-reward transforms see the rewards of everybody who played; a step starts from its own player's."""

import asyncio
import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparring.collection
from sparring.collection import (
    ComposeFinalRewardTransforms,
    DivideByGameRange,
    EpisodeBuffer,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    StepBuffer,
    WinDrawLossFormatter,
)
from sparring.collection.buffer import BufferService, Demand, FinishedGame
from sparring.config import load_config
from sparring.core import GenerateResult, Rollout, SparringError, Step, trajectories_of
from sparring.core.play import trajectories_of_roles
from sparring.run.rewards import composed_transforms

TABLE = {0: 3.0, 1: 5.0, 2: -2.0, 3: 5.0}
"""No player's new reward can be told from its own reward alone."""


class LessTheMean(FinalRewardTransform):
    """Subtracts the mean of the table, in place, as a user may."""

    def __call__(self, x, env_id=None):
        mean = sum(x.values()) / len(x)
        for pid in x:
            x[pid] -= mean
        return x


class LeavesOutTheLast(FinalRewardTransform):
    def __call__(self, x, env_id=None):
        return {pid: reward for pid, reward in x.items() if pid != max(x)}


def shifted(baselines):
    return {pid: reward - baselines.get(pid, 0.0) for pid, reward in TABLE.items()}


BASELINES = {0: 1.0, 1: 2.0, 3: -4.0}
TRANSFORMS = {
    "win_draw_loss": (WinDrawLossFormatter, {0: -1.0, 1: 1.0, 2: -1.0, 3: 1.0}),
    "game_range": (lambda: DivideByGameRange({"table": 4.0}), {p: r / 4 for p, r in TABLE.items()}),
    "role_advantage": (lambda: RoleAdvantageFormatter(BASELINES), shifted(BASELINES)),
    "by_env": (lambda: RoleAdvantageByEnvFormatter(BASELINES), shifted(BASELINES)),
    "composed": (
        lambda: ComposeFinalRewardTransforms([RoleAdvantageFormatter(BASELINES), WinDrawLossFormatter()]),
        {0: -1.0, 1: -1.0, 2: -1.0, 3: 1.0},
    ),
    "one's own": (LessTheMean, {0: 0.25, 1: 2.25, 2: -4.75, 3: 2.25}),
    "one's own, composed": (
        lambda: ComposeFinalRewardTransforms([LessTheMean(), WinDrawLossFormatter(2.0, 0.0, -3.0)]),
        {0: -3.0, 1: 2.0, 2: -3.0, 3: 2.0},
    ),
}


def step(pid, version=0):
    prompt = [{"role": "user", "content": str(pid)}]
    made = Step(f"player_{pid}", prompt, [], [1], [2], [-0.5], policy_version=version)
    made.pid, made.env_id = pid, "table"
    return made


def game(rewards=TABLE, trained=None):
    """Return the trajectories of a finished game in which each of the ``trained`` seats acted twice."""
    seats = rewards if trained is None else trained
    steps = [step(pid) for pid in seats for _ in range(2)]
    return trajectories_of(
        Rollout(episode_type="table", id="game", steps=steps, extras={"final_rewards": dict(rewards)})
    )


def stored(buffer, trajectories):
    """Return the reward that the steps of each player have in the buffer."""
    for one in trajectories:
        buffer.add_player_trajectory(one, "table")
    batch = buffer.get_batch(buffer.entries())
    steps = [one for entry in batch for one in (entry if isinstance(entry, list) else [entry])]
    rewards = {one.pid: one.reward for one in steps}
    assert all(one.reward == rewards[one.pid] for one in steps)
    return rewards


def program(rewards=TABLE):
    """Return the trajectories of a program whose roles ``a``, ``b``, ... all acted."""
    roles = "abcd"
    steps = [step(pid) for pid in rewards]
    for one in steps:
        one.role_id = roles[one.pid]
    rollout = Rollout(
        episode_type="table", steps=steps, rewards={roles[pid]: reward for pid, reward in rewards.items()}
    )
    return trajectories_of_roles(GenerateResult(rollout), {role: pid for pid, role in enumerate(roles)})


def test_the_table_of_transforms_has_every_built_in_one():
    exported = [getattr(sparring.collection, name) for name in sparring.collection.__all__]
    built_in = {one for one in exported if inspect.isclass(one) and issubclass(one, FinalRewardTransform)}
    assert built_in - {FinalRewardTransform} <= {type(make()) for make, _ in TRANSFORMS.values()}


@pytest.mark.parametrize("played", [game, program])
@pytest.mark.parametrize("cls", [StepBuffer, EpisodeBuffer])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_player_starts_from_its_place_in_the_transformed_rewards_of_all(name, cls, played):
    make, expected = TRANSFORMS[name]
    assert make()(dict(TABLE), "table") == pytest.approx(expected)
    assert stored(cls(100, None, make()), played()) == pytest.approx(expected)


@pytest.mark.parametrize("cls", [StepBuffer, EpisodeBuffer])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_opponents_are_compared_with_although_nobody_learns_from_them(name, cls):
    make, expected = TRANSFORMS[name]
    assert stored(cls(100, None, make()), game(trained=[1])) == {1: pytest.approx(expected[1])}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("cls", [StepBuffer, EpisodeBuffer])
def test_the_buffer_of_a_cluster_starts_from_the_same_rewards_also_after_a_kill(tmp_path, cls, name):
    make, expected = TRANSFORMS[name]

    def service():
        return BufferService(cls(100, None, make()), directory=str(tmp_path))

    service().add_games([FinishedGame(0, game())])
    drawn = asyncio.run(service().draw(1, Demand(games=1), wait=0.0))
    assert {one.pid: one.reward for one in drawn.steps} == pytest.approx(expected)


def test_a_transform_that_leaves_out_the_player_is_named_in_one_line():
    buffer = StepBuffer(10, None, LeavesOutTheLast())
    buffer.add_player_trajectory(game()[0], "table")
    with pytest.raises(SparringError, match="no reward of player 3 in table"):
        buffer.add_player_trajectory(game()[3], "table")
    assert buffer.size() == 2


@pytest.mark.parametrize("cls", [RoleAdvantageFormatter, RoleAdvantageByEnvFormatter])
def test_a_baseline_moves_once_a_game_by_the_reward_of_the_player_who_learns(cls):
    transform = cls(tau=0.5)
    buffer = StepBuffer(100, None, ComposeFinalRewardTransforms([transform]))
    assert stored(buffer, game({0: 4.0, 1: 8.0})) == {0: 4.0, 1: 8.0}
    assert stored(buffer, game({0: 4.0, 1: 8.0})) == {0: 2.0, 1: 4.0}
    assert stored(buffer, game({0: 4.0, 1: 99.0}, trained=[0])) == {0: 1.0}
    assert stored(buffer, game({0: 4.0, 1: 8.0})) == {0: 0.5, 1: 2.0}


def test_the_baselines_of_unstable_baselines_0_1_are_given_by_player():
    transform = RoleAdvantageByEnvFormatter(role_advantage={0: 1.0, 1: -1.0}, tau=0.5)
    assert transform({0: 3.0, 1: 3.0, 2: 3.0}, "table") == {0: 2.0, 1: 4.0, 2: 3.0}
    assert transform({0: 3.0, 1: 3.0, 2: 3.0}, "table") == {0: 1.0, 1: 2.0, 2: 1.5}
    restored = RoleAdvantageByEnvFormatter({0: 9.0}, 0.5)
    restored.load_state_dict(json.loads(json.dumps(transform.state_dict())))
    assert restored({0: 0.0}, "table") == transform({0: 0.0}, "table")


def test_a_forgiven_move_is_compared_with_what_the_others_would_have_got():
    """The loser of the game by reward would have lost it by the move too; the winner would not have won."""
    (winner,) = game({0: 1.0, 1: -1.0}, trained=[0])
    winner.steps[0].info["invalid_rewards"] = [-1.0, 1.0]
    for make, expected in [(WinDrawLossFormatter, [-1.0, 1.0]), (LessTheMean, [-1.0, 1.0])]:
        buffer = StepBuffer(10, None, make())
        buffer.add_player_trajectory(winner, "table")
        rewards = {one.info["step_index"]: one.reward for one in buffer.get_batch(2)}
        assert [rewards[0], rewards[1]] == expected


def test_a_configuration_transforms_the_rewards_of_all():
    final = '[{type = "win_draw_loss"}, {type = "role_advantage", tau = 0.5}]'
    transform = composed_transforms(
        load_config("quickstart", {"rewards.final": final, "rewards.sampling": "[]"})
    )[0]
    buffer = StepBuffer(10, None, transform)
    assert stored(buffer, game({0: 3.0, 1: 5.0})) == {0: -1.0, 1: 1.0}
    assert stored(buffer, game({0: 3.0, 1: 5.0})) == {0: -0.5, 1: 0.5}


REWARDS = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0]), min_size=1, max_size=5)


@given(REWARDS)
def test_win_draw_loss_compares_the_players(rewards):
    found = WinDrawLossFormatter(2.0, 0.5, -1.0)(dict(enumerate(rewards)))
    of_one = [2.0 if rewards[0] > 0 else -1.0 if rewards[0] < 0 else 0.5]
    best = max(rewards)
    of_many = [0.5 if set(rewards) == {best} else 2.0 if one == best else -1.0 for one in rewards]
    assert list(found.values()) == (of_many if len(rewards) > 1 else of_one)


@given(REWARDS, st.data())
def test_the_baselines_do_not_depend_on_the_order_in_which_players_are_added(rewards, data):
    def advantages_of(pids):
        transform = RoleAdvantageByEnvFormatter(1.0, tau=0.5)
        found = stored(StepBuffer(100, None, transform), [trajectories[pid] for pid in pids])
        return found, transform.role_advantage

    table = dict(enumerate(rewards))
    trajectories = {one.pid: one for one in game(table)}
    found = advantages_of(data.draw(st.permutations(list(table))))
    assert found == advantages_of(list(table))
    assert found[0] == {pid: reward - 1.0 for pid, reward in table.items()}
