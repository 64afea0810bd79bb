"""PackedLoss: gradients of a loss on given answers, over prefix trees.

:class:`BaseAlgo` weights sampled tokens by advantages and by the probabilities with which they were drawn.
Losses on answers that were given as text need neither; this is what they share.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from selfplay.learning.attention_choice import learner_limits
from selfplay.learning.policy import TRAINED, PolicyModel
from selfplay.learning.trie import TreePlan, plans_of, samples_of

Example = TypeVar("Example")


@dataclass(frozen=True)
class Sample:
    """The tokens of a prompt and of the answer to it."""

    prompt: list[int]
    completion: list[int]


class PackedLoss(ABC, Generic[Example]):
    """A loss on a mini-batch of examples.

    Args:
        policy: the model.
        adapter: name of the policy that receives the gradients.
        max_batch_tokens: maximum number of tokens in one forward pass.
    """

    def __init__(self, policy: PolicyModel, *, adapter: str = TRAINED, max_batch_tokens: int = 2048) -> None:
        self.policy = policy
        self.adapter = adapter
        self.limits = learner_limits(policy, adapter, max_batch_tokens)

    @abstractmethod
    def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Accumulate the gradients of the mean loss over a mini-batch into the adapter; return metrics."""

    @abstractmethod
    def evaluate(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return the metrics of :meth:`update` over any number of examples, without gradients."""

    def plans(self, samples: Sequence[Sample]) -> list[TreePlan]:
        """Pack samples into plans that share almost nothing with each other."""
        return plans_of(samples_of([one.prompt for one in samples], [one.completion for one in samples]))

    def tensor(self, array: np.ndarray) -> Tensor:
        """Return an array on the model's device."""
        return torch.from_numpy(array).to(self.policy.device)
