"""The settings of a fine-tuning job, with OpenAI's names, and what "auto" means."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparring.core import derive_seed

Method = Literal["supervised", "dpo"]

RESULTS_FILE = "results.csv"
SAVE_SECONDS = 30.0
"""A kill costs at most the work of this long, and one step."""
LEARNING_RATES: dict[Method, float] = {"supervised": 2e-4, "dpo": 1e-5}
"""The learning rate of ``learning_rate_multiplier`` 1: ten times TRL's defaults, as for LoRA."""
WARM_UP = 10
"""The learning rate rises in one step out of so many, because Adam's first steps are large whatever the
gradient is, and undo what an earlier job has learned. Then it falls linearly to 0."""
BETA = 0.1
MAX_AUTO_BATCH = 256
AUTO_BATCH_SHARE = 0.002
TARGET_EPOCHS, MAX_EPOCHS = 3, 25
FEW_EXAMPLES, MANY_EXAMPLES = 100, 25_000


@dataclass(frozen=True)
class Hyperparameters:
    """The numbers that a job trains with."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    beta: float


@dataclass(frozen=True)
class JobSettings:
    """What a client chooses; ``None`` stands for "auto"."""

    method: Method
    seed: int
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None
    beta: float | None = None

    def resolved(self, num_examples: int) -> Hyperparameters:
        """Return the numbers for a training file of ``num_examples`` examples.

        The number of epochs is the estimate in OpenAI's cookbook (3, more for fewer than 34 examples, fewer
        for more than 8,333), the batch size 0.2% of the examples, at most 256, as in OpenAI's guide.
        """
        batch = min(max(round(AUTO_BATCH_SHARE * num_examples), 1), MAX_AUTO_BATCH)
        multiplier = self.learning_rate_multiplier
        return Hyperparameters(
            n_epochs=self.n_epochs or _auto_epochs(num_examples),
            batch_size=min(self.batch_size or batch, num_examples),
            learning_rate_multiplier=1.0 if multiplier is None else multiplier,
            beta=BETA if self.beta is None else self.beta,
        )


def _auto_epochs(num_examples: int) -> int:
    if num_examples * TARGET_EPOCHS < FEW_EXAMPLES:
        return min(MAX_EPOCHS, FEW_EXAMPLES // num_examples)
    if num_examples * TARGET_EPOCHS > MANY_EXAMPLES:
        return max(1, MANY_EXAMPLES // num_examples)
    return TARGET_EPOCHS


def epoch_order(families: Sequence[int], seed: int, epoch: int) -> list[int]:
    """Return the order of the examples in an epoch, from the job's seed.

    Families are shuffled, and so are the examples within each. Examples of one family begin alike, so those
    that meet in a mini-batch share tokens. Where every example has an opening of its own, this is a plain
    shuffle.
    """
    draw = random.Random(derive_seed(seed, "epoch", epoch))
    members: dict[int, list[int]] = {}
    for index, family in enumerate(families):
        members.setdefault(family, []).append(index)
    groups = list(members.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    return [index for group in groups for index in group]
