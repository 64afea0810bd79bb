"""Updates of several steps, compared with a plain loop over single samples with transformers and peft."""

import functools
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict

from matrices import first_of
from plain_critic import RANK, PlainCritic, new_plain_model
from sparring.config import load_config
from sparring.config.learning import CriticSettings
from sparring.core import SparringError, TrainingRecord, derive_seed
from sparring.learn.algorithms import Reinforce, TokenLoss
from sparring.learn.algorithms.cispo import Cispo
from sparring.learn.algorithms.dppo import Dppo
from sparring.learn.algorithms.gspo import Gspo
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.algorithms.reinforce import A2c
from sparring.learn.algorithms.sapo import Sapo
from sparring.learn.algorithms.terms import MASKING
from sparring.learn.batch import Tokens, epochs_of
from sparring.learn.critic import Critic
from sparring.learn.learner import Learner
from sparring.learn.policy import AVERAGE, LoraSettings, PolicyModel
from sparring.run.assembly import build_learner
from tiny_models import algorithm_of, constant, make_record, tiny_model, tiny_policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

M = 5
REGULARISER_WEIGHT = 0.2
RATE = 0.5
WEIGHTS = {"regulariser_weight": REGULARISER_WEIGHT, "regulariser_weight_end": REGULARISER_WEIGHT}
Records = list[TrainingRecord]


@dataclass(frozen=True)
class Case:
    """A loss with its options, and the steps of an update."""

    kind: type[TokenLoss]
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    minibatches: int = 1
    critic: dict[str, Any] | None = None


def new_critic(policy: PolicyModel, options: dict[str, Any]) -> Critic:
    """Return a critic with random weights."""
    critic = Critic(policy, CriticSettings(**options))
    randomize(critic)
    return critic


def randomize(critic: Critic) -> None:
    """Give a critic random weights."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def reference_weights(policy: PolicyModel) -> dict[str, torch.Tensor]:
    """Return weights for the reference that differ from the policy's."""
    return {name: 0.7 * tensor for name, tensor in policy.adapter_state().items()}


def new_learner(case: Case, *, sgd: bool = True, average_decay: float = 0.0) -> Learner:
    """Return a learner of a tiny policy; plain gradient descent does not enlarge a gradient's rounding."""
    policy = tiny_policy(rank=RANK)
    settings = constant(
        RATE,
        max_generation_len=M,
        max_batch_tokens=24,
        epochs=case.epochs,
        minibatches=case.minibatches,
        average_decay=average_decay,
        critic=case.critic,
    )
    learner = Learner(policy, algorithm_of(case.kind, **WEIGHTS | case.options), settings)
    if learner.critic is not None:
        randomize(learner.critic)
    if learner.reference is not None:
        policy.load_adapter_state(reference_weights(policy), learner.reference.name)
    if sgd:
        groups: list[dict[str, Any]] = [{"params": policy.adapter_parameters()}]
        if learner.critic is not None:
            groups.append(
                {"params": learner.critic.parameters(), "lr": learner.critic.settings.value_learning_rate}
            )
        learner.optimizer = torch.optim.SGD(groups, lr=RATE)
    return learner


def plain_scores(
    model: Any, record: TrainingRecord, completion: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token and the entropy at it."""
    prompt = record.prompt_token_ids
    logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs_TV = torch.log_softmax(logits_TV / record.temperature, dim=-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, torch.tensor(completion)[:, None])[:, 0], entropy_T


@functools.cache
def some_records() -> tuple[TrainingRecord, ...]:
    """Return answers that share prompts, drawn by an engine that differs from the policy."""
    model, draw = new_plain_model(), random.Random(3)
    records = []
    for number in range(8):
        record = make_record(
            [1, 2, 3, number % 3],
            [draw.randrange(4, 8) for _ in range(draw.randrange(1, 5))],
            draw.choice([-1.0, -0.5, 1.0, 2.0]),
            alternatives=[[4], [5, 6]],
            temperature=draw.choice([1.0, 0.8]),
        )
        with torch.no_grad():
            logprobs = plain_scores(model, record, record.completion_token_ids)[0].tolist()
        engine = [min(logprob + draw.uniform(-0.8, 0.8), -1e-3) for logprob in logprobs]
        records.append(
            make_record(
                record.prompt_token_ids,
                record.completion_token_ids,
                record.advantage,
                logprobs=engine,
                alternatives=record.alternatives,
                temperature=record.temperature,
            )
        )
    return tuple(records)


def games() -> Records:
    """Return the same answers as the turns of four games, of which the second adds to its own reward."""
    outcomes = [2.0, -1.0, 0.5, -2.0]
    return [
        replace(one, rollout_id=str(n // 2), turn=n % 2, reward=outcomes[n // 2] - 0.5 * (n % 2 == 1))
        for n, one in enumerate(some_records())
    ]


def plain_token_loss(case: Case, pi_T: Any, old_T: Any, mu_T: Any, advantage_T: Any) -> torch.Tensor:
    """Return the loss of each token of one answer, without its correction, by the papers' formulas."""
    options, ratio_T = case.options, torch.exp(pi_T - old_T)
    if case.kind is Ppo or case.kind is Gspo:
        low, high = options.get("clip_low", 0.2), options.get("clip_high", 0.2)
        if case.kind is Gspo:
            ratio_T = torch.exp((pi_T - old_T).mean()).expand(len(pi_T))
        bounded_T = torch.clip(ratio_T, 1 - low, 1 + high)
        loss_T = torch.maximum(-ratio_T * advantage_T, -bounded_T * advantage_T)
        if options.get("dual_clip"):
            bound_T = -options["dual_clip"] * advantage_T
            loss_T = torch.where(advantage_T < 0, torch.minimum(loss_T, bound_T), loss_T)
        return loss_T
    if case.kind is Cispo:
        return -torch.clip(ratio_T.detach(), 0, 1 + options.get("clip_high", 4)) * advantage_T * pi_T
    if case.kind is Sapo:
        tau_T = torch.where(advantage_T > 0, 1.0, 1.05)
        return -(4 / tau_T) / (1 + torch.exp(-tau_T * (ratio_T - 1))) * advantage_T
    if case.kind is Dppo:
        change_T = (pi_T.exp() - mu_T.exp()).detach() * advantage_T.sign()
        weight_T = torch.clip(torch.exp(pi_T.detach() - mu_T), max=20)
        bound_T = torch.where(advantage_T > 0, options.get("clip_high", 0.2), options.get("clip_low", 0.2))
        return (change_T <= bound_T) * weight_T * -advantage_T * pi_T
    return -advantage_T * pi_T


def binary_kl(one_T: Any, other_T: Any) -> torch.Tensor:
    p_T, q_T = one_T.exp(), other_T.exp()
    return p_T * torch.log(p_T / q_T) + (1 - p_T) * torch.log((1 - p_T) / (1 - q_T))


def plain_factors(case: Case, pi_T: Any, old_T: Any, mu_T: Any) -> torch.Tensor:
    options, kind = case.options, case.options.get("correction", "tis")
    pi_T = pi_T.detach()
    log_weight_T = (pi_T if issubclass(case.kind, Reinforce) else old_T) - mu_T
    if options.get("correction_level") == "sequence":
        log_weight_T = log_weight_T.sum().expand(len(pi_T))
    if options.get("correction_level") == "geometric":
        log_weight_T = log_weight_T.mean().expand(len(pi_T))
    weight_T, maximum = torch.exp(log_weight_T), options.get("max_importance_weight", 2.0)
    if kind == "none" or case.kind is Dppo:
        weight_T = torch.ones(len(pi_T))
    elif kind == "tis":
        weight_T = torch.clip(weight_T, max=maximum)
    elif kind == "mis":
        weight_T = weight_T * (weight_T <= maximum)
    elif kind == "icepop":
        weight_T = weight_T * (weight_T <= maximum) * (weight_T >= 0.5)
    elif kind == "kpop":
        divergence_T = torch.maximum(binary_kl(old_T, mu_T), binary_kl(mu_T, old_T))
        weight_T = torch.clip(weight_T, max=maximum) * (divergence_T <= options["kpop_threshold"])
    return weight_T


def plain_opsm(case: Case, pi_T: Any, mu_T: Any, advantage: float) -> float:
    threshold = case.options.get("opsm_threshold")
    left_out = threshold and advantage < 0 and (mu_T - pi_T.detach()).mean() > threshold
    return 0.0 if left_out else 1.0


def plain_divergence(case: Case, pi_T: torch.Tensor, base_T: torch.Tensor) -> torch.Tensor:
    x_T = pi_T - base_T
    k3_T = torch.exp(torch.clip(-x_T, max=2.6)) - 1 - torch.clip(-x_T, max=2.6)
    estimates = {"k1": x_T, "k2": x_T**2 / 2, "k3": k3_T}
    if case.options.get("kl_estimator") == "k3+":
        return estimates["k2"] - estimates["k2"].detach() + k3_T.detach()
    return estimates[case.options.get("kl_estimator", "k3")]


def plain_others(case: Case, model: Any, records: Records) -> dict[int, torch.Tensor]:
    """Return the log-probabilities by the model with which the divergence compares, of each record."""
    with torch.no_grad():
        if case.options.get("kl_to") == "reference":
            other = new_plain_model(reference_weights(tiny_policy(rank=RANK)))
            return {id(one): plain_scores(other, one, one.completion_token_ids)[0] for one in records}
        with model.disable_adapter():
            return {id(one): plain_scores(model, one, one.completion_token_ids)[0] for one in records}


def plain_answer_loss(
    case: Case,
    model: Any,
    record: TrainingRecord,
    advantage: float,
    old_T: torch.Tensor,
    base_T: torch.Tensor,
    mean_length: float,
) -> torch.Tensor:
    """Return one answer's loss before the mean over answers, without that of its value."""
    options = case.options
    pi_T, entropy_T = plain_scores(model, record, record.completion_token_ids)
    mu_T, advantage_T = torch.tensor(record.logprobs), torch.full((len(pi_T),), advantage)
    weight = options.get("kl_weight", 0.0)
    if options.get("kl_in") == "reward":
        kl_T = plain_divergence(case, old_T, base_T)
        advantage_T = advantage_T - weight * torch.stack([kl_T[t:].sum() for t in range(len(kl_T))])
    factor_T = plain_factors(case, pi_T, old_T, mu_T)
    loss_T = factor_T * plain_token_loss(case, pi_T, old_T, mu_T, advantage_T)
    loss_T = plain_opsm(case, pi_T, mu_T, advantage) * loss_T
    if options.get("kl_in") != "reward":
        loss_T = loss_T + weight * factor_T * plain_divergence(case, pi_T, base_T)
    loss_T = loss_T - options.get("entropy_weight", 0.0) * entropy_T
    default = "seq-mean-token-mean" if case.kind is Gspo else "seq-mean-token-sum-norm"
    divisor = {
        "token-mean": mean_length,
        "seq-mean-token-mean": len(loss_T),
        "seq-mean-token-sum": 1,
        "seq-mean-token-sum-norm": M,
    }[options.get("aggregation", default)]
    loss = loss_T.sum() / divisor
    if options.get("regulariser") == "uniform":
        answers = [plain_scores(model, record, answer)[0].sum() for answer in record.alternatives]
        loss = loss - REGULARISER_WEIGHT * torch.stack(answers).mean() / M
    return loss


def train_plainly(case: Case, records: Records) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Return the adapter and the critic's head after one update."""
    model, critic = new_plain_model(), None
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    steps = [(parameters, RATE)]
    advantages = {id(one): one.advantage for one in records}
    if case.critic is not None:
        critic = PlainCritic(new_critic(tiny_policy(rank=RANK), case.critic), case.critic)
        critic.judge(model, records)
        advantages = critic.advantages
        steps.append((critic.head, case.critic.get("value_learning_rate", 0.1)))
    with torch.no_grad():
        old = {id(one): plain_scores(model, one, one.completion_token_ids)[0] for one in records}
    others = plain_others(case, model, records)
    mean_length = sum(len(one.completion_token_ids) for one in records) / len(records)
    for parts in epochs_of(records, case.epochs, case.minibatches, derive_seed(0, "update", 0), None):
        for part in parts:
            for parameter in parameters:
                parameter.grad = None
            for record in part.records:
                key = id(record)
                loss = plain_answer_loss(
                    case, model, record, advantages[key], old[key], others[key], mean_length
                )
                if critic is not None:
                    loss = loss + critic.loss(model, record)
                (loss / len(part.records)).backward()
            for moved, rate in steps:
                torch.nn.utils.clip_grad_norm_(moved, 1.0)
                with torch.no_grad():
                    for parameter in moved:
                        parameter -= rate * parameter.grad
                        parameter.grad = None
    adapter = {name: tensor.detach() for name, tensor in get_peft_model_state_dict(model).items()}
    return adapter, [] if critic is None else [one.detach() for one in critic.head]


ONE_STEP = {
    "gspo": Case(Gspo, {"correction_level": "sequence"}),
    "token-mean": Case(Reinforce, {"aggregation": "token-mean"}),
    "seq-mean-token-sum": Case(Ppo, {"aggregation": "seq-mean-token-sum", "correction": "none"}),
    "icepop": Case(Ppo, {"correction": "icepop", "max_importance_weight": 1.4}),
    "mis": Case(Sapo, {"correction": "mis", "correction_level": "sequence"}),
    "geometric": Case(
        Ppo, {"correction": "icepop", "correction_level": "geometric", "max_importance_weight": 1.2}
    ),
    "opsm": Case(Reinforce, {"opsm_threshold": 0.1}),
    "entropy": Case(Reinforce, {"entropy_weight": 0.5}),
    "k2": Case(Reinforce, {"kl_weight": 0.4, "kl_estimator": "k2"}),
    "k3 by token": Case(Ppo, {"kl_weight": 0.4, "aggregation": "token-mean", "entropy_weight": 0.1}),
    "k3 by answer": Case(
        Sapo, {"kl_weight": 0.4, "aggregation": "seq-mean-token-mean", "regulariser": "uniform"}
    ),
    "k3 as a sum": Case(Reinforce, {"kl_weight": 0.4, "aggregation": "seq-mean-token-sum"}),
    "k3+": Case(Cispo, {"kl_weight": 0.4, "kl_estimator": "k3+", "entropy_weight": 0.1}),
    "k1 in the reward": Case(Reinforce, {"kl_weight": 0.4, "kl_estimator": "k1", "kl_in": "reward"}),
    "opsm with k1 in the reward": Case(
        Reinforce, {"kl_weight": 3.0, "kl_estimator": "k1", "kl_in": "reward", "opsm_threshold": 0.1}
    ),
}
SEVERAL_STEPS = {
    "reinforce": Case(Reinforce, {"regulariser": "uniform", "kl_weight": 0.2}, 2, 2),
    "ppo": Case(Ppo, {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3, "entropy_weight": 0.1}, 3, 2),
    "gspo": Case(Gspo, {"clip_low": 0.05, "clip_high": 0.06, "correction": "none"}, 2, 3),
    "cispo": Case(Cispo, {"clip_high": 0.2, "aggregation": "token-mean"}, 2, 3),
    "sapo": Case(Sapo, {"correction": "icepop", "regulariser": "uniform"}, 3, 1),
    "dppo": Case(Dppo, {"clip_low": 0.01, "clip_high": 0.03, "kl_weight": 0.1}, 2, 2),
    "k1 in the reward": Case(Ppo, {"kl_weight": 0.4, "kl_estimator": "k1", "kl_in": "reward"}, 1, 4),
    "critic": Case(A2c, {"correction": "kpop", "kpop_threshold": 3e-3}, 1, 1, {"normalize_advantages": True}),
    "nashpg": Case(
        Ppo, {"kl_weight": 0.2, "kl_to": "reference", "clip_high": 0.15}, 2, 3, {"value_clip": 0.02}
    ),
    "sequence": Case(Ppo, {"correction_level": "sequence", "opsm_threshold": 0.3, "kl_weight": 0.4}, 2, 2),
    "k3 without a correction": Case(Ppo, {"kl_weight": 0.4, "correction": "none"}, 2, 2),
    "k3 with icepop": Case(
        Sapo, {"kl_weight": 0.4, "correction": "icepop", "max_importance_weight": 1.4}, 2, 2
    ),
}


def assert_same_update(case: Case) -> dict[str, float]:
    records = list(some_records()) if case.critic is None else games()
    learner = new_learner(case)
    before = learner.policy.adapter_state()
    metrics = learner.update(records)
    expected, head = train_plainly(case, records)
    if learner.critic is not None:
        for found, plain in zip(learner.critic.parameters(), head, strict=True):
            torch.testing.assert_close(found.detach(), plain, rtol=1e-5, atol=1e-5)
    state = learner.policy.adapter_state()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)
    largest = max(float((state[name] - before[name]).abs().max()) for name in state)
    assert largest > 0.01  # otherwise the tolerance would hide any difference
    return metrics


@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_equals_that_of_a_plain_loop(name):
    assert_same_update(ONE_STEP[name])


@pytest.mark.parametrize("name", first_of(list(SEVERAL_STEPS), 6))
def test_several_steps_equal_those_of_a_plain_loop(name):
    metrics = assert_same_update(SEVERAL_STEPS[name])
    if SEVERAL_STEPS[name].kind in (Ppo, Gspo, Cispo, Dppo) and name != "k1 in the reward":
        assert 0 < metrics["clip_fraction"] < 1
    if SEVERAL_STEPS[name].options.get("correction") in MASKING:
        assert 0 < metrics["correction_masked"] < 1


def test_the_value_clip_acts_in_the_update_above():
    case = SEVERAL_STEPS["nashpg"]
    free = replace(case, critic={**(case.critic or {}), "value_clip": None})
    (clipped_D, _), (free_D, _) = (train_plainly(one, games())[1] for one in (case, free))
    assert float((clipped_D - free_D).abs().max()) > 1e-3


def test_an_update_of_several_steps_is_one_version_and_counts_each_answer_once():
    learner = new_learner(Case(Ppo, epochs=2, minibatches=5), sgd=False)
    metrics = learner.update(list(some_records()))
    assert learner.version == 1
    assert metrics["records"] == metrics["samples_seen"] == 8
    once = new_learner(Case(Ppo), sgd=False).update(list(some_records()))
    assert metrics["separate_tokens"] == 2 * once["separate_tokens"]
    assert metrics["mismatch"] == pytest.approx(once["mismatch"], rel=1e-5)
    assert int(learner.optimizer.state[learner.policy.adapter_parameters()[0]]["step"]) == 10


def test_the_average_moves_once_for_an_update():
    learner = new_learner(Case(Ppo, epochs=3), average_decay=0.9)
    policy = learner.policy
    before = policy.adapter_state()
    learner.update(list(some_records()))
    decay = 1 / 10
    for name, average in policy.adapter_state(AVERAGE).items():
        expected = decay * before[name] + (1 - decay) * policy.adapter_state()[name]
        torch.testing.assert_close(average, expected)


class FailsInThirdStep(Ppo):
    steps = 0

    def loss(self, logprobs_S: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        self.steps += 1
        if self.steps > 2:
            raise SparringError("no third step")
        return super().loss(logprobs_S, tokens)


@pytest.mark.parametrize("updates", [0, 1])
def test_a_failure_between_steps_undoes_them_all(updates):
    case = Case(FailsInThirdStep, {}, epochs=3)
    learner = new_learner(case, sgd=False)
    learner.algorithm.initialize(learner.policy, M)  # one plan for each step
    records = list(some_records())[:2]
    for _ in range(updates):
        learner.algorithm.steps = -1000
        learner.update(records)
    before = learner.tensors()
    learner.algorithm.steps = 0
    with pytest.raises(SparringError, match="no third step"):
        learner.update(records)
    after = learner.tensors()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert learner.version == updates


def test_mini_batches_hold_every_record_once_and_are_divided_anew_in_every_epoch():
    records = [make_record([1], [number]) for number in range(11)]

    def division(seed):
        epochs = epochs_of(records, 3, 4, seed, max_train_len=None)
        return [[[id(record) for record in one.records] for one in parts] for parts in epochs]

    for parts in division(5):
        assert sorted(map(len, parts)) == [2, 3, 3, 3]
        assert sorted(one for part in parts for one in part) == sorted(map(id, records))
    assert division(5) == division(5)
    different = [*division(5), *division(6)]
    assert all(one not in different[:number] for number, one in enumerate(different))


def after_an_update(seed: int, version: int = 0) -> dict[str, torch.Tensor]:
    """Return the adapter after an update of a run with this seed, whose records differ in their rewards."""
    changes = {"seed": str(seed), "learning.max_mismatch": "100", "learning.epochs": "1"}
    config = load_config("quickstart", changes, "ppo")
    learner = build_learner(config, tiny_policy(rank=RANK))
    learner.load_tensors(learner.tensors(), version, 0, started=version)
    learner.update([make_record([1, 2], [number], float(number % 3)) for number in range(3, 14)])
    return learner.policy.adapter_state()


def test_the_runs_seed_and_the_version_decide_how_an_update_is_divided():
    first = after_an_update(0)
    others = {True: [after_an_update(0)], False: [after_an_update(1), after_an_update(0, version=1)]}
    for same, states in others.items():
        for state in states:
            assert same == all(torch.equal(first[name], state[name]) for name in first)


def test_records_that_are_too_long_make_no_empty_mini_batch():
    records = [make_record([1, 2], [3]), make_record([1] * 30, [2]), make_record([1] * 31, [2])]
    assert [len(one.records) for one in epochs_of(records, 1, 2, 0, max_train_len=10)[0]] == [1]
    learner = new_learner(Case(Ppo, epochs=2, minibatches=2))
    learner.algorithm.max_train_len = 10
    assert learner.update(records)["records_too_long"] == 2


@pytest.mark.parametrize("critic", [None, {}])
def test_a_single_record_learns_alike_whatever_the_number_of_mini_batches(critic):
    found = []
    for minibatches in (1, 4):
        learner = new_learner(Case(Ppo, epochs=3, minibatches=minibatches, critic=critic))
        metrics = learner.update([make_record([1, 2], [3, 4], 1.0)])
        found.append((learner.policy.adapter_state(), metrics["mismatch"]))
    (left, mismatch), (right, other) = found
    assert mismatch == other
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_policies_of_one_run_divide_their_records_differently():
    config = load_config("quickstart", {}, "ppo")
    names = ("first", "second")
    model = PolicyModel(str(tiny_model("llama")), LoraSettings(RANK, 8.0), policies=names)
    seeds = {build_learner(config, model, name).seed for name in names}
    assert len(seeds) == 2
