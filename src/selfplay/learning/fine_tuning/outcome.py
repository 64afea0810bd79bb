"""Outcome: what a fine-tuning job leaves for those who do not train; torch is not needed to read it."""

from dataclasses import dataclass

from selfplay.learning.fine_tuning.metrics import Row
from selfplay.learning.fine_tuning.settings import Hyperparameters

RESULTS_FILE = "results.csv"
SAVE_SECONDS = 30.0
"""A kill costs at most the work of this long, and one step."""


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
