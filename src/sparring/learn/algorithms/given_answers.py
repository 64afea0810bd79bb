"""GivenAnswers: losses on answers that were given as text, and not drawn by the policy.

A record is an answer; nothing is compared with the probability of a draw.
"""

from abc import abstractmethod
from collections.abc import Iterator

from sparring.core import TrainingRecord
from sparring.learn.algorithms.base import BaseAlgo
from sparring.learn.batch import Batch

AT_ONCE = 256
"""Number of answers that are packed together where no gradient limits it."""


class GivenAnswers(BaseAlgo):
    """Base class of losses on given answers."""

    squares_decay = 0.999

    @abstractmethod
    def evaluate(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Return the metrics of an update over any number of records, without gradients."""

    def prepare_batch(self, records: list[TrainingRecord], version: int | None = None) -> Batch:
        """Pack records, in their order."""
        batch = super().prepare_batch(records, version)
        batch.measured = True
        return batch

    def batches(self, records: list[TrainingRecord]) -> Iterator[Batch]:
        """Pack any number of records, ``AT_ONCE`` at a time."""
        for first in range(0, len(records), AT_ONCE):
            yield self.prepare_batch(records[first : first + AT_ONCE])


def given_answer(prompt: list[int], completion: list[int]) -> TrainingRecord:
    """Return the record of an answer that nobody drew."""
    return TrainingRecord(
        role_id="",
        rollout_id="",
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=[0.0] * len(completion),
        reward=0.0,
        advantage=0.0,
    )
