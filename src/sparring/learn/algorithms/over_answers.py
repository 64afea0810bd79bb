"""OverAnswers: learn from all legal answers to a batch's prompts, tied to a reference behind the policy.

This is what ``magnet`` and ``all_actions`` share: values Q of the legal answers (see ``action_values``), in
units of the root mean square of the advantages, and the magnet rho, a mixture of the reference and of the
uniform distribution over the n legal answers, given that the answer is legal:

    rho(a) = ((1 - u) reference(a) + u / n) / Z

The reference is a running average of the policy's weights, or a copy of them every K updates (see
``schedules``). The small share u lets no answer become impossible that was never found to be bad. Where the
reference hardly ever answers legally, rho is uniform, because probabilities that small are noise.

The loss is - sum_a w(a) log p(a) over the legal answers, where p(a) is the probability of a whole answer
among all that the model could say, and a subclass defines the weights w, which have no gradient. It is added
up over the batch's prompts, each weighted by the square root of the number of answers to it.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sparring.config.algorithms import OverAnswersSettings
from sparring.core import SparringError, TrainingRecord
from sparring.learn.action_values import STATE, ActionValues, AnswerMemory
from sparring.learn.algorithms.base import AnswerWeights, BaseAlgo
from sparring.learn.batch import Batch, Tokens
from sparring.learn.checkpoints import part_of
from sparring.learn.critic import RunningScale
from sparring.learn.legal_answers import FloatArray
from sparring.learn.recorded_games import RecordedGames
from sparring.learn.tree_values import STATE as TREE_STATE
from sparring.learn.tree_values import TreeValues

MEMORY_PREFIX = "memory."
TREE_PREFIX = "tree."


class OverAnswers(BaseAlgo):
    """The base class that the module's docstring describes. Its learner must have a reference.

    The metric ``listed_share`` is the share of answers that had legal answers beside them, and ``tree_share``
    that of the values which are the tree's.
    """

    settings: OverAnswersSettings
    linear: ClassVar[bool]
    """Whether the loss is linear in the values, which are then corrected, with a tracked scale."""
    learns_from_draws = False

    def __init__(self, settings: OverAnswersSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or self.settings
        self._values = ActionValues()
        self._memory = AnswerMemory(self.settings.memory)
        self._scales: dict[str, RunningScale] = {}
        self._tree = TreeValues()
        self._games = RecordedGames([])
        self._known = 0.0
        self._asked = False
        self.needs_answers_before = self.settings.values == "tree"

    def state(self) -> dict[str, Tensor]:
        """Return the memory, the tree, and each game's tracked scale: mean square and batches."""
        scales = {
            game: torch.tensor([one.mean_square, one.batches], dtype=torch.float64)
            for game, one in self._scales.items()
        }
        of_memory = {MEMORY_PREFIX + name: one for name, one in self._memory.state().items()}
        of_tree = {TREE_PREFIX + name: one for name, one in self._tree.state().items()}
        return scales | of_memory | of_tree

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`; see :class:`BaseAlgo`."""
        memory, tree = (part_of(dict(state), prefix) for prefix in (MEMORY_PREFIX, TREE_PREFIX))
        scales = {
            name: one for name, one in state.items() if not name.startswith((MEMORY_PREFIX, TREE_PREFIX))
        }
        strange = bool(scales) and (not self.linear or any(one.shape != (2,) for one in scales.values()))
        strange |= bool(memory) and memory.keys() != set(STATE)
        if strange or (tree and not (self.needs_answers_before and tree.keys() == set(TREE_STATE))):
            super().load_state(state)
        self._memory.load_state(memory)
        self._tree.load_state(tree)
        self._scales = {game: RunningScale(float(one[0]), int(one[1])) for game, one in scales.items()}

    @property
    def compared_with(self) -> set[str]:
        """The reference, of which the magnet is made."""
        return {"reference"}

    @property
    def needs_legal_answers(self) -> bool:
        """Always: the loss is over legal answers."""
        return True

    def begin(self, records: list[TrainingRecord], version: int = 0) -> None:
        """Average the advantages of the whole batch.

        Raises SparringError if an advantage is not finite, or no answer of the first batch has legal answers
        beside it.
        """
        listed = any(answer.alternatives for record in records for answer in record.answers)
        if version == 0 and not listed:
            raise SparringError(
                f"{self.settings.type} learns from legal answers, and this batch has none; "
                "choose another learning.algorithm, such as reinforce"
            )
        super().begin(records, version)
        scales = self._scales if self.linear else None
        self._values = ActionValues.of(records, scales, corrected=self.linear, memory=self._memory)
        if self.needs_answers_before:
            self._games = RecordedGames(records)
            self._asked, self._known, self.learns_from_advantages = False, 0.0, True

    def answers_before(self, batches: list[Batch]) -> FloatArray:
        """Return the probabilities of the legal answers, and how often each was there."""
        return self._games.probabilities(batches, self.adapter)

    def use_answers(self, numbers: FloatArray) -> None:
        """Add the games to the tree, and use its values."""
        found = self._tree.add(self._games.games, self._games.policy(numbers))
        self._values = self._values.with_tree(found)
        known, steps = sum(one.known * one.games for one in found.values()), sum(self._values.steps.values())
        self._known = known / steps if steps else 0.0
        self.learns_from_advantages = self._values.are_zero
        self._asked = True

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return 0: all that is learned is in the weights of the legal answers."""
        return 0.0 * logprobs_S.sum()

    def cross_entropy_weight(self, regulariser_weight: float) -> float:
        """Return 1, because there is no other loss."""
        return 1.0

    def weights_in_plans(self, batch: Batch) -> AnswerWeights:
        """Return what gives the weights w of the legal answers in each plan.

        If nobody asked the policy before the first step, this step does, in the pass that it learns by.
        """
        if self._asked or not self.needs_answers_before:
            return self.weights_of(batch)

        def weights_in(index: int, logprobs_C: Tensor) -> FloatArray:
            batch.others[self.adapter] = [logprobs_C.detach().double().cpu().numpy()]
            self.use_answers(self.answers_before([batch]))
            return self.weights_of(batch)(index, logprobs_C)

        return weights_in

    def weights_of(self, batch: Batch) -> AnswerWeights:
        """Return what gives the weights w in each plan, once the values are known: here :meth:`pull`."""
        return super().weights_in_plans(batch)

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        """Accumulate the gradients of the loss over legal answers; see :class:`BaseAlgo`."""
        listed = float(batch.answers.visits_P.sum())
        metrics = super().update(batch, regulariser_weight)
        if self.needs_answers_before:
            metrics["tree_share"] = self._known
        return metrics | {"value_scale": self._values.scale, "listed_share": listed}

    def emphasis(self, batch: Batch) -> FloatArray:
        """Return emphasis_A, by how much the weight of each answer's prompt differs from its share."""
        return self._values.emphasis_of(batch.answers)

    def values(self, batch: Batch) -> FloatArray:
        """Return Q_A, the value of each legal answer."""
        return self._values.of_answers(batch.answers)

    def magnet(self, batch: Batch) -> FloatArray:
        """Return rho_A, the magnet's probability of each legal answer."""
        legal, uniform = batch.answers, self.settings.uniform
        reference_A = np.exp(self.answer_logprobs(self._adapter_of("reference"), batch))
        mixture_A = (1 - uniform) * reference_A + uniform * legal.uniform_reference()
        magnet_A: FloatArray = mixture_A / legal.totals(mixture_A)
        return magnet_A
