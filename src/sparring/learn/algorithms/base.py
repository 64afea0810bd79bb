"""BaseAlgo: compute gradients from training records over prefix trees."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from sparring.config.algorithms import LossSettings
from sparring.core import InputError, SparringError, TrainingRecord
from sparring.core.adapters import reference_of
from sparring.core.errors import shown
from sparring.core.own_code import method_of, returned
from sparring.learn.algorithms.terms import (
    Mismatch,
    cross_entropy,
    divergence,
    value_loss,
    with_kl_in_advantage,
)
from sparring.learn.attention_choice import learner_limits
from sparring.learn.batch import Batch, Tokens, mean_answer_length, pack
from sparring.learn.critic import Critic
from sparring.learn.legal_answers import FloatArray
from sparring.learn.logprobs import plan_logprobs, plan_outputs, plan_states
from sparring.learn.policy import BASE, TRAINED, PolicyModel
from sparring.learn.trie import TreePlan

AnswerWeights = Callable[[int, Tensor], FloatArray]
"""Returns weight_A from the number of a plan and its logprobs_C; only those of the plan's answers count."""
NO_TERMS = LossSettings()


class BaseAlgo(ABC):
    """What a learner does with a batch. A subclass defines :meth:`loss`.

    A learner calls :meth:`initialize` once, and for each update :meth:`begin`, :meth:`prepare_batch` and
    :meth:`update`. The regulariser is a mean over answers of sums over the tokens of legal answers, divided
    by the constant M; ``regulariser_ends`` is its weight at the first and at the last update. RLOO,
    REINFORCE++ and verl's ``use_kl_in_reward`` differ from ``kl_in = "reward"``: they subtract the divergence
    from the rewards, before a baseline is subtracted or a deviation is divided by.
    """

    critic: Critic | None = None
    """The learner's critic, whose loss is added to the loss, if there is one."""
    learns_from_draws = True
    """Whether the loss needs every drawn token, with its log-probability before the first step.

    If not, most of an illegal answer is not computed, and several epochs need no forward pass beforehand.
    """
    squares_decay = 0.99
    """AdamW's second beta."""
    needs_answers_before = False
    """Whether an update begins with a pass for the policy's probabilities of all legal answers."""
    learns_from_advantages = True
    """Whether the last update learned from the advantages of its records, and not from other values."""
    counts_hits = False
    """Whether ``accuracy`` is measured: the share of drawn tokens that are the likeliest ones."""

    def __init__(self, terms: LossSettings = NO_TERMS) -> None:
        self.terms = terms
        self.regulariser_ends = terms.regulariser_ends
        self._metric_sums = defaultdict[str, float](float)

    def initialize(
        self,
        policy: PolicyModel,
        max_generation_len: int,
        max_train_len: int | None = None,
        max_batch_tokens: int = 2048,
        adapter: str = TRAINED,
    ) -> None:
        """Set the model to train, the loss's constant normaliser M, and the limits of a record and a pass."""
        self.policy = policy
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self.adapter = adapter
        self.limits = learner_limits(policy, adapter, max_batch_tokens)
        self.mean_length: float | None = None

    @abstractmethod
    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return one plan's part of the loss; the parts of all plans add up to the batch's loss."""

    # What a subclass may override.

    def aggregate(self, terms_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the sum of the terms of one plan's tokens, each times its weight by ``terms.aggregation``.

        Over the number of answers N, the sums of a batch add up to the mean over answers of a weighted sum
        over each answer's tokens; so do the KL divergence and the entropy. With answers of lengths T_1, ...,
        T_N, and verl's names (``agg_loss`` in ``core_algos.py``):

        - ``token-mean``: every token counts the same, 1 / (T_1 + ... + T_N) (DAPO, Yu et al. 2025, arXiv
          2503.14476);
        - ``seq-mean-token-mean``: every answer counts the same, 1 / (N T_i) for its tokens (GRPO, Shao et al.
          2024, arXiv 2402.03300);
        - ``seq-mean-token-sum``: 1 / N for every token;
        - ``seq-mean-token-sum-norm``: 1 / (N M) with a constant M (Dr.GRPO, Liu et al. 2025, arXiv
          2503.20783).
        """
        match self.terms.aggregation:
            case "token-mean":
                return terms_S.sum() / tokens.mean_length
            case "seq-mean-token-mean":
                return (terms_S / tokens.length_S).sum()
            case "seq-mean-token-sum":
                return terms_S.sum()
            case "seq-mean-token-sum-norm":
                return terms_S.sum() / self.max_generation_len

    def correct(self, terms_S: Tensor, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the terms of the KL divergence of one plan's tokens, corrected for how engine and learner
        differ.
        """
        return terms_S

    @property
    def compared_with(self) -> set[str]:
        """What the policy is compared with: ``base``, ``reference``, both or neither."""
        return self.terms.compared_with

    @property
    def needs_legal_answers(self) -> bool:
        """Whether batches contain the legal answers to their prompts."""
        return self.terms.regulariser != "none"

    def weights_in_plans(self, batch: Batch) -> AnswerWeights:
        """Return what gives the weights of the legal answers' log-probabilities in each plan: :meth:`pull`.

        An algorithm whose weights depend on the policy's present log-probabilities overrides this method.
        """
        pull_A = self.pull(batch)
        return lambda index, logprobs_C: pull_A

    def pull(self, batch: Batch) -> FloatArray:
        """Return the distribution over legal answers, one number each, that the regulariser pulls to."""
        if self.terms.regulariser in ("base", "reference"):
            other = self._adapter_of(self.terms.regulariser)
            return batch.answers.normalised(self.answer_logprobs(other, batch))
        return batch.answers.uniform_reference()

    def cross_entropy_weight(self, regulariser_weight: float) -> float:
        """Return the weight of the cross-entropy over legal answers in the loss."""
        return regulariser_weight / self.max_generation_len

    def state(self) -> dict[str, Tensor]:
        """Return what later updates need to know of earlier ones, by name; here nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`, on the CPU; without tensors, that of the beginning."""
        if state:
            raise InputError(
                "learning.algorithm",
                "the saved state is of another algorithm",
                "Resume with the settings of the run",
            )

    def measure(self, batch: Batch, logprob_A: FloatArray) -> dict[str, float]:
        """Return metrics of the legal answers' log-probabilities in the pass of a step; here none."""
        return {}

    @property
    def rate_factor(self) -> float:
        """What the learning rate of the next step is multiplied by."""
        return 1.0

    def follow(self, metrics: Mapping[str, float]) -> None:  # noqa: B027 - most algorithms need none
        """Learn of a step's metrics, over all learners, before it is made."""

    # One update.

    def begin(self, records: list[TrainingRecord], version: int = 0) -> None:
        """Learn what an update needs to know of all its records, before learners and steps divide them."""
        self.mean_length = mean_answer_length(records, self.max_train_len)

    def prepare_batch(self, records: list[TrainingRecord], version: int | None = None) -> Batch:
        """Pack records. ``version`` is the policy version that learns; ``None`` treats all as on-policy."""
        batch = pack(
            records,
            version=version,
            max_train_len=self.max_train_len,
            with_answers=self.needs_legal_answers,
            cut_illegal=not self.learns_from_draws,
        )
        if self.mean_length is not None:
            batch.mean_length = self.mean_length
        return batch

    def keep_logprobs(self, batch: Batch) -> dict[str, float]:
        """Keep the log-probabilities before the first of several steps; return the mismatch metrics."""
        mismatch, old = Mismatch(), np.empty_like(batch.behaviour)
        for plan, logprobs_C in zip(batch.plans, self.logprobs_of(self.adapter, batch.plans), strict=True):
            drawn_S = logprobs_C[plan.prediction_S[batch.is_drawn(plan)]].astype(np.float32)
            mismatch.add(torch.from_numpy(drawn_S), batch.tokens(plan, torch.device("cpu")))
            old[batch.places(plan)] = drawn_S
        batch.old, batch.measured = old, True
        return mismatch.metrics(batch.counts)

    def keep_states(self, batch: Batch) -> None:
        """Keep the states, by the present policy, in which the answers were drawn."""
        hidden, state_of_R = list[Tensor](), np.zeros(batch.num_answers, dtype=np.int64)
        number = 0
        with torch.no_grad(), self.policy.adapter(self.adapter):
            for plan in batch.plans:
                states = plan.only(batch.first_tokens(plan))
                hidden.append(plan_states(self.policy, states, self.limits).T)
                state_of_R[states.sample_S] = number + states.prediction_S
                number += len(hidden[-1])
        batch.hidden_ND, batch.state_of_R = torch.cat(hidden), state_of_R

    def compute_others(self, batch: Batch) -> None:
        """Set ``batch.others`` to the log-probabilities that the policy is compared with, once."""
        for name in sorted(self.compared_with):
            adapter = self._adapter_of(name)
            if adapter not in batch.others:
                batch.others[adapter] = self.logprobs_of(adapter, batch.plans)

    def keep_answer_logprobs(self, batch: Batch) -> None:
        """Keep the log-probabilities of the legal answers before the first step of an update."""
        if self.adapter not in batch.others:
            batch.others[self.adapter] = self.logprobs_of(self.adapter, batch.plans)

    def answers_before(self, batches: list[Batch]) -> FloatArray:
        """Return what batches say about the policy before an update, if ``needs_answers_before``.

        The sum of it over the learners of a group goes to :meth:`use_answers`. An epoch of one plan is not
        asked before: its first step calls both.
        """
        return np.zeros(0)

    def use_answers(self, numbers: FloatArray) -> None:  # noqa: B027 - most algorithms need none
        """Use the sum of :meth:`answers_before` over all learners, before the first step of an update."""

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the whole batch into the adapter and return metrics.

        ``mismatch`` is the mean absolute difference between the log-probabilities with which on-policy tokens
        were drawn and those of this model now; ``stale_mismatch`` is the same for tokens of older versions,
        so it includes the effect of the updates since. Each is missing if the batch has no such tokens, or if
        it was measured before.
        """
        self._metric_sums.clear()
        self.compute_others(batch)
        weights_in = self.weights_in_plans(batch)
        mismatch, total, seen = Mismatch(), 0.0, list[FloatArray]()
        with self.policy.adapter(self.adapter):
            for index in range(len(batch.plans)):
                loss, logprobs_C = self._plan_loss(batch, index, regulariser_weight, weights_in, mismatch)
                torch.autograd.backward(loss)
                total += float(loss.detach())
                seen.append(logprobs_C.detach().double().cpu().numpy())
        metrics = {
            "loss": total,
            "packed_tokens": float(batch.packed_tokens),
            "separate_tokens": float(batch.separate_tokens),
        }
        if not batch.measured:
            metrics |= mismatch.metrics(batch.counts)
            batch.measured = True
        metrics |= {name: one / max(batch.counts.tokens, 1) for name, one in self._metric_sums.items()}
        if len(batch.answers):
            logprob_A = batch.answers.sums(batch.plans, seen, batch.num_answers)
            metrics |= batch.answers.metrics(logprob_A) | self.measure(batch, logprob_A)
        return metrics

    def add_metric(self, name: str, values_S: Tensor) -> None:
        """Add one plan's tokens to a metric that is a mean over all drawn tokens."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric is a text, not {shown(name)}")
        self._metric_sums[name] += float(values_S.detach().sum())

    def logprobs_of(self, adapter: str, plans: list[TreePlan]) -> list[FloatArray]:
        """Return logprobs_C of each plan with an adapter, without gradients."""
        with torch.no_grad(), self.policy.adapter(adapter):
            found = (plan_logprobs(self.policy, plan, limits=self.limits) for plan in plans)
            return [logprobs_C.double().cpu().numpy() for logprobs_C in found]

    def gathered(self, number_C: Tensor, plan: TreePlan) -> Tensor:
        """Return the numbers of a plan's C predictions for its S tokens."""
        return number_C[torch.from_numpy(plan.prediction_S).to(self.policy.device)]

    def answer_logprobs(self, adapter: str, batch: Batch) -> FloatArray:
        """Return logprob_A, another model's log-probability of each legal answer, as it was kept."""
        return batch.answers.sums(batch.plans, batch.others[adapter], batch.num_answers)

    def _plan_loss(
        self,
        batch: Batch,
        index: int,
        regulariser_weight: float,
        weights_in: AnswerWeights,
        mismatch: Mismatch,
    ) -> tuple[Tensor, Tensor]:
        """Return one plan's part of the loss, the sum of all terms, and the plan's logprobs_C."""
        plan, terms, critic = batch.plans[index], self.terms, self.critic
        values = None if critic is None else critic.values
        found = plan_outputs(
            self.policy,
            plan,
            self.limits,
            entropies=terms.entropy_weight > 0,
            values=values,
            hits=self.counts_hits,
        )
        logprobs_S = self.gathered(found.logprobs_C, plan)
        drawn_S = logprobs_S[torch.from_numpy(batch.is_drawn(plan)).to(self.policy.device)]
        tokens = batch.tokens(plan, self.policy.device)
        if not batch.measured:
            mismatch.add(drawn_S, tokens)
        other_S = self._other(batch, index) if terms.kl_weight else None
        if other_S is not None and terms.kl_in == "reward":  # no step of an update changes this divergence
            before_S = drawn_S.detach() if tokens.old_S is None else tokens.old_S
            kl_S = divergence(terms.kl_estimator, before_S, other_S)
            tokens = with_kl_in_advantage(tokens, kl_S, terms.kl_weight, batch.num_answers)
        loss = self.loss(drawn_S, tokens)
        if len(batch.answers):
            weight_A = weights_in(index, found.logprobs_C)
            weight = self.cross_entropy_weight(regulariser_weight)
            loss = loss + weight * cross_entropy(batch, plan, weight_A, logprobs_S)
        if other_S is not None:
            kl_S = self.correct(divergence(terms.kl_estimator, drawn_S, other_S), drawn_S, tokens)
            self.add_metric(f"kl_to_{terms.kl_to}", kl_S)
            if terms.kl_in == "loss":
                loss = loss + terms.kl_weight * self.aggregate(kl_S, tokens) / batch.num_answers
        if found.entropy_C is not None:
            entropy_S = self._drawn(found.entropy_C, plan, batch)
            self.add_metric("entropy", entropy_S)
            loss = loss - terms.entropy_weight * self.aggregate(entropy_S, tokens) / batch.num_answers
        if found.hits_C is not None:
            self.add_metric("accuracy", self._drawn(found.hits_C, plan, batch))
        if critic is not None and found.value_C is not None:
            loss = loss + value_loss(critic, found.value_C, plan, batch)
        return loss, found.logprobs_C

    def _other(self, batch: Batch, index: int) -> Tensor:
        """Return other_S, the log-probabilities of a plan's drawn tokens by what ``kl_to`` names."""
        plan, other_C = batch.plans[index], batch.others[self._adapter_of(self.terms.kl_to)][index]
        return self._drawn(torch.from_numpy(other_C.astype(np.float32)).to(self.policy.device), plan, batch)

    def _drawn(self, number_C: Tensor, plan: TreePlan, batch: Batch) -> Tensor:
        """Return the numbers of a plan's C predictions for its drawn tokens."""
        return self.gathered(number_C, plan)[torch.from_numpy(batch.is_drawn(plan)).to(self.policy.device)]

    def _adapter_of(self, name: str) -> str:
        return reference_of(self.adapter) if name == "reference" else BASE


def state_of_algorithm(algorithm: BaseAlgo) -> dict[str, Tensor]:
    """Return copies of an algorithm's state; raise a SparringError unless it is dense tensors by name."""
    state, source = algorithm.state(), method_of(algorithm, "state")
    for name, tensor in returned(state, dict, source).items():
        plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta
        if not isinstance(name, str) or not plain:
            raise SparringError(f"{source} returned {shown(state)}, not dense tensors by name")
    return copies_of(state)


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU, without gradients."""
    return {name: tensor.detach().clone().cpu() for name, tensor in tensors.items()}
