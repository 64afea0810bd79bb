"""Where metrics go: a JSON lines file always, Weights & Biases and TensorBoard where they are installed."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec

from selfplay.core import InputError

Metrics = dict[str, float | int]


class Sink(Protocol):
    """Anything that takes flushed metrics."""

    def write(self, metrics: Metrics) -> None:
        """Take one object: ``step`` and ``wall_time`` (seconds since 1970) beside the metrics by name."""

    def close(self) -> None:
        """Write what is still held back and let go of files and connections."""


class JsonlSink:
    """Appends each object as one JSON line; a line is on the disk when ``write`` returns.

    A half-written last line, left by a process that was killed, is cut off on opening. Values that are not
    finite are written as null, for JSON has no others.

    Args:
        path: the file; it and its directory are made where missing.

    Raises:
        InputError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise InputError(
                str(path), f"cannot be written ({error.strerror})", "Choose another run directory."
            ) from error
        self.truncate(_end_of_last_line(path))

    def write(self, metrics: Metrics) -> None:
        """Append one line and force it to the disk."""
        self._file.write(msgspec.json.encode(metrics) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def offset(self) -> int:
        """Return the file's size in bytes after the last line; a checkpoint keeps it."""
        return self._file.tell()

    def truncate(self, offset: int) -> None:
        """Forget everything after ``offset`` bytes: lines that a killed run wrote after its checkpoint.

        Raises:
            InputError: the file is shorter than that, so lines the checkpoint counts on are lost.
        """
        size = self.path.stat().st_size
        if size < offset:
            raise InputError(
                str(self.path),
                f"has {size} bytes where the checkpoint knows of {offset}",
                "Restore the file, or start a new run.",
            )
        self._file.truncate(offset)
        self._file.seek(offset)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WandbSink:
    """Sends metrics to Weights & Biases. ``WANDB_MODE=offline`` keeps them on this machine.

    Args:
        project: the project's name.
        run_name: display name; the runs of a resumed training are grouped under it.
        directory: where wandb keeps its files; the working directory if ``None``.

    Raises:
        InputError: the package is not installed.
    """

    def __init__(self, project: str, run_name: str, *, directory: Path | None = None) -> None:
        wandb = _import_extra("wandb")
        self._run: Any = wandb.init(
            project=project,
            name=run_name,
            group=run_name,
            dir=None if directory is None else str(directory),
        )

    def write(self, metrics: Metrics) -> None:
        """Log one object at its step."""
        self._run.log(
            {name: value for name, value in metrics.items() if name != "step"}, step=metrics["step"]
        )

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class TensorBoardSink:
    """Writes metrics as TensorBoard scalars.

    Args:
        directory: the log directory.

    Raises:
        InputError: the package is not installed.
    """

    def __init__(self, directory: Path) -> None:
        _import_extra("tensorboard")
        # torch brings the writer but takes seconds to load, so it waits until it is wanted.
        writer_module: Any = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = writer_module.SummaryWriter(str(directory))

    def write(self, metrics: Metrics) -> None:
        """Add every value but ``step`` and ``wall_time`` as a scalar at that step and time."""
        for name, value in metrics.items():
            if name not in ("step", "wall_time"):
                self._writer.add_scalar(name, value, metrics["step"], metrics["wall_time"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a metrics file in order; a missing file gives none.

    A last line that was only half written is left out.

    Raises:
        InputError: a line before the last is not a JSON object.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    metrics = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            metrics.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise InputError(
                f"{path} line {number}", "is not a JSON object", "Delete the line, or restore the file."
            ) from error
    return metrics


def _end_of_last_line(path: Path) -> int:
    """Return the offset just after the last newline; 0 without one."""
    return path.read_bytes().rfind(b"\n") + 1


def _import_extra(package: str) -> ModuleType:
    """Import a package that is one of our extras.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            package, "the package is not installed", f"Run: pip install 'selfplay-rl[{package}]'"
        ) from error
