"""Sinks for metrics: always a JSON lines file; Weights & Biases and TensorBoard if they are installed."""

import os
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError
from sparring.core.errors import imported
from sparring.core.files import append_at
from sparring.core.text import one_line

Metrics = dict[str, float | int]


class Sink(Protocol):
    """Anything that accepts flushed metrics."""

    def write(self, metrics: Metrics) -> None:
        """Accept one object: ``step``, ``wall_time`` (seconds since 1970), and the metrics by name."""

    def close(self) -> None:
        """Write buffered values and release files and connections."""


class JsonlSink:
    """Appends each object as one JSON line; a line is on the disk when ``write`` returns.

    A half-written last line, left by a killed process, is cut off on opening. Values that are not finite are
    written as null. Raises InputError if the file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(
                str(path), f"cannot be written ({error.strerror})", "Choose another run directory."
            ) from error
        self.truncate(_end_of_last_line(path))

    def write(self, metrics: Metrics) -> None:
        """Append one line and force it to the disk; after an OSError, no part of it remains in the file."""
        line = msgspec.json.encode(metrics) + b"\n"
        append_at(self._file, self._end, line)
        os.fsync(self._file.fileno())
        self._end += len(line)

    def offset(self) -> int:
        """Return the file's size in bytes after the last line."""
        return self._end

    def truncate(self, offset: int) -> None:
        """Delete everything after ``offset`` bytes; raise an InputError if the file is shorter."""
        size = self.path.stat().st_size
        if size < offset:
            raise InputError(
                str(self.path),
                f"has {size} bytes, but the checkpoint expects {offset}",
                "Restore the file, or start a new run.",
            )
        self._file.truncate(offset)
        self._end = offset
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WandbSink:
    """Sends metrics to Weights & Biases. ``WANDB_MODE=offline`` keeps them on this machine.

    The W&B runs of a resumed run are grouped under ``run_name``. Raises InputError if the package is not
    installed or is broken, or there is no key or no network.
    """

    def __init__(self, project: str, run_name: str, *, directory: Path | None = None) -> None:
        self._run = start_wandb(project, run_name, directory=directory)

    def write(self, metrics: Metrics) -> None:
        """Log one object at its step."""
        self._run.log(
            {name: value for name, value in metrics.items() if name != "step"}, step=metrics["step"]
        )

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def start_wandb(project: str, run_name: str, *, directory: Path | None = None) -> Any:
    """Return a new run of Weights & Biases."""
    wandb = imported("wandb", "wandb", "wandb")
    try:
        return wandb.init(
            project=project,
            name=run_name,
            group=run_name,
            dir=None if directory is None else str(directory.absolute()),  # its service may run elsewhere
        )
    except wandb.errors.Error as error:
        fix = "Log in with: wandb login. Or set WANDB_MODE=offline"
        raise InputError("Weights & Biases", f"cannot be used: {one_line(str(error))}", fix) from error


class TensorBoardSink:
    """Writes metrics as TensorBoard scalars; raises InputError if the package is missing or broken."""

    def __init__(self, directory: Path) -> None:
        # torch provides the writer but takes seconds to load, so it is imported only when needed.
        writers = imported("tensorboard", "tensorboard", "tensorboard", "torch.utils.tensorboard")
        self._writer: Any = writers.SummaryWriter(str(directory))

    def write(self, metrics: Metrics) -> None:
        """Add every value but ``step`` and ``wall_time`` as a scalar at that step and time."""
        for name, value in metrics.items():
            if name not in ("step", "wall_time"):
                self._writer.add_scalar(name, value, metrics["step"], metrics["wall_time"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def further_sinks(name: str, directory: Path, wandb_project: str | None, *, tensorboard: bool) -> list[Sink]:
    """Return the sinks that a run has besides its own file."""
    sinks: list[Sink] = []
    if wandb_project is not None:
        sinks.append(WandbSink(wandb_project, name, directory=directory))
    if tensorboard:
        sinks.append(TensorBoardSink(directory / "tensorboard"))
    return sinks


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a metrics file in order, without a half-written last line; [] without a file.

    Raises InputError if a line before the last is not a JSON object with a step.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    metrics = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            metrics.append(_with_step(msgspec.json.decode(line, type=dict[str, Any])))
        except UNREADABLE as error:
            if number == len(lines):
                break
            raise InputError(
                f"{path} line {number}",
                "is not a JSON object with a step",
                "Delete the line, or restore the file.",
            ) from error
    return metrics


def _with_step(line: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(line.get("step"), int):
        raise ValueError("it has no step")
    return line


def end_of_step(path: Path, step: int) -> int:
    """Return the offset in a metrics file after the lines of the steps up to ``step``."""
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if msgspec.json.decode(line, type=dict[str, Any])["step"] > step:
            break
        end += len(line)
    return end


def _end_of_last_line(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
