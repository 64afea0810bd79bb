"""What a client chooses for a fine-tuning job, with OpenAI's names, and what the job leaves."""

import csv
import io
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparring.collection.sinks import read_metrics
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

    def steps_per_epoch(self, num_examples: int) -> int:
        """Return the number of mini-batches of an epoch."""
        return math.ceil(num_examples / self.batch_size)

    def batch(self, families: Sequence[int], seed: int, step: int) -> list[int]:
        """Return the indices of the examples of a step, where ``families`` are those of all examples."""
        epoch, index = divmod(step, self.steps_per_epoch(len(families)))
        order = epoch_order(families, seed, epoch)
        return order[index * self.batch_size : (index + 1) * self.batch_size]


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


def checkpoint_name(step: int) -> str:
    """Return the name of what is saved after a step."""
    return f"step-{step:06d}"


def epoch_order(families: Sequence[int], seed: int, epoch: int) -> list[int]:
    """Return the order of the examples in an epoch: families are shuffled, and the examples within each.

    Examples of one family begin alike, so those that meet in a mini-batch share tokens.
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


METRICS_FILE = "metrics.jsonl"
_SIDES = ("loss", "accuracy", "reward_margin", "reward_preferred", "reward_rejected")
COLUMNS: dict[Method, dict[str, str]] = {
    "supervised": {
        "step": "step",
        "train_loss": "train_loss",
        "train_accuracy": "train_accuracy",
        "valid_loss": "valid_loss",
        "valid_mean_token_accuracy": "valid_accuracy",
    },
    "dpo": {"step": "step"}
    | {f"{split}_{name}": f"{split}_{name}" for split in ("train", "valid") for name in _SIDES},
}
"""The columns of a result file, with the names of their values in a row."""
Row = dict[str, Any]
"""The metrics of a step."""


@dataclass(frozen=True)
class SavedModel:
    """The adapter after an epoch: the step, its directory's name, and the step's metrics."""

    step: int
    directory: str
    metrics: Row


@dataclass(frozen=True)
class Outcome:
    """The result of a job: its numbers, its adapters (the last is the result) and the tokens trained on."""

    hyperparameters: Hyperparameters
    trained_tokens: int
    checkpoints: list[SavedModel]


def read_rows(directory: Path) -> list[Row]:
    """Return the rows of a job that may be running; a row that is being written is left out."""
    return read_metrics(directory / METRICS_FILE)


def as_csv(method: Method, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the result file; values that a step does not have are empty."""
    columns, text = COLUMNS[method], io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns.values()] for row in rows)
    return text.getvalue().encode()
