"""Returns: each turn is credited with what its player received from then on."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment_sessions import events
from sparring.collection import StepBuffer
from sparring.collection.transforms import FinalRewardTransform
from sparring.config import load_config
from sparring.core import (
    AgentSpec,
    Arena,
    InputError,
    MockInferenceClient,
    PlaySpec,
    Step,
    Trajectory,
    trajectories_of,
)
from sparring.core.env_id import with_options
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.run.rewards import build_buffer

FILE = str(Path(__file__).with_name("own_environments.py"))
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 1.0])
REWARDS = st.integers(-40, 40).map(lambda number: number / 4)


class Twice(FinalRewardTransform):
    def __call__(self, x, env_id=None):
        return {pid: 2 * reward for pid, reward in x.items()}


def play(name, seed, said, options=None, **limits):
    """Play a game of three policies, or one; return the trajectories."""
    env_id, players = with_options(f"{FILE}:{name}", options or {}), 1 if name == "Walk" else 3
    game = GameEpisode(env_id, players, get_template("fewshot-chat"), **limits)
    answers = iter(said * 1000)
    arena = Arena(MockInferenceClient(lambda messages, seed: next(answers)))
    spec = PlaySpec(game.name, game.num_players, (AgentSpec("policy"),) * game.num_players, seed)
    return trajectories_of(asyncio.run(game.generate(arena, spec, {"seed": seed})).rollout)


def returns(trajectory, discount, transform=None):
    buffer = StepBuffer(1000, None, transform, discount=discount)
    buffer.add_player_trajectory(trajectory, "game")
    steps = sorted(buffer.draw(None), key=lambda step: step.info["step_index"])
    assert [step.info["reward_stages"]["final"] for step in steps] == [trajectory.final_reward] * len(steps)
    return [step.reward for step in steps]


def by_hand(player, discount):
    """The returns of a player, by what happened in order. What came before its first turn belongs to it."""
    turns, found = 0, [0.0]
    for what, whom in events:
        if what == "acts" and player in whom:
            turns += 1
            found += [0.0] * (turns > 1)
        elif what == "paid" and player in whom:
            last = len(found) - 1
            found = [one + discount ** (last - turn) * whom[player] for turn, one in enumerate(found)]
    return found if turns else []


@given(st.integers(0, 10_000), DISCOUNTS)
def test_a_turn_has_what_its_player_received_from_then_on(seed, discount):
    events.clear()
    played = play("Wages", seed, ("on",))
    found = {trajectory.pid: returns(trajectory, discount) for trajectory in played}
    wanted = {player: by_hand(player, discount) for player in range(3)}
    assert found == {player: pytest.approx(own) for player, own in wanted.items() if own}


@given(st.integers(1, 9), REWARDS, DISCOUNTS)
def test_a_game_that_pays_at_its_end_is_paid_with_the_last_turn(length, final, discount):
    trajectory = Trajectory(0, "game", final, [Step("player_0", [], []) for _ in range(length)])
    assert returns(trajectory, 1.0) == returns(trajectory, None) == [final] * length
    later = returns(trajectory, discount)
    assert later[-1] == final
    assert all(one == pytest.approx(discount * after) for one, after in pairwise(later))


def test_what_final_transforms_add_is_paid_with_the_last_turn():
    (walk,) = play("Walk", 0, ("right",))
    assert returns(walk, 0.5) == [4 + 0.5 * (-1 + 0.5 * 10), -1 + 0.5 * 10, 10]
    assert returns(walk, 0.5, Twice()) == [4 + 0.5 * (-1 + 0.5 * 23), -1 + 0.5 * 23, 23]
    assert returns(walk, 1.0, Twice()) == [26, 22, 23]


def test_a_forgiven_invalid_move_has_what_it_would_have_cost_then():
    (walk,) = play("Walk", 0, ("right", "jump", "right"), error_allowance=1)
    assert [step.info["step_reward"] for step in walk.steps] == [4, 0, -1, 10]
    assert returns(walk, 0.5) == [4 + 0.5 * 0.5 * (-1 + 0.5 * 10), 0, -1 + 0.5 * 10, 10]
    (walk,) = play("Walk", 0, ("jump",), options={"invalid_reward": -20}, error_allowance=1)
    assert [step.info["step_reward"] for step in walk.steps] == [5, -20]
    assert returns(walk, 0.5) == [5 - 20, -20], "no better than the last one, although it is earlier"


def test_a_configuration_names_the_discount():
    config = load_config("quickstart", {"rewards.discount": "0.5", "rewards.sampling": "[]"})
    (walk,) = play("Walk", 0, ("right",))
    buffer = build_buffer(config, None, None)
    buffer.add_player_trajectory(walk, "walk")
    assert sorted(step.advantage for step in buffer.draw(None)) == [4, 6, 10]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"learning.critic": "{}"}, r"rewards\.discount: is 0\.9, but a critic discounts by its own gamma"),
        (
            {"learning.algorithm": '{type = "all_actions", values = "tree"}'},
            r"rewards\.discount: credits each turn",
        ),
    ],
)
def test_a_discount_that_others_do_not_read_is_refused(changes, line):
    with pytest.raises(InputError, match=line):
        load_config("quickstart", {"rewards.discount": "0.9"} | changes)
    assert load_config("quickstart", {"rewards.discount": "1", "learning.critic": "{}"}).rewards.discount == 1
