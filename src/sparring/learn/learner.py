"""Learner: train an adapter on batches of records, and stop if engine and learner disagree about them."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparring.collection.rollout_log import AdvantageLine
from sparring.config.learning import LearningSettings
from sparring.config.model import InferenceSettings
from sparring.core import InputError, SparringError, TrainingRecord, derive_seed
from sparring.core.adapters import reference_of
from sparring.core.own_code import method_of
from sparring.core.records import without_zero_advantages
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.algorithms.base import copies_of, state_of_algorithm
from sparring.learn.batch import AnswerTable, Batch, MiniBatch, epochs_of
from sparring.learn.checkpoints import WEIGHTS, load_training_tensors, part_of, training_tensors
from sparring.learn.critic import Critic
from sparring.learn.data_parallel import DataParallel, Share, combine
from sparring.learn.policy import TRAINED, PolicyModel, average_of
from sparring.learn.schedules import Follower, Schedule

REFERENCE_PREFIX = "reference."
ALGORITHM_PREFIX = "algorithm."
RATIO = "ratio"
"""In a group of parameters: its learning rate, divided by the scheduled one."""
MAX_DRIFT = 1.0
"""Nats per token by which the limit of the mismatch is higher for tokens of older versions."""
MAX_GENERATION_LEN = InferenceSettings().max_tokens
"""The constant normaliser of the loss, in tokens, if the settings have none."""
DEFAULTS = LearningSettings()


class Learner:
    """The owner of the optimizer of one policy's adapter. Learners of several policies on one model take
    turns.

    AdamW has no weight decay. There is a reference only if the algorithm compares the policy with it.
    ``seed`` decides how each epoch of each update divides its records; the learners of a ``group`` share the
    work of each update and are all in the same state. Raises InputError if the model has no such policy.
    """

    def __init__(
        self,
        policy: PolicyModel,
        algorithm: BaseAlgo,
        settings: LearningSettings = DEFAULTS,
        *,
        adapter: str = TRAINED,
        seed: int = 0,
        group: DataParallel | None = None,
    ) -> None:
        if adapter not in policy.policies:
            raise InputError(
                "adapter", f"{adapter!r} is not a policy of this model", f"Use {', '.join(policy.policies)}."
            )
        algorithm.initialize(
            policy,
            settings.max_generation_len or MAX_GENERATION_LEN,
            settings.max_train_len,
            settings.max_batch_tokens,
            adapter,
        )
        if not hasattr(algorithm, "adapter"):
            problem = f"{method_of(algorithm, 'initialize')} does not initialize the algorithm"
            raise InputError("learning.algorithm", problem, "Begin it with super().initialize(...)")
        self.policy = policy
        self.algorithm = algorithm
        self.adapter = adapter
        self.settings = settings
        linear = settings.schedule == "linear"
        self.learning_rate = Schedule(
            *settings.rate_ends, settings.steps, settings.warmup_steps, linear=linear
        )
        self.regulariser_weight = Schedule(*algorithm.regulariser_ends, settings.steps, geometric=True)
        self.seed = seed
        self.critic = None if settings.critic is None else Critic(policy, settings.critic)
        algorithm.critic = self.critic
        self.judged: list[AdvantageLine] = []
        """What the critic thought of the answers of the last update."""
        self.group = group
        self.version = 0
        self.started = 0
        self.samples_seen = 0
        self.average: Follower | None = None
        if settings.average_decay:
            name, warmup = average_of(adapter), settings.average_power + 1
            self.average = Follower(policy, adapter, name, settings.average_decay, warmup=warmup)
            self.average.start()
        self.reference: Follower | None = None
        if "reference" in algorithm.compared_with:
            name, decay, every = reference_of(adapter), settings.reference_decay, settings.reference_every
            self.reference = Follower(policy, adapter, name, decay, every)
            self.reference.start()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": policy.adapter_factor("A", adapter), RATIO: 1.0},
                {"params": policy.adapter_factor("B", adapter), RATIO: settings.loraplus_ratio},
            ],
            lr=self.learning_rate.start,
            betas=(settings.momentum, algorithm.squares_decay),
            weight_decay=0.0,
        )
        if self.critic is not None:
            head = {"params": self.critic.parameters(), "lr": self.critic.settings.value_learning_rate}
            self.optimizer.add_param_group(head)

    @property
    def result(self) -> str:
        """Name of the adapter that training produces: the average, if there is one."""
        return average_of(self.adapter) if self.settings.average_decay else self.adapter

    @property
    def age(self) -> int:
        """The number of updates since the learner began, or last started again."""
        return self.version - self.started

    def update(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Learn from ``records`` in ``epochs`` * ``minibatches`` optimizer steps, and return metrics.

        The version rises by 1. Metrics of several steps are means over them; numbers of tokens are sums. If
        this method raises, weights, optimizer and version are unchanged: SparringError if the loss is not
        finite, or engine and learner differ by more than ``max_mismatch``; PeerLost if another learner of the
        group died.
        """
        started = perf_counter()
        regulariser_weight = self.regulariser_weight.at(self.age)
        if self.settings.skip_zero_advantages:
            records = without_zero_advantages(records)
        epochs = epochs_of(
            records,
            self.settings.epochs,
            self.settings.minibatches,
            derive_seed(self.seed, "update", self.version),
            self.algorithm.max_train_len,
        )
        several = self.settings.epochs * len(epochs[0]) > 1
        with self._unchanged_by_failure(several):
            self.algorithm.begin(records, self.version)
            if len(epochs[0]) > 1:
                for minibatch in (one for epoch in epochs for one in epoch):
                    self._shares(minibatch, self.algorithm.compute_others)
            self._ask_policy(epochs)
            table = AnswerTable(records)
            judged = self._judge(table, epochs)
            if several:
                share, norm = self._steps(table, epochs, regulariser_weight)
            else:
                share, norm = self._step(epochs[0][0], regulariser_weight)
        metrics, trained = share.metrics | judged, share.counts.answers
        self.version += 1
        for follower in (self.average, self.reference):
            if follower is not None:
                follower.follow(self.age)
        self.samples_seen += trained
        seconds = perf_counter() - started
        if self.algorithm.terms.regulariser != "none":
            metrics["regulariser_weight"] = regulariser_weight
        return metrics | {
            "grad_norm": norm,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "records": float(trained),
            "records_too_long": float(sum(len(record.answers) for record in records) - trained),
            "samples_seen": float(self.samples_seen),
            "step_seconds": seconds,
            "packed_tokens_per_second": metrics["packed_tokens"] / seconds,
            "separate_tokens_per_second": metrics["separate_tokens"] / seconds,
        }

    def _steps(
        self, table: AnswerTable, epochs: list[list[MiniBatch]], regulariser_weight: float
    ) -> tuple[Share, float]:
        measured: dict[str, float] = {}
        if self.algorithm.learns_from_draws or len(epochs[0]) > 1:
            shares = [self._shares(one, self.algorithm.keep_logprobs)[1] for one in epochs[0]]
            measured = combine(shares).metrics
            self._check_mismatch(measured)
            self._share_logprobs(table, epochs)
        steps = [self._step(one, regulariser_weight) for epoch in epochs for one in epoch]
        epoch = combine([share for share, _ in steps[: len(epochs[0])]])
        metrics = combine([share for share, _ in steps]).metrics
        norm = sum(norm for _, norm in steps) / len(steps)
        return Share(metrics | measured, epoch.counts), norm

    def _share_logprobs(self, table: AnswerTable, epochs: list[list[MiniBatch]]) -> None:
        if epochs[-1] is epochs[0]:
            return
        old_T = np.zeros(table.num_tokens)
        for batch in _packed(epochs[:1]):
            old_T[table.token_places(batch)] = batch.old
        old_T = self._over_group(old_T)
        for batch in _packed(epochs[1:]):
            batch.old, batch.measured = old_T[table.token_places(batch)].astype(np.float32), True

    def _ask_policy(self, epochs: list[list[MiniBatch]]) -> None:
        if not self.algorithm.needs_answers_before or self._is_one_pass(epochs[0]):
            return
        for minibatch in epochs[0]:
            self._shares(minibatch, self.algorithm.keep_answer_logprobs)
        own = self.algorithm.answers_before(_packed(epochs[:1]))
        self.algorithm.use_answers(self._over_group(own))

    def _is_one_pass(self, epoch: list[MiniBatch]) -> bool:
        """Return whether an epoch is one step of one learner with one plan, which then asks the policy."""
        if self.group is not None or len(epoch) > 1:
            return False
        self._shares(epoch[0], lambda batch: None)
        return all(len(batch.plans) == 1 for batch in _packed([epoch]))

    def _judge(self, table: AnswerTable, epochs: list[list[MiniBatch]]) -> dict[str, float]:
        critic = self.critic
        if critic is None:
            return {}
        for minibatch in epochs[0]:
            self._shares(minibatch, self.algorithm.keep_states)
        values_2A = self._values(critic, table, _packed(epochs[:1]))
        kept = np.flatnonzero(values_2A[1])
        answers = [table.answers[place] for place in kept.tolist()]
        judged_3A = np.zeros((3, len(table.answers)))
        judged_3A[:, kept], metrics = critic.judge(answers, values_2A[0, kept].tolist())
        self.judged = [
            AdvantageLine(record.rollout_id, record.role_id, answer.turn, float(advantage))
            for (record, answer), advantage in zip(answers, judged_3A[0, kept], strict=True)
        ]
        for batch in _packed(epochs):
            own_3R = judged_3A[:, table.places(batch)].astype(np.float32)
            batch.advantage_R, batch.value_R, batch.target_R = own_3R
        return metrics

    def _values(self, critic: Critic, table: AnswerTable, batches: list[Batch]) -> NDArray[np.float64]:
        """Return value_A of the answers of an update, and 1 for each that is trained on; [2, A]."""
        sums = np.zeros(self.policy.hidden_size + 2)
        for batch in batches:
            sums += batch.state_sums()
        critic.centre(self._over_group(sums))
        values_2A = np.zeros((2, len(table.answers)))
        for batch in batches:
            own = table.places(batch)
            values_2A[0, own], values_2A[1, own] = critic.values_of(batch), 1
        return self._over_group(values_2A)

    def _over_group(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers if self.group is None else self.group.sum(numbers)

    def _step(self, minibatch: MiniBatch, regulariser_weight: float) -> tuple[Share, float]:
        self.optimizer.zero_grad(set_to_none=True)
        adapter = self.policy.adapter_parameters(self.adapter)
        head = [] if self.critic is None else self.critic.parameters()
        own, share = self._shares(minibatch, lambda batch: self.algorithm.update(batch, regulariser_weight))
        if self.group is not None:
            self.group.sum_gradients([*adapter, *head], own.counts.answers / share.counts.answers)
        self._check_mismatch(share.metrics)
        norm = float(torch.nn.utils.clip_grad_norm_(adapter, self.settings.grad_clip))
        # The head's gradient is clipped apart: a wrong value must not slow the policy.
        torch.nn.utils.clip_grad_norm_(head, self.settings.grad_clip)
        loss = share.metrics["loss"]
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise SparringError(f"the loss ({loss}) or gradient norm ({norm}) is not finite")
        self.algorithm.follow(share.metrics)
        rate = self.learning_rate.at(self.age) * self.algorithm.rate_factor
        for group in self.optimizer.param_groups:
            if RATIO in group:
                group["lr"] = rate * group[RATIO]
        self.optimizer.step()
        return share, norm

    def _shares(
        self, minibatch: MiniBatch, work: Callable[[Batch], dict[str, float] | None]
    ) -> tuple[Share, Share]:
        """Work on this learner's shard of a mini-batch, packed once; return its share and the whole."""

        def work_on(records: list[TrainingRecord]) -> Share:
            if minibatch.packed is None:
                minibatch.packed = self.algorithm.prepare_batch(records, self.version)
            return Share(work(minibatch.packed) or {}, minibatch.packed.counts)

        if self.group is not None:
            return self.group.shares(minibatch.records, work_on)
        share = work_on(minibatch.records)
        return share, share

    @contextmanager
    def _unchanged_by_failure(self, several: bool) -> Iterator[None]:
        measured = state_of_algorithm(self.algorithm)
        before = None
        if several or self.critic is not None:
            before = training_tensors(self.policy, self.adapter, self.optimizer, self.critic)
        try:
            yield
        except BaseException:  # an interrupt must not leave half an update behind either
            self.algorithm.load_state(measured)
            if before is not None:
                load_training_tensors(self.policy, self.adapter, self.optimizer, before, self.critic)
            raise

    def _check_mismatch(self, metrics: dict[str, float]) -> None:
        """Reject records whose log-probabilities this model cannot have given.

        For tokens of older versions the policy itself has changed as well: their limit is ``MAX_DRIFT``
        higher.
        """
        mismatch, stale = metrics.get("mismatch", 0.0), metrics.get("stale_mismatch", 0.0)
        limit = self.settings.max_mismatch
        if not mismatch <= limit:  # also true for NaN
            raise SparringError(
                f"engine and learner disagree by {mismatch:.3f} nats per token (limit {limit}); "
                "they do not use the same weights or temperature"
            )
        limit += MAX_DRIFT
        if not stale <= limit:
            raise SparringError(
                f"engine and learner disagree by {stale:.3f} nats per token of older versions "
                f"(limit {limit}); they do not use the same weights or temperature, or each update changes "
                "too much: lower "
                "learning.learning_rate or collection.max_staleness"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return all that later updates depend on: weights, AdamW's state, reference, critic, algorithm.

        Their names are the same for any policy.
        """
        tensors = training_tensors(self.policy, self.adapter, self.optimizer, self.critic)
        if self.reference is not None:
            weights = self.policy.adapter_state(self.reference.name)
            tensors |= {REFERENCE_PREFIX + key: value for key, value in weights.items()}
        state = state_of_algorithm(self.algorithm)
        return tensors | {ALGORITHM_PREFIX + key: value for key, value in state.items()}

    def start_again(self, tensors: dict[str, Tensor]) -> None:
        """Become what the learner was when it returned these :meth:`tensors`, before its first update.

        Schedules, average and reference begin anew; the version goes on.
        """
        self.load_tensors(tensors, self.version, self.samples_seen, started=self.version)
        if self.average is not None:
            self.average.start()

    def load_tensors(
        self, tensors: dict[str, Tensor], version: int, samples_seen: int, started: int = 0
    ) -> None:
        """Restore the state of :meth:`tensors` after ``version`` updates on ``samples_seen`` answers.

        ``started`` is the version at which the learner last started again. Raises InputError if the state is
        of another adapter or algorithm, or has no reference.
        """
        load_training_tensors(self.policy, self.adapter, self.optimizer, tensors, self.critic)
        self.algorithm.load_state(copies_of(part_of(tensors, ALGORITHM_PREFIX)))
        if self.reference is not None:
            weights = part_of(tensors, REFERENCE_PREFIX)
            if not weights:
                raise InputError(
                    "learning.algorithm",
                    "the saved state has no reference",
                    "Resume with the settings of the run",
                )
            self.policy.load_adapter_state(weights, self.reference.name)
        self.version = version
        self.started = started
        self.samples_seen = samples_seen


def with_weights(tensors: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a learner that begins with other weights, which are its reference too."""
    named = {prefix + key: value for prefix in (WEIGHTS, REFERENCE_PREFIX) for key, value in weights.items()}
    return tensors | {name: value for name, value in named.items() if name in tensors}


def _packed(epochs: list[list[MiniBatch]]) -> list[Batch]:
    minibatches = {id(one): one for epoch in epochs for one in epoch}.values()
    return [one.packed for one in minibatches if one.packed is not None]
