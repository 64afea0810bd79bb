"""AnswerTable: where each answer of an update has its numbers, whichever mini-batches it is in."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from selfplay.core import TrainingRecord
from selfplay.core.types import Answer
from selfplay.learning.batch import Batch


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
