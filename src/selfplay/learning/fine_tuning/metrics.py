"""The metrics of a job's steps: a row each, as JSON lines while it runs and as a CSV file at its end."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.core.files import append_at, write_file
from selfplay.learning.fine_tuning.settings import Method

METRICS_FILE = "metrics.jsonl"
COLUMNS: dict[Method, dict[str, str]] = {
    "supervised": {
        "step": "step",
        "train_loss": "train_loss",
        "train_accuracy": "train_accuracy",
        "valid_loss": "valid_loss",
        "valid_mean_token_accuracy": "valid_accuracy",
    },
    "dpo": {
        name: name
        for name in (
            "step",
            "train_loss",
            "train_accuracy",
            "train_reward_margin",
            "train_reward_preferred",
            "train_reward_rejected",
            "valid_loss",
            "valid_accuracy",
            "valid_reward_margin",
            "valid_reward_preferred",
            "valid_reward_rejected",
        )
    },
}
"""The columns of a result file, with the names of their values in a row."""
Row = dict[str, Any]


class MetricsLog:
    """The rows of a job. A row is whole before the next saved state of the job refers to it.

    Args:
        directory: the directory of the job's training.
        steps: number of steps that the job has saved; rows of later steps are dropped.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        path = directory / METRICS_FILE
        lines = path.read_bytes().splitlines(keepends=True)[:steps] if path.is_file() else []
        write_file(path, b"".join(lines))
        self.rows: list[Row] = [json.loads(line) for line in lines]
        self._file = path.open("r+b", buffering=0)
        self._end = sum(map(len, lines))

    def add(self, row: Row) -> None:
        """Append a row."""
        line = json.dumps(row).encode() + b"\n"
        append_at(self._file, self._end, line)
        self._end += len(line)
        self.rows.append(row)

    def sync(self) -> None:
        """Force all rows to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(directory: Path) -> list[Row]:
    """Return the whole rows of a job that may be running; a row that is being written is left out."""
    try:
        lines = (directory / METRICS_FILE).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def as_csv(method: Method, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the result file; values that a step does not have are empty."""
    columns, text = COLUMNS[method], io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns.values()] for row in rows)
    return text.getvalue().encode()
