"""Types of games: steps that are scored, rollouts, and the trajectories of their seats."""

import pytest

from sparring.core import InferenceClient, Rollout, SparringError, Step, trajectories_of


def step(pid, **fields):
    return Step(f"player_{pid}", [], [], pid=pid, env_id="Kuhn", **fields)


def test_a_game_is_split_into_the_trajectories_of_its_trained_seats():
    steps = [step(2), step(0), step(2)]
    info = {0: {"reason": "folded"}, 1: {"reason": "won"}}
    extras = {"final_rewards": {0: -1.0, 1: 2.0, 2: -1.0}, "game_info": info, "num_turns": 5}
    first, second = trajectories_of(
        Rollout(episode_type="game", artifact=None, id="g", steps=steps, extras=extras)
    )
    assert (first.pid, first.role_id, first.steps, first.final_reward) == (0, "player_0", [steps[1]], -1.0)
    assert (second.pid, second.role_id, second.steps) == (2, "player_2", [steps[0], steps[2]])
    assert (first.game_info, second.game_info) == ({"reason": "folded"}, {})
    for one in (first, second):
        assert (one.env_id, one.rollout_id, one.num_turns) == ("Kuhn", "g", 5)
        assert one.final_rewards == {0: -1.0, 1: 2.0, 2: -1.0}
    first.final_rewards[0] = 9.0
    assert extras["final_rewards"][0] == -1.0


def test_a_roles_reward_reaches_its_steps_and_no_others():
    rollout = Rollout(episode_type="game", artifact=None, id="g", steps=[step(0), step(1), step(0)])
    rollout.set_reward("player_0", 0.5)
    assert rollout.rewards == {"player_0": 0.5}
    assert [one.reward for one in rollout.steps] == [0.5, 0.0, 0.5]


async def test_a_client_that_cannot_score_says_so_by_name():
    class TextOnly(InferenceClient):
        async def complete(self, *args, **options):
            raise NotImplementedError

    with pytest.raises(SparringError, match=r"^TextOnly cannot score completions; use the embedded engine$"):
        await TextOnly().score([], ["yes"])
