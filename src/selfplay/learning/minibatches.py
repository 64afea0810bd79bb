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
