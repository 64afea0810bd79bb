"""The critic: advantages by hand, values and gradients by plain transformers and peft, and what it learns."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from matrices import first_of
from plain_critic import PlainCritic, new_plain_model
from sparring.collection import PenaltyForInvalidMove, StepBuffer, records_from_steps
from sparring.config import load_config
from sparring.config.learning import CriticSettings
from sparring.core import (
    EpisodicRewardCredit,
    GenerateResult,
    InputError,
    Rollout,
    SparringError,
    Step,
    TrainingRecord,
    Trajectory,
)
from sparring.core.adapters import CRITIC_FILE
from sparring.core.records import joined, records_of
from sparring.learn.algorithms import Reinforce
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.algorithms.reinforce import A2c
from sparring.learn.checkpoints import SavedLearner, load_checkpoint, save_checkpoint
from sparring.learn.critic import Critic, RunningScale, ValuedTurn, advantages_of
from sparring.learn.learner import Learner
from sparring.learn.policy import TRAINED
from sparring.run.programs import build_program
from sparring.run.rewards import composed_transforms
from tiny_models import constant, make_record, tiny_policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # plain models

M = 5
Records = list[TrainingRecord]


def turns_of(
    rewards: list[float], values: list[float], rollout: str = "a", role: str = "x"
) -> list[ValuedTurn]:
    pairs = enumerate(zip(rewards, values, strict=True))
    return [ValuedTurn(rollout, role, number, reward, value) for number, (reward, value) in pairs]


def test_a_reward_at_the_end_reaches_earlier_turns_through_the_values_of_those_between():
    # delta is 0.9 * 0.4 - 0.2 = 0.16, 0.9 * 0.6 - 0.4 = 0.14, and 1 - 0.6 = 0.4; they decay by 0.9 * 0.5.
    turns = turns_of([1.0, 1.0, 1.0], [0.2, 0.4, 0.6])
    assert advantages_of(turns, 0.9, 0.5) == pytest.approx([0.16 + 0.45 * 0.32, 0.14 + 0.45 * 0.4, 0.4])


def test_turns_may_come_in_any_order_and_those_of_other_roles_and_rollouts_are_apart():
    turns = [
        *turns_of([1.0, 1.0, 1.0], [0.2, 0.4, 0.6]),
        *turns_of([-1.0, -1.0], [0.1, -0.5], role="y"),
        *turns_of([2.0], [0.5], rollout="b"),
    ]
    expected = [*advantages_of(turns[:3], 0.9, 0.5), 0.9 * -0.5 - 0.1 + 0.45 * -0.5, -0.5, 1.5]
    order = random.Random(0).sample(range(6), 6)
    found = advantages_of([turns[place] for place in order], 0.9, 0.5)
    assert found == pytest.approx([expected[place] for place in order])


def test_what_a_turns_own_transform_adds_is_the_reward_of_that_turn_which_the_next_value_should_expect():
    # The middle turn's reward is lower by 3. With lambda = 0 its value stands for all that follows the first
    # turn, and does not expect the 3, so the first turn has them.
    turns = turns_of([1.0, -2.0, 1.0], [0.5, 0.25, 0.0])
    assert advantages_of(turns, 1.0, 1.0) == pytest.approx([0.5, -2.25, 1.0])
    assert advantages_of(turns, 1.0, 0.0) == pytest.approx([3.0 + 0.25 - 0.5, -3.0 - 0.25, 1.0])


def test_a_turn_whose_next_one_is_missing_learns_from_its_own_reward():
    first, _, last = turns_of([1.0, 1.0, 1.0], [0.2, 0.4, 0.6])
    assert advantages_of([first, last], 0.9, 0.5) == pytest.approx([0.8, 0.4])
    unknown = [replace(turn, rollout_id="") for turn in (first, last)]
    assert advantages_of(unknown, 0.9, 0.5) == pytest.approx([0.8, 0.4])


numbers = st.floats(-10, 10)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
def test_without_discount_and_decay_the_advantage_is_the_reward_less_the_value(pairs):
    rewards, values = zip(*pairs, strict=True)
    found = advantages_of(turns_of(list(rewards), list(values)), 1.0, 1.0)
    assert found == pytest.approx([r - v for r, v in pairs], abs=1e-9)


def perturb(critic: Critic) -> None:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def talks(seed: int = 0) -> Records:
    """Return conversations of one to three turns whose first prompts are shared, one record for each turn."""
    draw = random.Random(seed)
    records = []
    for number in range(6):
        prompt, outcome = [1, 2, 3, number % 2], draw.choice([-1.0, 1.0])
        for turn in range(1 + number % 3):
            drawn = [draw.randrange(4, 8) for _ in range(draw.randrange(1, 4))]
            record = make_record(prompt, drawn, outcome - 0.5 * (turn == 1), logprobs=[-1.0] * len(drawn))
            records.append(replace(record, rollout_id=str(number), turn=turn))
            prompt = [*prompt, *drawn, 9]
    return records


PLAIN = CriticSettings()


def learner_of(
    critic: CriticSettings | None = PLAIN, kind: type[Reinforce] = A2c, rate: float = 0.1, **fields
) -> Learner:
    given = {"max_generation_len": M, "max_batch_tokens": 2048, "grad_clip": 1e9, **fields}
    return Learner(tiny_policy(), kind(), constant(rate, critic=critic, **given))


def gradients_of(learner: Learner, records: Records) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of adapter and head in an update."""
    learner.update(records)
    head = [] if learner.critic is None else learner.critic.parameters()
    return [p.grad.clone() for p in learner.policy.adapter_parameters()], [p.grad.clone() for p in head]


def plain_gradients(records: Records, options: dict[str, Any]) -> tuple[dict, list[torch.Tensor]]:
    """Return the gradients of adapter and head, each answer fed alone to transformers and peft."""
    model, critic = new_plain_model(), Critic(tiny_policy(), CriticSettings(**options))
    perturb(critic)
    plain = PlainCritic(critic, options)
    plain.judge(model, records)
    loss = torch.zeros(())
    for record in records:
        prompt, drawn = record.prompt_token_ids, record.completion_token_ids
        logits_TV = model(input_ids=torch.tensor([prompt + drawn])).logits[0, len(prompt) - 1 : -1]
        logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
        logprobs_T = logprobs_TV.gather(1, torch.tensor(drawn)[:, None])[:, 0]
        weight_T = torch.exp(logprobs_T.detach() - torch.tensor(record.logprobs)).clamp(max=2.0)
        loss = loss - plain.advantages[id(record)] * (weight_T * logprobs_T).sum() / M
        loss = loss + plain.loss(model, record)
    (loss / len(records)).backward()
    names = {name: one for name, one in model.named_parameters() if one.requires_grad}
    return {name.replace(".default", ""): one.grad for name, one in names.items()}, [
        one.grad for one in plain.head
    ]


@pytest.mark.parametrize("value_weight", first_of([0.7, 0.0]))
@pytest.mark.parametrize("max_batch_tokens", [2048, 16])
@pytest.mark.parametrize("together", [False, True])
def test_values_and_gradients_in_the_tree_are_those_of_each_answer_alone(
    value_weight, max_batch_tokens, together
):
    options = {"gamma": 0.9, "gae_lambda": 0.8, "value_weight": value_weight}
    records = talks()
    learner = learner_of(CriticSettings(**options), max_batch_tokens=max_batch_tokens)
    batch = joined(records) if together else records
    perturb(learner.critic)
    adapter, head = gradients_of(learner, batch)
    plain_adapter, plain_head = plain_gradients(records, options)
    for name, found in zip(learner.policy.adapter_shapes(), adapter, strict=True):
        torch.testing.assert_close(found, plain_adapter[name], rtol=1e-3, atol=1e-5)
    for found, expected in zip(head, plain_head, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def bandit(seed: int) -> Records:
    """Return games in two states, in which every answer wins with a chance of 0.9, or of 0.2."""
    draw = random.Random(seed)
    return [
        replace(
            make_record(prompt, [4], 1.0 if draw.random() < chance else -1.0, logprobs=[-1.0]),
            rollout_id=f"{number}-{chance}",
        )
        for number in range(50)
        for prompt, chance in (([1, 2, 3], 0.9), ([1, 2, 8, 9], 0.2))
    ]


@pytest.mark.slow  # its gradients are compared by default
def test_the_value_becomes_the_mean_reward_of_each_state():
    learner = learner_of(CriticSettings(value_learning_rate=0.03), rate=1e-5, grad_clip=1.0)
    metrics = [learner.update(bandit(step)) for step in range(120)]
    assert metrics[0]["mean_value"] == 0
    assert metrics[0]["explained_variance"] == pytest.approx(0)
    assert metrics[0]["value_loss"] == pytest.approx(0.5)
    mean_of = {
        name: sum(one[name] for one in metrics[-20:]) / 20 for name in ("mean_value", "explained_variance")
    }
    # Rewards are 0.8 and -0.6 in the mean; the variance between the states is 0.49 of 0.99.
    assert mean_of["mean_value"] == pytest.approx(0.1, abs=0.1)
    assert mean_of["explained_variance"] > 0.4
    batch = learner.algorithm.prepare_batch(bandit(0))
    learner.algorithm.keep_states(batch)
    value_R = learner.critic.values_of(batch)
    assert value_R[0] == pytest.approx(0.8, abs=0.15)
    assert value_R[1] == pytest.approx(-0.6, abs=0.15)


def test_the_head_learns_at_its_own_rate_and_its_loss_does_not_slow_the_adapter():
    """A gradient of the head that is far above the norm's limit leaves the adapter's gradient as it is."""
    learner = learner_of(CriticSettings(value_learning_rate=0.25), rate=1e-9, grad_clip=1e-3)
    critic = learner.critic
    learner.update(bandit(0))
    adapter = torch.cat([p.grad.flatten() for p in learner.policy.adapter_parameters()])
    head = torch.cat([p.grad.flatten() for p in critic.parameters()])
    assert float(adapter.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(head.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert abs(critic.bias.item()) == pytest.approx(0.25, rel=1e-2)


def test_a_clip_bounds_the_change_of_a_value_only_where_it_would_get_closer():
    critic = Critic(tiny_policy(), CriticSettings(value_clip=0.5))
    value_R = torch.tensor([0.25, 1.0, -1.0], requires_grad=True)
    loss = critic.loss(value_R, torch.zeros(3), torch.full((3,), 2.0))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (1.75**2 + 1.5**2 + 3.0**2))
    assert value_R.grad.tolist() == pytest.approx([-1.75, 0.0, -3.0])


def test_normalised_advantages_have_mean_0_and_deviation_1_and_the_targets_stay():
    records = [replace(record, reward=3 * record.reward + 1) for record in bandit(1)]
    answers, values = [(record, record) for record in records], [0.5] * len(records)
    plain, metrics = Critic(tiny_policy()).judge(answers, values)
    scaled, same = Critic(tiny_policy(), CriticSettings(normalize_advantages=True)).judge(answers, values)
    assert metrics == same
    advantages = torch.from_numpy(scaled[0])
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantages.std(correction=0)) == pytest.approx(1)
    assert scaled[2].tolist() == plain[2].tolist()


def test_the_deviation_of_returns_forgets_slowly_and_ignores_batches_without_a_reward():
    scale = RunningScale()
    assert scale.value == 1
    for returns in ([3.0, -1.0], [0.0, 0.0], [5.0, 5.0]):
        scale.add(returns)
    assert scale.value == pytest.approx(15**0.5)
    for _ in range(1000):
        scale.add([-0.5, 0.5])
    assert scale.value == pytest.approx(0.5, rel=0.01)
    with pytest.raises(SparringError, match="not finite"):
        scale.add([1e200])


def test_a_game_that_pays_sixteen_times_as_much_makes_the_same_steps():
    """A factor of 16 changes no rounding."""
    learners = []
    for stake in (1.0, 16.0):
        learner = learner_of(CriticSettings(value_clip=0.05), Ppo, epochs=2, minibatches=2, rate=0.01)
        for step in range(3):
            records = [replace(one, reward=(1 + step) * stake * one.reward) for one in talks(step)]
            metrics = learner.update(records)
        learners.append((learner.tensors(), metrics))
    (small, small_metrics), (large, large_metrics) = learners
    assert small.keys() == large.keys()
    for name in small.keys() - {"critic.mean_square"}:
        assert torch.equal(small[name], large[name]), name
    assert large["critic.mean_square"] == 256 * small["critic.mean_square"]
    assert small_metrics["mean_value"] != 0
    for name, factor in {"mean_value": 16, "value_loss": 256, "reward_scale": 16, "loss": 1}.items():
        assert large_metrics[name] == factor * small_metrics[name]


def test_values_in_units_of_reward_stay_when_the_deviation_changes():
    learner = learner_of()
    critic = learner.critic
    learner.update(talks())
    batch = learner.algorithm.prepare_batch(talks())
    learner.algorithm.keep_states(batch)
    before, scale = critic.values_of(batch), critic.returns.value
    answers = [(record, answer) for record in talks() for answer in record.answers]
    critic.judge([(record, replace(one, reward=100.0)) for record, one in answers], before.tolist())
    assert critic.returns.value > 10 * scale
    assert critic.values_of(batch) == pytest.approx(before, rel=1e-4)


def test_answers_that_are_too_long_are_left_out_and_the_turn_before_is_the_last():
    records = joined(talks())
    learner = learner_of(max_train_len=7)
    metrics = learner.update(records)
    kept = [one for one in talks() if len(one.prompt_token_ids) < 7]
    assert (metrics["records"], metrics["records_too_long"]) == (len(kept), len(talks()) - len(kept))
    turns = [ValuedTurn(one.rollout_id, one.role_id, one.turn, one.reward, 0.0) for one in kept]
    losses = [0.5 * advantage**2 for advantage in advantages_of(turns, 1.0, 0.95)]
    assert metrics["value_loss"] == pytest.approx(sum(losses) / len(losses))
    assert {one.turn for one in kept} == {0, 1}


def test_training_continues_bit_by_bit_from_its_tensors_and_also_without_those_of_a_critic():
    def fresh(**options) -> Learner:
        return learner_of(kind=Ppo, rate=0.01, **options)

    whole = fresh(epochs=2, minibatches=2)
    for step in range(2):
        whole.update(talks(step))
    saved, version, seen = whole.tensors(), whole.version, whole.samples_seen
    assert float(saved["critic.weight"].abs().sum()) > 0
    resumed = fresh(epochs=2, minibatches=2)
    resumed.load_tensors(saved, version, seen)
    for learner in (whole, resumed):
        learner.update(talks(2))
    left, right = whole.tensors(), resumed.tensors()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)

    before = learner_of(None, Reinforce)
    before.update(talks())
    later = fresh()
    later.load_tensors(before.tensors(), 1, 1)
    assert float(later.tensors()["critic.weight"].abs().sum()) == 0
    assert later.update(talks(3))["value_loss"] > 0


@pytest.mark.parametrize("updates", [0, 1])
@pytest.mark.parametrize("fault", ["not finite", "disagree"])
def test_an_update_that_fails_leaves_the_critic_as_it_was(updates, fault):
    learner = learner_of(rate=0.01)
    for _ in range(updates):
        learner.update(talks())
    before = learner.tensors()
    records = talks(1)
    if fault == "not finite":
        records.append(replace(records[0], rollout_id="bad", reward=float("inf")))
    else:
        learner.settings = constant(
            max_mismatch=1e-9
        )  # the step fails, after the critic has measured the batch
    with pytest.raises(SparringError, match=fault):
        learner.update(records)
    after = learner.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_head_is_saved_beside_its_adapter(tmp_path):
    learner = learner_of()
    policy = learner.policy
    learner.update(talks())
    saved = [SavedLearner(TRAINED, learner.result, learner.tensors())]
    save_checkpoint(tmp_path / "step-1", policy, policy.model_name, saved, {})
    head = load_file(tmp_path / "step-1" / CRITIC_FILE)
    assert torch.equal(head["weight"], learner.critic.weight_D)
    assert torch.equal(head["bias"], learner.critic.bias)
    assert head["scale"].item() == learner.critic.scale > 0
    assert torch.equal(load_checkpoint(tmp_path / "step-1").learners[TRAINED]["critic.bias"], head["bias"])


def test_the_records_of_a_program_carry_the_number_of_the_roles_turn():
    rollout = Rollout(episode_type="talk")
    for role, ids in (("one", [1]), ("two", [2]), ("one", [1, 7, 3]), ("two", [9])):
        rollout.steps.append(Step(role, [], [], ids, [7], [-0.5], reward=0.5, advantage=0.25))
    records = records_of([GenerateResult(rollout)])
    turns = [(one.role_id, answer.turn, answer.reward) for one in records for answer in one.answers]
    assert turns == [("one", 0, 0.5), ("one", 1, 0.5), ("two", 0, 0.5), ("two", 1, 0.5)]
    assert [answer.place for one in records for answer in one.answers] == [0, 2, 1, 3]


def test_the_records_of_a_buffer_carry_turns_and_rewards_without_a_baseline():
    steps = [
        Step(
            "player_0",
            [{"role": "user", "content": "?"}],
            [],
            [1, 2, turn],
            [3],
            [-0.5],
            info={"format_feedback": {"invalid_move": turn == 1}},
        )
        for turn in range(3)
    ]
    config = load_config("quickstart", {"learning.critic": "{}"})
    assert composed_transforms(config)[2] is None
    buffer = StepBuffer(10, None, None, PenaltyForInvalidMove(0.0, -0.5), composed_transforms(config)[2])
    buffer.add_player_trajectory(Trajectory(0, "Kuhn", 2.0, steps, rollout_id="g"), "Kuhn")
    records = sorted(records_from_steps(buffer.get_batch(3)), key=lambda one: one.turn)
    assert [(one.turn, one.reward) for one in records] == [(0, 2.0), (1, 1.5), (2, 2.0)]


def test_a_critic_takes_the_place_of_a_programs_credit():
    config = load_config("debate", {"learning.critic": "{}"})
    arena = build_program(config)
    assert arena is not None
    assert isinstance(arena.credit_assigner, EpisodicRewardCredit)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"learning.algorithm": '{type = "a2c"}'},
            "learning.critic: is missing, but learning.algorithm is a2c",
        ),
        (
            {
                "learning.algorithm": '{type = "magnet"}',
                "learning.average_decay": "0.8",
                "learning.critic": "{}",
            },
            "learning.critic: is of no use to learning.algorithm",
        ),
        ({"learning.critic": "{}", "credit": "{}"}, "learning.critic: takes the place of credit"),
        (
            {"learning.critic": "{}", "rewards.sampling": "[]"},
            r"learning.critic: takes the place of rewards\.sampling",
        ),
        ({"learning.critic": "{gamma = 0}"}, "learning.critic.gamma"),
        ({"learning.critic": "{value_clip = 0}"}, "learning.critic.value_clip"),
    ],
)
def test_a_critic_that_makes_no_sense_is_refused_in_one_line(overrides, message):
    with pytest.raises(InputError, match=message) as raised:
        load_config("tictactoe", overrides)
    assert "\n" not in str(raised.value)
