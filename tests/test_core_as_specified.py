"""Calls exactly as specification 001 writes them, where they could otherwise surprise a newcomer."""

import pytest

from sparring import core
from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    Episode,
    EpisodeRequest,
    EpisodeState,
    MockInferenceClient,
    Role,
    Rollout,
    Rubric,
    TrainingRecord,
)


def test_fields_whose_order_differs_from_the_specification_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        Rollout("id-1", "debate", {"topic": "x"}, {})
    with pytest.raises(TypeError, match="positional"):
        TrainingRecord("A", "r", [1], [2], [-0.5], [0, 1], 1.0, 0.5)


def test_a_request_accepts_none_for_meta():
    request = EpisodeRequest("talk", {}, None)
    assert request.meta == {}
    assert request.is_trainable


async def test_a_mock_client_has_a_default_answer():
    response = await MockInferenceClient().complete([{"role": "user", "content": "hello"}])
    assert response.text
    assert response.completion_token_ids


def test_the_key_of_a_step_is_exported():
    assert core.RolloutStepKey == tuple[str, int]
    assert hasattr(core, "RolloutStepKey")


class Ask(Episode):
    """Calls the model with a text, as the proposer of the specification does."""

    episode_type = "ask"
    rubric = Rubric([lambda rollout, arena: {"Proposer": 1.0}])

    async def rollout(self, arena, artifact, state=None):
        state = state or EpisodeState()
        response = await self.call_model("Proposer", artifact, arena)
        state.trajectory.append(response.to_step("Proposer", artifact))
        return state


async def test_a_string_in_place_of_messages_is_one_user_message():
    arena = Arena(MockInferenceClient(lambda messages, seed: f"{messages}"), retries=0)
    arena.add_role(Role("Proposer", system_prompt="Be brief."))
    arena.add_episode("ask", Ask())
    (result,) = await arena.generate_rollouts([EpisodeRequest("ask", "What is 2+2?")])
    (step,) = result.rollout.steps
    asked = [{"role": "user", "content": "What is 2+2?"}]
    assert step.prompt == asked
    assert step.completion_text == str(asked)
    response = await arena.call_model("judge this")
    assert response.text == str([{"role": "user", "content": "judge this"}])


class Debate(AlternatingRolesEpisode):
    """Does not name its roles."""

    episode_type = "debate"
    rubric = Rubric([lambda rollout, arena: {step.role_id: 0.0 for step in rollout.steps}])

    def get_initial_prompt(self, arena, artifact, state):
        return f"Topic: {artifact['topic']}"


async def test_turns_alternate_between_the_arenas_two_roles_unless_roles_are_named():
    arena = Arena(MockInferenceClient(), retries=0)
    for role_id in ("Neg", "Aff"):
        arena.add_role(Role(role_id))
    arena.add_episode("debate", Debate(max_turns=3))
    result = await arena.run_episode("debate", {"topic": "x"})
    assert [step.role_id for step in result.rollout.steps] == ["Neg", "Aff", "Neg"]
