"""MiniBatch: the records of one optimizer step, where an update makes several."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparring.core import TrainingRecord, derive_seed
from sparring.core.types import Answer
from sparring.learn.batch import Batch, fits


@dataclass
class MiniBatch:
    """Records, and the batch of this learner's shard of them, once it has been packed."""

    records: list[TrainingRecord]
    packed: Batch | None = None


def epochs_of(
    records: list[TrainingRecord], epochs: int, count: int, seed: int, max_train_len: int | None
) -> list[list[MiniBatch]]:
    """Return the mini-batches of each epoch of one update, in the order of their steps.

    Every epoch divides the records anew, as PPO's implementations do. A single mini-batch is the same in
    all epochs, also where only one record fits. All learners of a group, which have the same seed, divide
    alike.
    """
    if count == 1:
        return [[MiniBatch(records)]] * epochs

    def divided(epoch: int) -> list[MiniBatch]:
        return minibatches_of(records, count, derive_seed(seed, "epoch", epoch), max_train_len)

    first = divided(0)
    if len(first) == 1:
        return [first] * epochs
    return [first, *map(divided, range(1, epochs))]


def minibatches_of(
    records: list[TrainingRecord], count: int, seed: int, max_train_len: int | None
) -> list[MiniBatch]:
    """Divide records at random into mini-batches whose sizes differ by at most one.

    There are fewer mini-batches than ``count`` if there are fewer records that fit, so that no step is
    without one.
    """
    fitting = [record for record in records if fits(record, max_train_len)]
    shuffled = random.Random(seed).sample(fitting, len(fitting))
    return [MiniBatch(shuffled[first::count]) for first in range(max(min(count, len(fitting)), 1))]


class AnswerTable:
    """The places of the A answers of an update, and of their tokens, in flat arrays.

    What is measured before the first step, in the mini-batches of the first epoch, is written into such
    arrays and read for those of later epochs. An answer is with one learner of a group in each epoch, so the
    sum of the learners' arrays is what all of them have measured.

    Attributes:
        answers: all answers with their records.
        num_tokens: the number of tokens that were drawn, all answers together.
    """

    def __init__(self, records: Sequence[TrainingRecord]) -> None:
        self.answers: list[tuple[TrainingRecord, Answer]] = [
            (record, answer) for record in records for answer in record.answers
        ]
        self._place_of = {id(answer): place for place, (_, answer) in enumerate(self.answers)}
        lengths = [len(answer.completion_token_ids) for _, answer in self.answers]
        self._start_A = np.cumsum([0, *lengths])[:-1]
        self.num_tokens = sum(lengths)

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """Return the place of each of the R answers of a batch."""
        return np.array([self._place_of[id(answer)] for answer in batch.kept], dtype=np.int64)

    def token_places(self, batch: Batch) -> NDArray[np.int64]:
        """Return the place of each token of a batch, in the order of ``batch.behaviour``."""
        lengths_R = np.diff(batch.start_R, append=len(batch.behaviour))
        shift_R = self._start_A[self.places(batch)] - batch.start_R
        places: NDArray[np.int64] = np.repeat(shift_R, lengths_R) + np.arange(len(batch.behaviour))
        return places
