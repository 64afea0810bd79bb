"""What a fine-tuning job leaves for those who do not train; torch is not needed to read it."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparring.learn.fine_tuning.settings import Hyperparameters, Method

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
    """Return the whole rows of a job that may be running; a row that is being written is left out."""
    try:
        lines = (directory / METRICS_FILE).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line) for line in lines if line.endswith(b"\n")]


def as_csv(method: Method, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the result file; values that a step does not have are empty."""
    columns, text = COLUMNS[method], io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns.values()] for row in rows)
    return text.getvalue().encode()
