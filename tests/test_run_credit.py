"""Both ways from reward to advantage, in games and in programs."""

import json

import pytest

from game_runs import configure, metrics_of, run
from program_runs import adapter
from program_runs import configure as configure_program
from sparring.collection.buffers import StepBuffer
from sparring.collection.rollout_log import BatchLog
from sparring.collection.transforms import CreditTransform
from sparring.config import load_config
from sparring.config.rewards import CreditSettings
from sparring.core import (
    EpisodicRewardCredit,
    GenerateResult,
    GRPOCredit,
    InputError,
    RAECredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
    Rollout,
    SPOCredit,
    Step,
)
from sparring.core.credit.assigners import apply_credit
from sparring.core.play import trajectories_of_roles
from sparring.run.rewards import build_credit


def step(role, rollout_id, reward, *, env_id="kuhn", policy="default"):
    """Return a step as a buffer gives it to the sampling transforms."""
    one = Step(role, [], [], [1], [2], [-0.1], reward, reward, info={"rollout_id": rollout_id}, policy=policy)
    one.env_id = env_id
    return one


def test_credit_in_a_buffer_compares_whole_episodes():
    steps = [step("a", "x", 1.0), step("a", "x", 1.0), step("a", "y", -1.0), step("b", "x", 5.0)]
    found = [one.advantage for one in CreditTransform(GRPOCredit())(steps)]
    assert found == [1.0, 1.0, -1.0, 0.0], "the mean of a is 0, although x has more steps; b is alone"


def test_a_step_keeps_the_difference_that_a_step_transform_made():
    steps = [step("a", "x", 1.0), step("a", "x", 0.0), step("a", "y", -0.5)]
    found = [one.advantage for one in CreditTransform(GRPOCredit())(steps)]
    assert found == [1.0, 0.0, -0.5], "means 0.5 and -0.5 over both episodes, and half a point apart"
    steps = [step("a", "x", 1.0), step("a", "x", 0.0), step("a", "y", -0.5)]
    found = [one.advantage for one in CreditTransform(EpisodicRewardCredit())(steps)]
    assert found == [1.0, 0.0, -0.5], "rewards are advantages as they are, and the difference counts once"


def test_credit_with_a_memory_is_saved_with_the_buffer():
    credit = CreditTransform(RAECredit(decay=0.5))
    credit([step("a", "x", 1.0)])
    again = CreditTransform(RAECredit(decay=0.5))
    again.load_state_dict(credit.state_dict())
    assert [one.advantage for one in again([step("a", "y", 1.0)])] == [0.5]


def game_batch():
    """Two games: ``a`` moves at [1], ``b`` answers at [1, 2], and in the first game ``a`` moves again."""

    def move(role, rollout_id, reward, prompt, logprob=-0.5):
        one = step(role, rollout_id, reward)
        one.prompt_token_ids, one.completion_logprobs = prompt, [logprob]
        return one

    return [
        move("a", "x", 1.0, [1]),
        move("b", "x", -1.0, [1, 2]),
        move("a", "x", 1.0, [1, 2, 3]),
        move("a", "y", 0.0, [1]),
        move("b", "y", 2.0, [1, 2]),
    ]


@pytest.mark.parametrize(
    ("credit", "wanted"),
    [
        (GRPOCredit(group="prompt"), [0.5, -1.5, 0.0, -0.5, 1.5]),
        (RLOOCredit(group="prompt"), [1.0, -3.0, 0.0, -1.0, 3.0]),
        (RLOOCredit(), [1.0, -3.0, 1.0, -1.0, 3.0]),
        # Differences 1/2, -3/2, 0, -1/2, 3/2: deviation 1.
        (ReinforcePPBaselineCredit(group="prompt"), [0.5, -1.5, 0.0, -0.5, 1.5]),
        # Rewards 1, -1, 0, 2, one for each seat of a game: mean 1/2, deviation sqrt(5)/2.
        (ReinforcePPCredit(), [one / 5**0.5 for one in (1, -3, 1, -1, 3)]),
        # The other game's rewards are 0, 2, 0, 1, -1: advantages 1, -3, 1, -1, 3, of deviation sqrt(21/5).
        (SPOCredit(), [one / 4.2**0.5 for one in (1, -3, 1, -1, 3)]),
    ],
)
def test_games_get_the_advantages_of_their_moves(credit, wanted):
    found = [one.advantage for one in CreditTransform(credit)(game_batch())]
    assert found == pytest.approx(wanted)


def test_games_that_meet_a_position_again_use_its_tracked_baseline():
    credit = CreditTransform(SPOCredit())
    credit(game_batch())
    restored = CreditTransform(SPOCredit())
    restored.load_state_dict(json.loads(json.dumps(credit.state_dict())))
    # The values are 1/2 at [1], 1/2 at [1, 2], and 1 at [1, 2, 3]: 1/2, -3/2, 0, -1/2, 3/2, of deviation 1.
    wanted = pytest.approx([0.5, -1.5, 0.0, -0.5, 1.5])
    assert [one.advantage for one in credit(game_batch())] == wanted
    assert [one.advantage for one in restored(game_batch())] == wanted
    assert restored.state_dict() == credit.state_dict()


def test_a_step_transform_s_difference_remains_beside_an_advantage_of_a_step():
    steps = game_batch()
    steps[0].advantage, steps[2].advantage = 1.5, 0.5  # the role's reward in the game is still 1
    found = [one.advantage for one in CreditTransform(GRPOCredit(group="prompt"))(steps)]
    assert found == [1.0, -1.5, -0.5, -0.5, 1.5]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, GRPOCredit()),
        ({"normalize": True, "group": "prompt"}, GRPOCredit(normalize=True, group="prompt")),
        ({"type": "rloo"}, RLOOCredit()),
        ({"type": "rloo", "group": "prompt"}, RLOOCredit("prompt")),
        ({"type": "reinforce_pp_baseline", "group": "prompt"}, ReinforcePPBaselineCredit("prompt")),
        ({"type": "rae", "decay": 0.5}, RAECredit(0.5)),
        ({"type": "spo", "half_life": 0.25}, SPOCredit(0.25)),
    ],
)
def test_a_configuration_names_a_credit_assigner(fields, wanted):
    assert build_credit(CreditSettings(**fields)) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"), [("reinforce_pp", ReinforcePPCredit), ("episodic", EpisodicRewardCredit)]
)
def test_a_configuration_names_a_credit_assigner_without_settings(name, wanted):
    assert type(build_credit(CreditSettings(type=name))) is wanted


def test_a_half_life_is_positive():
    with pytest.raises(InputError, match=r"credit\.half_life: must be at least 1e-09"):
        load_config("quickstart", {"credit.type": "spo", "credit.half_life": "0"})


def test_a_buffer_stores_the_roles_of_a_program_that_are_trained():
    steps = [step("pro", "x", 1.0), step("con", "x", -1.0), step("judge", "x", 0.0, policy="")]
    rewards = {"pro": 1.0, "con": -1.0, "judge": 0.0}
    child = Rollout(episode_type="case", id="x.0", steps=[step("pro", "", 0.5)], rewards={"pro": 0.5})
    root = Rollout(episode_type="debate", id="x", steps=steps, rewards=rewards, meta={"group": "topic"})
    result = GenerateResult(root, [GenerateResult(child)])
    found = trajectories_of_roles(result, {"pro": 0, "con": 1, "judge": 2})
    assert [(one.role_id, one.env_id, one.final_reward) for one in found] == [
        ("pro", "debate", 1.0),
        ("con", "debate", -1.0),
        ("pro", "case", 0.5),
    ]
    assert found[0].final_rewards == {0: 1.0, 1: -1.0, 2: 0.0}
    buffer = StepBuffer(10)
    for one in found:
        buffer.add_player_trajectory(one, one.env_id)
    drawn = {(one.pid, one.info["group"]) for one in buffer.get_batch(3)}
    assert drawn == {(0, "topic"), (1, "topic"), (0, None)}
    assert steps[0].env_id == "kuhn", "the program's own steps are not changed"


def solving(rollout_id, reward):
    steps, rewards = [step("solver", "", reward)], {"solver": reward}
    rollout = Rollout(episode_type="solve", id=rollout_id, steps=steps, rewards=rewards)
    return GenerateResult(rollout)


def proposing(rollout_id, reward, solved, group):
    """A proposer's question, answered by several solvers."""
    steps, rewards = [step("proposer", "", reward)], {"proposer": reward}
    meta = {"group": group}
    rollout = Rollout(episode_type="propose", id=rollout_id, steps=steps, rewards=rewards, meta=meta)
    return GenerateResult(rollout, [solving(f"{rollout_id}.{n}", one) for n, one in enumerate(solved)])


@pytest.mark.parametrize(
    "credit",
    [
        GRPOCredit,
        lambda: GRPOCredit(normalize=True),
        lambda: GRPOCredit(group="prompt"),
        RLOOCredit,
        lambda: RLOOCredit(group="prompt"),
        ReinforcePPCredit,
        ReinforcePPBaselineCredit,
        lambda: ReinforcePPBaselineCredit(group="prompt"),
        RAECredit,
        SPOCredit,
    ],
)
@pytest.mark.parametrize("updates", [1, 3])
def test_the_advantages_of_nested_episodes_are_the_same_with_and_without_a_buffer(credit, updates):
    direct, through = credit(), credit()
    buffer = StepBuffer(100, sampling_reward_transformation=CreditTransform(through))
    for _ in range(updates):
        results = [
            proposing("easy", 0.75, [1.0, 1.0, 1.0, 0.0], "first"),
            proposing("hard", 0.25, [0.0, 0.0, 0.0, 1.0], "first"),
            proposing("other", 1.0, [0.5, 0.25], "second"),
            proposing("another", 0.5, [1.0, 0.0], "second"),
            solving("known", 1.0),
            solving("unknown", 0.0),
            GenerateResult(solving("left out", 9.0).rollout, [solving("as well", 9.0)], is_trainable=False),
        ]
        for result in results:
            for one in trajectories_of_roles(result, {"proposer": 0, "solver": 1}):
                buffer.add_player_trajectory(one, one.env_id)
        found = {one.info["rollout_id"]: one.advantage for one in buffer.get_batch(buffer.entries())}
        apply_credit(results, direct.compute(results))
        rollouts = [rollout for result in results for rollout in result.trainable_rollouts()]
        wanted = {rollout.id: rollout.steps[0].advantage for rollout in rollouts}
        assert len(wanted) == 18
        assert found == pytest.approx(wanted)
    assert through.state_dict() == direct.state_dict()


def test_games_learn_from_a_credit_assigner(model, tmp_path):
    run(configure(model, credit__type="rae", learning__steps="1"), tmp_path / "run")
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-000001" / "state.json").read_text())
    (saved,) = state["source"]["buffer"]["buffer"]["transforms"]["sampling"]["transforms"]
    assert saved["type"] == "CreditTransform"
    assert saved["state"]["baselines"]["kuhn_poker/player_0/default"] < 0, "its moves are invalid"


def test_a_program_learns_from_a_replay_buffer_with_transforms(model, tmp_path):
    changes = {
        "rewards__final": '[{type = "role_advantage_by_env", tau = 0.1}]',
        "rewards__sampling": "[]",
        "buffer__batch_size": "5",
        "buffer__max_size": "100",
    }
    run(configure_program(model, tmp_path, **changes), tmp_path / "run")
    lines = metrics_of(tmp_path / "run")
    records = [line.get("learner/hider/records", 0) + line.get("learner/seeker/records", 0) for line in lines]
    assert records == [5] * 4
    assert not any("program/equal_group_share" in line for line in lines), "no group is compared"
    last = lines[-1]
    assert last["accounts/steps added"] == 48
    assert last["accounts/steps sampled"] == 20
    assert last["accounts/steps stored"] + last["accounts/steps dropped_stale"] == 28
    assert last["buffer/sampled"] == 20
    assert "buffer/reward_final" in last
    batch = BatchLog(tmp_path / "run" / "batches").read(1)
    assert len(batch) == 5
    before, after = adapter(tmp_path / "run", 0, "hider"), adapter(tmp_path / "run", 4, "hider")
    assert any((before[name] != after[name]).any() for name in before)


def test_credit_and_sampling_transforms_exclude_each_other():
    both = {"credit.type": "grpo", "rewards.sampling": "[]"}
    with pytest.raises(InputError, match=r"credit: takes the place of rewards\.sampling"):
        load_config("quickstart", both)
