"""Rubrics: rewards are weighted sums, metrics have distinct names, and invalid rewards are rejected."""

import asyncio
import math

import pytest

from core_programs import step_of
from sparring.core import Arena, EpisodeError, MockInferenceClient, Role, Rollout, Rubric


def score(rubric, *role_ids, arena=None):
    rollout = Rollout(episode_type="talk", steps=[step_of(role_id) for role_id in role_ids])
    asyncio.run(rubric.score(rollout, arena or Arena(MockInferenceClient(["7"]))))
    return rollout


def length(rollout, arena):
    return {"a": 2.0, "b": 3.0}


async def fame(rollout, arena):
    await asyncio.sleep(0)
    return {"a": 10.0}


def test_rewards_are_the_weighted_sum_of_sync_and_async_functions():
    rollout = score(Rubric([length, fame], [0.5, 0.1]), "a", "b", "a")
    assert rollout.rewards == {"a": 2.0, "b": 1.5}
    assert [step.reward for step in rollout.steps] == [2.0, 1.5, 2.0]


def test_weights_are_one_unless_given():
    assert score(Rubric([length, fame]), "a").rewards == {"a": 12.0, "b": 3.0}


def test_metrics_are_the_unweighted_values_by_function_and_role():
    rollout = score(Rubric([length, fame], [0.5, 0.0]), "a")
    assert rollout.metrics == {"length/a": 2.0, "length/b": 3.0, "fame/a": 10.0}


def test_functions_with_the_same_name_have_separate_metrics():
    first, second = (lambda rollout, arena: {"a": 1.0}), (lambda rollout, arena: {"a": 2.0})
    rollout = score(Rubric([first, second]), "a")
    assert rollout.metrics == {"<lambda>/a": 1.0, "<lambda>-2/a": 2.0}


def test_a_role_that_acted_and_got_no_reward_is_an_error():
    with pytest.raises(EpisodeError, match="role c acted but no reward function scored it"):
        score(Rubric([length]), "a", "c")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e308, 10**400, None, "1", [1.0], 1j])
def test_a_reward_that_is_not_a_finite_number_is_an_error(value):
    def odd(rollout, arena):
        return {"a": value}

    with pytest.raises(EpisodeError, match=r"reward function odd for a gave .*not a finite number"):
        score(Rubric([odd]), "a")


def test_a_weighted_sum_that_is_no_reward_is_named_by_its_role():
    with pytest.raises(EpisodeError, match="the weighted sum for role a gave 2e\\+30"):
        score(Rubric([length], [1e30]), "a")


def test_a_function_that_forgot_to_return_is_named():
    def forgetful(rollout, arena):
        pass

    with pytest.raises(EpisodeError, match="forgetful returned None"):
        score(Rubric([forgetful]), "a")


def test_there_must_be_one_weight_for_each_function():
    with pytest.raises(ValueError, match="2 reward functions but 1 weights"):
        Rubric([length, fame], [1.0])


def misspelt(rollout, arena):
    return {"a": 1.0, "Judgee": 1.0}


def arena_of(*role_ids):
    arena = Arena(MockInferenceClient(["7"]))
    for role_id in role_ids:
        arena.add_role(Role(role_id))
    return arena


def test_a_reward_for_an_unknown_role_names_it_and_the_known_roles():
    with pytest.raises(
        EpisodeError, match="misspelt rewards 'Judgee', which is not a role; the roles are a, Judge"
    ):
        score(Rubric([misspelt]), "a", arena=arena_of("a", "Judge"))


def test_a_function_of_weight_0_is_a_metric_and_may_have_any_names():
    rollout = score(Rubric([fame, misspelt], [1.0, 0.0]), "a", arena=arena_of("a"))
    assert rollout.metrics["misspelt/Judgee"] == 1.0
