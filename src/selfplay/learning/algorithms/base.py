"""BaseAlgo: compute gradients from training records over prefix trees.

An algorithm sees a flat array of sampled tokens and does not need to know that they are packed: because of
the gather from distinct predictions to sampled tokens, a token's gradient is the sum over the samples that
contain it.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from selfplay.core import InputError, TrainingRecord
from selfplay.core.adapters import reference_of
from selfplay.core.algorithm_names import KLEstimator, KLPlace, Reference, Regulariser, check_name
from selfplay.core.errors import shown
from selfplay.learning.attention_choice import learner_limits
from selfplay.learning.batch import Batch, Tokens, mean_answer_length, pack
from selfplay.learning.corrections import sum_to_end
from selfplay.learning.critic import Critic
from selfplay.learning.divergences import divergence
from selfplay.learning.legal_answers import FloatArray
from selfplay.learning.logprobs import plan_logprobs, plan_outputs, plan_states
from selfplay.learning.policy import BASE, TRAINED, PolicyModel
from selfplay.learning.states import States
from selfplay.learning.trie import TreePlan

AnswerWeights = Callable[[int, Tensor], FloatArray]
"""Returns weight_A from the number of a plan and its logprobs_C; only those of the plan's answers count."""


class BaseAlgo(ABC):
    """Abstract interface of algorithms: what a learner does with a batch.

    The KL divergence in the loss and the entropy are added up over tokens by :meth:`aggregate`. The
    regulariser has a normaliser of its own: it is a mean over answers of sums over the tokens of legal
    answers, divided by the constant M.

    Args:
        regulariser: ``none``, ``uniform``, ``base`` or ``reference``: cross-entropy from the uniform
            distribution, or from that of the untrained model or of the reference that follows the policy,
            over legal answers (see ``legal_answers``). An algorithm may have a distribution of its own
            (:meth:`pull`).
        kl_weight: weight of KL(pi || ``kl_to``) on the sampled tokens. Its estimators hold for tokens that pi
            drew; what corrects them for others is :meth:`correct`.
        kl_to: ``base`` is the untrained model, ``reference`` the adapter that follows the policy.
        kl_estimator: how the divergence is estimated; see ``divergences``.
        kl_in: ``loss`` adds the divergence to the loss. ``reward`` subtracts the estimates, times the weight,
            from the finished advantages of the tokens, without a gradient: a token's advantage is less by the
            sum of the estimates from the token to the end of its answer. RLOO, REINFORCE++ and verl's
            ``use_kl_in_reward`` differ: they subtract from the rewards, before a baseline is subtracted or a
            deviation is divided by, so there both contain the divergence.
        entropy_weight: weight of the entropy over the vocabulary at the sampled tokens, which is subtracted
            from the loss.

    Raises:
        InputError: one of the names is unknown.
    """

    critic: Critic | None = None
    """The learner's critic, whose loss is added to the loss, if there is one."""
    learns_from_draws = True
    """Whether the loss needs every drawn token, with its log-probability before the first step. If it does
    not, most of an illegal answer is not computed, and several epochs need no forward pass beforehand."""

    def __init__(
        self,
        regulariser: Regulariser = "none",
        kl_weight: float = 0.0,
        *,
        kl_to: Reference = "base",
        kl_estimator: KLEstimator = "k3",
        kl_in: KLPlace = "loss",
        entropy_weight: float = 0.0,
    ) -> None:
        check_name("regulariser", regulariser, Regulariser)
        check_name("kl_to", kl_to, Reference)
        check_name("kl_estimator", kl_estimator, KLEstimator)
        check_name("kl_in", kl_in, KLPlace)
        self.regulariser = regulariser
        self.kl_weight = kl_weight
        self.kl_to = kl_to
        self.kl_estimator = kl_estimator
        self.kl_in = kl_in
        self.entropy_weight = entropy_weight
        self._sums = defaultdict[str, float](float)
        self._token_sums = defaultdict[str, float](float)

    def initialize(
        self,
        policy: PolicyModel,
        max_generation_len: int,
        max_train_len: int | None = None,
        max_batch_tokens: int = 2048,
        adapter: str = TRAINED,
    ) -> None:
        """Set the model to train and the limits of a batch.

        Args:
            policy: the model.
            max_generation_len: the loss's constant normaliser M, in tokens.
            max_train_len: maximum number of tokens of prompt and completion; longer completions are cut.
            max_batch_tokens: maximum number of tokens in one forward pass.
            adapter: name of the policy that receives the gradients.
        """
        self.policy = policy
        self.max_generation_len = max_generation_len
        self.max_train_len = max_train_len
        self.adapter = adapter
        self.limits = learner_limits(policy, adapter, max_batch_tokens)
        self.mean_length: float | None = None

    @property
    def compared_with(self) -> set[str]:
        """What the policy is compared with: ``base``, ``reference``, both or neither."""
        return {self.regulariser} & {"base", "reference"} | ({self.kl_to} if self.kl_weight else set())

    @abstractmethod
    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return one plan's part of the loss; the parts of all plans add up to the batch's loss."""

    def aggregate(self, terms_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the sum of the terms of one plan's tokens, each times the weight that the token has.

        The KL divergence and the entropy are such sums, divided by the number of answers. Here the weight is
        1 / M; an algorithm whose loss gives tokens another weight overrides this method.
        """
        return terms_S.sum() / self.max_generation_len

    def correct(self, terms_S: Tensor, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the terms of one plan's tokens, corrected for the difference between engine and learner.

        The terms of the KL divergence pass through it. Here they stay as they are; an algorithm whose loss
        has a correction overrides this method.
        """
        return terms_S

    @property
    def needs_legal_answers(self) -> bool:
        """Whether batches contain the legal answers to their prompts."""
        return self.regulariser != "none"

    def cross_entropy_weight(self, regulariser_weight: float) -> float:
        """Return the weight of the cross-entropy over legal answers in the loss."""
        return regulariser_weight / self.max_generation_len

    def begin(self, records: list[TrainingRecord], version: int = 0) -> None:
        """Learn what an update needs to know of all its records, before learners and steps divide them.

        ``version`` is that of the policy before the update.
        """
        self.mean_length = mean_answer_length(records, self.max_train_len)

    def state(self) -> dict[str, Tensor]:
        """Return what later updates need to know of earlier ones, by name; here nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`; without tensors, the one before the first update.

        The tensors are on the CPU.

        Raises:
            InputError: the state is of another algorithm.
        """
        if state:
            raise InputError(
                "learning.algorithm",
                "the saved state is of another algorithm",
                "Resume with the settings of the run",
            )

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
        """Keep the present log-probabilities for the steps that follow, and return the mismatch metrics.

        An update of several steps calls this before the first of them, because later ones change the policy.
        """
        self._sums.clear()
        old = np.empty_like(batch.behaviour)
        with torch.no_grad(), self.policy.adapter(self.adapter):
            for plan in batch.plans:
                logprobs_C = plan_logprobs(self.policy, plan, limits=self.limits)
                drawn_S = logprobs_C[self._tensor(plan.prediction_S)][self._drawn(plan, batch)]
                self._add_mismatch(drawn_S, batch.tokens(plan, self.policy.device))
                old[batch.places(plan)] = drawn_S.float().cpu().numpy()
        batch.old, batch.measured = old, True
        return self._mismatch_metrics(batch)

    def keep_states(self, batch: Batch) -> dict[str, float]:
        """Keep the states, by the present policy, in which the answers were drawn. There are no metrics."""
        hidden, state_of_R = list[Tensor](), np.zeros(batch.num_answers, dtype=np.int64)
        number = 0
        with torch.no_grad(), self.policy.adapter(self.adapter):
            for plan in batch.plans:
                states = plan.only(batch.first_tokens(plan))
                hidden.append(plan_states(self.policy, states, self.limits).T)
                state_of_R[states.sample_S] = number + states.prediction_S
                number += len(hidden[-1])
        batch.states = States(torch.cat(hidden), state_of_R)
        return {}

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the whole batch into the adapter and return metrics.

        ``mismatch`` is the mean absolute difference between the log-probabilities with which on-policy tokens
        were drawn and those of this model now; it should be no more than rounding. ``stale_mismatch`` is the
        same for tokens of older versions, so it includes the effect of the updates since. Each is
        missing if the batch has no such tokens, or if it was measured before: an earlier step of an update
        has changed the policy.
        """
        self._sums.clear()
        self._token_sums.clear()
        self.compute_others(batch)
        weights_in = self.weights_in_plans(batch)
        seen = []
        with self.policy.adapter(self.adapter):
            for index in range(len(batch.plans)):
                loss, logprobs_C = self._plan_loss(batch, index, regulariser_weight, weights_in)
                torch.autograd.backward(loss)
                self._sums["loss"] += float(loss.detach())
                seen.append(logprobs_C.detach().double().cpu().numpy())
        metrics = self._metrics(batch, seen)
        batch.measured = True
        return metrics

    def add_metric(self, name: str, values_S: Tensor) -> None:
        """Add one plan's tokens to a metric that is a mean over all drawn tokens.

        Raises:
            TypeError: the name is not a text.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric is a text, not {shown(name)}")
        self._token_sums[name] += float(values_S.detach().sum())

    def _plan_loss(
        self, batch: Batch, index: int, regulariser_weight: float, weights_in: AnswerWeights
    ) -> tuple[Tensor, Tensor]:
        """Return one plan's part of the loss, the sum of all terms, and the plan's logprobs_C."""
        plan = batch.plans[index]
        found = plan_outputs(
            self.policy,
            plan,
            self.limits,
            entropies=self.entropy_weight > 0,
            values=None if self.critic is None else self.critic.values,
        )
        logprobs_S = found.logprobs_C[self._tensor(plan.prediction_S)]
        drawn_S = logprobs_S[self._drawn(plan, batch)]
        tokens = batch.tokens(plan, self.policy.device)
        if not batch.measured:
            self._add_mismatch(drawn_S, tokens)
        other_S = self._other(batch, index) if self.kl_weight else None
        if other_S is not None and self.kl_in == "reward":
            tokens = self._with_kl_in_advantage(drawn_S, other_S, tokens, batch.num_answers)
        loss = self.loss(drawn_S, tokens)
        if len(batch.answers):
            weight_A = weights_in(index, found.logprobs_C)
            cross_entropy = self._cross_entropy(batch, plan, weight_A, logprobs_S)
            loss = loss + self.cross_entropy_weight(regulariser_weight) * cross_entropy
        if other_S is not None:
            loss = loss + self._kl_loss(drawn_S, other_S, tokens, batch)
        if found.entropy_C is not None:
            loss = loss - self._entropy_gain(found.entropy_C, plan, tokens, batch)
        if self.critic is not None and found.value_C is not None:
            loss = loss + self._value_loss(self.critic, found.value_C, plan, batch)
        return loss, found.logprobs_C

    def _other(self, batch: Batch, index: int) -> Tensor:
        """Return other_S, the log-probabilities of a plan's drawn tokens by what ``kl_to`` names."""
        plan = batch.plans[index]
        other_C = batch.others[self._adapter_of(self.kl_to)][index]
        return self._tensor(other_C[plan.prediction_S].astype(np.float32))[self._drawn(plan, batch)]

    def _cross_entropy(
        self, batch: Batch, plan: TreePlan, weight_A: FloatArray, logprobs_S: Tensor
    ) -> Tensor:
        """Return one plan's part of the cross-entropy over legal answers."""
        weight_S = batch.answers.token_weights(plan, weight_A, batch.num_answers)
        return -(self._tensor(weight_S.astype(np.float32)) * logprobs_S).sum()

    def _kl_loss(self, drawn_S: Tensor, other_S: Tensor, tokens: Tokens, batch: Batch) -> Tensor:
        """Return one plan's part of the KL divergence in the loss; 0 if it is in the reward."""
        kl_S = self.correct(divergence(self.kl_estimator, drawn_S, other_S), drawn_S, tokens)
        self.add_metric(f"kl_to_{self.kl_to}", kl_S)
        if self.kl_in == "reward":
            return torch.zeros((), device=self.policy.device)
        return self.kl_weight * self.aggregate(kl_S, tokens) / batch.num_answers

    def _entropy_gain(self, entropy_C: Tensor, plan: TreePlan, tokens: Tokens, batch: Batch) -> Tensor:
        """Return one plan's part of what the loss is lowered by for the entropy."""
        entropy_S = entropy_C[self._tensor(plan.prediction_S)][self._drawn(plan, batch)]
        self.add_metric("entropy", entropy_S)
        return self.entropy_weight * self.aggregate(entropy_S, tokens) / batch.num_answers

    def _value_loss(self, critic: Critic, value_C: Tensor, plan: TreePlan, batch: Batch) -> Tensor:
        """Return one plan's part of the critic's loss."""
        first_S = batch.first_tokens(plan)
        answer_r = plan.sample_S[first_S]
        value_r = value_C[self._tensor(plan.prediction_S[first_S])]
        old_r, target_r = self._tensor(batch.value_R[answer_r]), self._tensor(batch.target_R[answer_r])
        return critic.loss(value_r, old_r, target_r) / batch.num_answers

    def _metrics(self, batch: Batch, seen: list[FloatArray]) -> dict[str, float]:
        """Return the metrics, from the sums over all plans and the logprobs_C of each plan."""
        metrics = {
            "loss": self._sums["loss"],
            "packed_tokens": float(batch.packed_tokens),
            "separate_tokens": float(batch.separate_tokens),
        }
        if not batch.measured:
            metrics |= self._mismatch_metrics(batch)
        metrics |= {name: total / max(batch.counts.tokens, 1) for name, total in self._token_sums.items()}
        if len(batch.answers):
            logprob_A = batch.answers.sums(batch.plans, seen, batch.num_answers)
            metrics |= batch.answers.metrics(logprob_A)
        return metrics

    def _add_mismatch(self, logprobs_S: Tensor, tokens: Tokens) -> None:
        difference_S = (logprobs_S.detach() - tokens.behaviour_S).abs()
        self._sums["mismatch"] += float(difference_S[~tokens.stale_S].sum())
        self._sums["stale_mismatch"] += float(difference_S[tokens.stale_S].sum())

    def _mismatch_metrics(self, batch: Batch) -> dict[str, float]:
        metrics, counts = {}, batch.counts
        if counts.fresh_tokens:
            metrics["mismatch"] = self._sums["mismatch"] / counts.fresh_tokens
        if counts.stale_tokens:
            metrics["stale_mismatch"] = self._sums["stale_mismatch"] / counts.stale_tokens
        return metrics

    def _drawn(self, plan: TreePlan, batch: Batch) -> Tensor:
        """Return which of a plan's S tokens were drawn; the others are of legal answers."""
        return self._tensor(plan.sample_S < batch.num_answers)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.policy.device)

    def _with_kl_in_advantage(
        self, logprobs_S: Tensor, other_S: Tensor, tokens: Tokens, num_answers: int
    ) -> Tokens:
        """Return the tokens with A - weight * KL to the end of the answer as their advantage.

        No step of an update changes it.
        """
        before_S = logprobs_S.detach() if tokens.old_S is None else tokens.old_S
        kl_S = sum_to_end(divergence(self.kl_estimator, before_S, other_S), tokens.answer_S, tokens.offset_S)
        return replace(tokens, advantage_S=tokens.advantage_S - self.kl_weight * kl_S / num_answers)

    def compute_others(self, batch: Batch) -> None:
        """Set ``batch.others`` to the log-probabilities that the policy is compared with, once."""
        for name in sorted(self.compared_with):
            adapter = self._adapter_of(name)
            if adapter not in batch.others:
                batch.others[adapter] = self.logprobs_of(adapter, batch.plans)

    def _adapter_of(self, name: str) -> str:
        return reference_of(self.adapter) if name == "reference" else BASE

    def logprobs_of(self, adapter: str, plans: list[TreePlan]) -> list[FloatArray]:
        """Return logprobs_C of each plan with an adapter, without gradients."""
        with torch.no_grad(), self.policy.adapter(adapter):
            return [self._plan_array(plan) for plan in plans]

    def _plan_array(self, plan: TreePlan) -> FloatArray:
        logprobs_C: FloatArray = plan_logprobs(self.policy, plan, limits=self.limits).double().cpu().numpy()
        return logprobs_C

    def weights_in_plans(self, batch: Batch) -> AnswerWeights:
        """Return what gives the weights of the legal answers' log-probabilities in each plan.

        Here they are those of :meth:`pull`. An algorithm whose weights depend on the policy's present
        log-probabilities overrides this method, and needs no pass of its own for them.
        """
        pull_A = self.pull(batch)
        return lambda index, logprobs_C: pull_A

    def pull(self, batch: Batch) -> FloatArray:
        """Return the distribution over legal answers, one number each, that the regulariser pulls to."""
        if self.regulariser in ("base", "reference"):
            return self.distribution_of(self.regulariser, batch)
        return batch.answers.uniform_reference()

    def distribution_of(self, name: str, batch: Batch) -> FloatArray:
        """Return the distribution over legal answers of ``base`` or ``reference``, one number each."""
        return batch.answers.normalised(self.answer_logprobs(self._adapter_of(name), batch))

    def answer_logprobs(self, adapter: str, batch: Batch) -> FloatArray:
        """Return logprob_A, another model's log-probability of each legal answer, as it was kept."""
        return batch.answers.sums(batch.plans, batch.others[adapter], batch.num_answers)
