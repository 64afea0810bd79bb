"""Answers that are given as the right ones: what they weigh, and what a policy learns from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_programs import played
from engine_requests import make_engine
from scoring_client import ScoringClient
from sparring.core import (
    AgentSpec,
    Arena,
    Episode,
    EpisodeError,
    EpisodeRequest,
    EpisodeState,
    GRPOCredit,
    InputError,
    Role,
    Rubric,
)
from sparring.core.credit.assigners import TARGET, assign
from sparring.learn.algorithms.reinforce import Reinforce
from sparring.learn.learner import Learner
from tiny_models import constant, tiny_policy

PROMPT = "Is it right?"


class Taught(Episode):
    """Gives the role its artifact as its answer, with a weight."""

    episode_type = "taught"
    rubric = Rubric([lambda rollout, arena: {"Pupil": 0.0}])

    async def rollout(self, arena, artifact, state=None):
        state = state or EpisodeState()
        messages = arena.get_role("Pupil").build_messages(PROMPT)
        response = await arena.call_model(messages, role_id="Pupil", given=artifact["say"])
        step = response.to_step("Pupil", messages)
        step.info[TARGET] = artifact["weight"]
        state.trajectory.append(step)
        return state


@pytest.mark.parametrize(("weight", "sign"), [(1.0, 1), (3.0, 1), (-1.0, -1), (0.0, 0)])
async def test_a_policy_learns_a_target_in_proportion_to_its_weight(weight, sign):
    policy = tiny_policy()
    engine = make_engine(policy)
    arena = Arena(engine)
    arena.add_role(Role("Pupil"))
    arena.add_episode("taught", Taught())
    messages = arena.get_role("Pupil").build_messages(PROMPT)
    before = await arena.score(messages, ["yes", "no"], role_id="Pupil")
    arena.get_batch = lambda: [EpisodeRequest("taught", {"say": "yes", "weight": weight})]
    batch = await arena.step()
    assert [record.advantage for record in batch.records] == [weight]
    assert math.fsum(batch.records[0].logprobs) == pytest.approx(before[0], abs=1e-4)
    Learner(policy, Reinforce(), constant(1e-2, max_mismatch=0.1)).update(batch.records)
    engine.publish("default", "default", 1)
    after = await arena.score(messages, ["yes", "no"], role_id="Pupil")
    change = (after[0] - after[1]) - (before[0] - before[1])
    assert change == pytest.approx(0.0, abs=1e-5) if sign == 0 else change * sign > 1e-3


amounts = st.floats(-5, 5).map(lambda value: round(value, 2))


@given(st.lists(st.tuples(amounts, st.none() | amounts), min_size=1, max_size=6))
def test_targets_have_their_weight_and_are_in_no_mean(some):
    results = [played("ask", {"S": reward}) for reward, _ in some]
    for result, (_, weight) in zip(results, some, strict=True):
        if weight is not None:
            result.rollout.steps[0].info[TARGET] = weight
    assign(GRPOCredit(), results)
    drawn = [reward for reward, weight in some if weight is None]
    mean = sum(drawn) / len(drawn) if drawn else 0.0
    for result, (reward, weight) in zip(results, some, strict=True):
        expected = reward - mean if weight is None else weight
        assert result.rollout.steps[0].advantage == pytest.approx(expected)


def test_a_critic_is_refused_for_a_policy_that_is_given_answers():
    result = played("ask", {"S": 1.0})
    step = result.rollout.steps[0]
    step.info[TARGET] = 1.0
    with pytest.raises(InputError, match=r"the policy .* is given right answers"):
        assign(GRPOCredit(), [result], frozenset([step.policy]))


@pytest.mark.parametrize("weight", ["1", None, math.nan, math.inf])
def test_a_weight_that_is_no_finite_number_is_an_error(weight):
    result = played("ask", {"S": 1.0})
    result.rollout.steps[0].info[TARGET] = weight
    with pytest.raises(EpisodeError, match="the weight of a target"):
        assign(GRPOCredit(), [result])


class Scored(Taught):
    async def rollout(self, arena, artifact, state=None):
        state = await super().rollout(arena, {"say": "x", "weight": 1.0}, state)
        state.data["scores"] = await arena.score([{"role": "user", "content": "?"}], ["x"], role_id="Judge")
        return state

    def get_extras(self, state):
        return dict(state.data)


@pytest.mark.parametrize(
    ("agents", "model"), [({}, "judging"), ({"Judge": AgentSpec("model", "judging@3")}, "judging@3")]
)
async def test_whoever_plays_a_role_scores_for_it(agents, model):
    arena = Arena(ScoringClient(lambda *_: "x", lambda name, *_: -1.0 if name == model else -2.0))
    arena.add_role(Role("Pupil"))
    arena.add_role(Role("Judge", policy="judging"))
    arena.add_episode("taught", Scored())
    results = await arena.generate_rollouts([EpisodeRequest("taught", None, agents=agents)])
    assert results[0].rollout.extras["scores"] == [-1.0]


async def test_a_role_that_is_not_there_cannot_score():
    with pytest.raises(InputError, match="there is no role Judge"):
        await Arena(ScoringClient(lambda *_: "x")).score([], ["x"], role_id="Judge")
