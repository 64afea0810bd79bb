import json

import pytest

from sparring.collection import (
    ComposeSamplingRewardTransforms,
    NormalizeRewards,
    StepBuffer,
    records_from_steps,
)
from sparring.core import (
    AgentSpec,
    Arena,
    Episode,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    MockInferenceClient,
    Role,
    Rollout,
    Rubric,
    SparringError,
    Step,
    Trajectory,
)
from sparring.core.play import trajectories_of, trajectories_of_roles
from sparring.core.records import records_of, with_alternatives


def make_step(**changes):
    fields = {
        "role_id": "player-1",
        "prompt": [{"role": "user", "content": "2"}],
        "completion": [],
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 0],
        "completion_logprobs": [-0.5, -0.25],
        "reward": 2.0,
        "pid": 1,
        "env_id": "Kuhn",
        "policy_version": 4,
    }
    return Step(**{**fields, **changes})


def encoded(prompt, text):
    """Return the bytes of an answer and a stop token that the prompt names."""
    return [*text.encode(), int(prompt[0]["content"])]


def test_a_record_carries_the_ids_the_logprobs_and_both_rewards():
    buffer = StepBuffer(10, None, None, None, ComposeSamplingRewardTransforms([NormalizeRewards()]))
    for name, reward in (("game-a", 3.0), ("game-b", 1.0)):
        steps = [make_step(info={"legal_answers": ["check", "bet"], "finish_reason": "length"})]
        buffer.add_player_trajectory(Trajectory(1, "Kuhn", reward, steps, rollout_id=name), "Kuhn")
    records = records_from_steps(buffer.get_batch(2), encode_answer=encoded)
    record = next(record for record in records if record.rollout_id == "game-a")
    assert record.role_id == "player-1"
    assert record.prompt_token_ids == [1, 2]
    assert record.completion_token_ids == [3, 0]
    assert record.logprobs == [-0.5, -0.25]
    assert (record.reward, record.advantage) == (3.0, 1.0)
    assert record.alternatives == [[*b"check", 2], [*b"bet", 2]]
    assert record.policy_version == 4
    assert record.meta == {"pid": 1, "env_id": "Kuhn", "finish_reason": "length"}


def test_a_record_says_whether_its_answer_was_explored_also_after_the_buffer_was_restored():
    buffer = StepBuffer(10)
    notes = [{"explore": 0.2, "explored": True}, {"explore": 0.2, "explored": False}, {}]
    steps = [make_step(info={"legal_answers": ["check"], **one}) for one in notes]
    buffer.add_player_trajectory(Trajectory(1, "Kuhn", 1.0, steps, rollout_id="game"), "Kuhn")
    other = StepBuffer(10)
    other.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    records = sorted(records_from_steps(other.get_batch(3)), key=lambda record: record.turn)
    kept = [{name: one for name, one in record.meta.items() if "explore" in name} for record in records]
    assert kept == notes


def test_a_record_says_whether_others_than_its_policy_play():
    together = [make_step(policy="one", info={"others": False}), make_step(policy="one", info={})]
    apart = [make_step(policy="one", info={}), make_step(policy="two", info={})]
    alone = [make_step(policy="one", info={})]
    beside = {"Bob": AgentSpec("model", "fixed")}
    rollouts = [Rollout(episode_type="Kuhn", steps=steps) for steps in (together, apart, alone)]
    rollouts.append(Rollout(episode_type="Kuhn", steps=[make_step(policy="one", info={})], agents=beside))
    found = []
    for number, rollout in enumerate(rollouts):
        rollout.id, rollout.rewards = str(number), {step.role_id: 1.0 for step in rollout.steps}
        result = GenerateResult(rollout)
        direct = [record.meta.get("others", False) for record in records_of([result])]
        (trajectory, *_) = trajectories_of_roles(result, {step.role_id: 0 for step in rollout.steps})
        buffer = StepBuffer(10)
        buffer.add_player_trajectory(trajectory, "Kuhn")
        buffered = [one.meta.get("others", False) for one in records_from_steps(buffer.get_batch(1))]
        assert set(direct) == set(buffered)
        found.append(set(direct))
    assert found == [{False}, {True}, {False}, {True}]


class Ends(Episode):
    """A conversation in which the first speaker may have the only word."""

    episode_type = "ends"
    rubric = Rubric([lambda rollout, arena: dict.fromkeys((step.role_id for step in rollout.steps), 1.0)])

    async def rollout(self, arena, artifact, state=None):
        state = state or EpisodeState()
        for role in ("Alice", "Bob")[:artifact]:
            response = await arena.call_model("?", role_id=role)
            state.trajectory.append(response.to_step(role, "?"))
        return state


@pytest.mark.parametrize("policies", [("one", "one"), ("one", "two"), ("one", "base")])
async def test_whether_others_play_does_not_depend_on_where_an_episode_ends(policies):
    arena = Arena(MockInferenceClient(lambda messages, seed: "x"))
    arena.frozen |= {"base"}
    for role, policy in zip(("Alice", "Bob"), policies, strict=True):
        arena.add_role(Role(role, policy=policy))
    arena.add_episode("ends", Ends())
    results = await arena.generate_rollouts([EpisodeRequest("ends", length) for length in (1, 2)])
    found = {record.meta.get("others", False) for record in records_of(results)}
    for result in results:
        for trajectory in trajectories_of_roles(result, {"Alice": 0, "Bob": 1}):
            found |= {step.info.get("others", False) for step in trajectory.steps}
    assert found == {policies[0] != policies[1]}


def test_a_steps_own_note_on_others_is_kept():
    steps = [make_step(policy=name, info={"others": name == "one"}) for name in ("one", "two")]
    rollout = Rollout(episode_type="Kuhn", steps=steps, meta={"others": True}, rewards={"player-1": 1.0})
    rollout.rewards |= {step.role_id: 1.0 for step in steps}
    assert [one.meta["others"] for one in records_of([GenerateResult(rollout)])] == [True, False]


def test_a_record_has_the_place_of_its_step_among_those_of_all_seats():
    steps = [
        make_step(role_id=f"player_{pid}", pid=pid, prompt_token_ids=[9, n])
        for n, pid in enumerate([1, 0, 1])
    ]
    rollout = Rollout(episode_type="Kuhn", steps=steps, extras={"final_rewards": {0: 1.0, 1: -1.0}})
    buffer = StepBuffer(10)
    for trajectory in trajectories_of(rollout):
        buffer.add_player_trajectory(trajectory, "Kuhn")
    records = records_from_steps(buffer.get_batch(3))
    assert {(one.role_id, one.turn, one.place) for one in records} == {
        ("player_0", 0, 1),
        ("player_1", 0, 0),
        ("player_1", 1, 2),
    }


def test_without_an_encoder_there_are_no_alternatives():
    (record,) = records_from_steps([make_step(advantage=0.5, info={"legal_answers": ["check"]})])
    assert (record.reward, record.advantage) == (2.0, 0.5)
    assert (record.rollout_id, record.meta["finish_reason"], record.alternatives) == ("", "", [])
    assert with_alternatives([record], encoded)[0].alternatives == [[*b"check", 2]]
    (record,) = records_from_steps([make_step()], encode_answer=encoded)
    assert record.alternatives == []


@pytest.mark.parametrize(
    ("text", "reason", "goes_on"),
    [
        ("check katta <math", "length", True),
        ("\nbet, because", "length", True),
        ("check", "length", False),
        ("checking", "length", False),
        ("I check", "length", False),
        ("check katta", "stop", False),
    ],
)
def test_a_record_says_whether_a_cut_answer_went_on_after_a_legal_move(text, reason, goes_on):
    info = {"legal_answers": ["check", "bet"], "finish_reason": reason}
    step = make_step(completion=[{"role": "assistant", "content": text}], info=info)
    (record,) = records_from_steps([step])
    assert record.meta.get("goes_on", False) == goes_on


@pytest.mark.parametrize("missing", ["prompt_token_ids", "completion_token_ids", "completion_logprobs"])
def test_a_step_without_ids_or_logprobs_is_rejected_in_one_line(missing):
    steps = [make_step(), make_step(**{missing: None}, info={"rollout_id": "game-7"})]
    with pytest.raises(SparringError, match=r"^a step of role player-1 in rollout game-7 has no") as raised:
        records_from_steps(steps)
    assert "\n" not in str(raised.value)


def test_a_logprob_for_every_sampled_token_is_required():
    with pytest.raises(SparringError, match="has 2 drawn tokens but 1 log-probabilities"):
        records_from_steps([make_step(completion_logprobs=[-0.5])])
