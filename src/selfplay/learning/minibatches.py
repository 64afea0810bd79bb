"""MiniBatch: the records of one optimizer step, where an update makes several."""

import random
from dataclasses import dataclass

from selfplay.core import TrainingRecord, derive_seed
from selfplay.learning.batch import Batch, fits


@dataclass
class MiniBatch:
    """Records, and the batch of this learner's shard of them, once it has been packed."""

    records: list[TrainingRecord]
    packed: Batch | None = None


def minibatches_of(
    records: list[TrainingRecord], count: int, version: int, max_train_len: int | None
) -> list[MiniBatch]:
    """Divide the records of one update at random into mini-batches whose sizes differ by at most one.

    All learners of a group divide them alike. There are fewer mini-batches than ``count`` if there are fewer
    records that fit, so that no step is without one. A single mini-batch keeps all records in their order.
    """
    if count == 1:
        return [MiniBatch(records)]
    fitting = [record for record in records if fits(record, max_train_len)]
    order = random.Random(derive_seed(version, "minibatches"))
    shuffled = order.sample(fitting, len(fitting))
    return [MiniBatch(shuffled[first::count]) for first in range(max(min(count, len(fitting)), 1))]
