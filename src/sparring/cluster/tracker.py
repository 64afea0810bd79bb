"""The tracker of a cluster. It neither loses nor double-counts a number that it accepted.

An entry is written to a journal before it is acknowledged, and :class:`MetricsLog` makes the state from them.
"""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, assert_never

from sparring.collection.journal import Journal, JournalEntry
from sparring.collection.sinks import (
    JsonlSink,
    Metrics,
    Sink,
    TensorBoardSink,
    WandbSink,
    end_of_step,
    read_metrics,
)
from sparring.collection.tracker import Tracker
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.run.run_layout import OWNER_FILE
from sparring.run.run_names import RUNS, new_run_directory
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource

Number = int | float | None
"""``None`` is a number that is not finite: JSON has no other for it."""


class Put(JournalEntry, frozen=True):
    """Windowed values, and the number of games by prefix."""

    batch_id: str
    values: Mapping[str, list[Number]]
    games: dict[str, int]


class LogInference(JournalEntry, frozen=True):
    """The load of an engine."""

    actor: str
    gpu_ids: list[int]
    stats: Mapping[str, Number]


class LogModelPool(JournalEntry, frozen=True):
    """The state of the model pool; (uid, other uid, games) is a pair that has met."""

    matches: list[tuple[str, str, int]]
    ratings: Mapping[str, Mapping[str, Number]]
    exploration: Mapping[str, Mapping[str, Number]]


class Log(JournalEntry, frozen=True):
    """Exact values; the last one counts."""

    values: Mapping[str, Number]


TrackerEntry = Put | LogInference | LogModelPool | Log


class MetricsLog:
    """See the module.

    A flush writes its line and then a snapshot; after a kill between the two the line is cut off and the
    flush, which was not answered, is requested again.

    Args:
        sinks: further sinks.

    Attributes:
        tracker: what the entries have made.
        flushed: the steps that have their line.
        last: the last line; empty before the first.
    """

    def __init__(self, run_name: str, directory: Path, sinks: list[Sink], epoch: Epoch | None) -> None:
        self._journal: Journal[TrackerEntry] = Journal(directory / "state" / "tracker", epoch, TrackerEntry)
        self._lines = JsonlSink(directory / "metrics.jsonl")
        self.tracker = Tracker(run_name, sinks=[self._lines, *sinks])
        self._last_numbers: dict[str, int] = {}
        self._restore()
        self.flushed: set[int] = set()
        self.last: Metrics = {}
        self._read_lines()

    def do(self, entry: TrackerEntry) -> None:
        """Write an entry to the journal, then apply it."""
        with self._journal.noted(entry):
            self._apply(entry)

    def knows(self, batch_id: str) -> bool:
        """Return whether this batch, or a later one of its sender, was put.

        Raises:
            InputError: the id has no number.
        """
        sender, number = _parts_of(batch_id)
        return number <= self._last_numbers.get(sender, -1)

    def flush(self, step: int) -> Metrics:
        """Write the line of a step that has none yet, and return it."""
        metrics = self.tracker.flush(step)
        self.flushed.add(int(metrics["step"]))
        self.last = metrics
        self._snapshot(self._lines.offset())
        return metrics

    def line(self, step: int) -> Metrics:
        """Return the line of a step that has one."""
        if step == self.last["step"]:
            return self.last
        return next(numbers(line) for line in read_metrics(self._lines.path) if line["step"] == step)

    def truncate_after(self, step: int) -> None:
        """Delete the lines of later steps.

        The next line has the whole state of the pool, because a change of it may be in a deleted line.
        """
        end = end_of_step(self._lines.path, step)
        self.tracker.load_state_dict(self.tracker.state_dict() | {"pool": {}})
        self._snapshot(end)
        self._lines.truncate(end)
        self._read_lines()

    def _apply(self, entry: TrackerEntry) -> None:
        match entry:
            case Put(batch_id, values, games):
                self.tracker.put(numbers(values), games)
                sender, number = _parts_of(batch_id)
                self._last_numbers[sender] = number
            case LogInference(actor, gpu_ids, stats):
                self.tracker.log_inference(actor, gpu_ids, numbers(stats))
            case LogModelPool(matches, ratings, exploration):
                counts = {(first, second): count for first, second, count in matches}
                self.tracker.log_model_pool(counts, numbers(ratings), numbers(exploration))
            case Log(values):
                self.tracker.log(numbers(values))
            case _:
                assert_never(entry)

    def _read_lines(self) -> None:
        lines = read_metrics(self._lines.path)
        self.flushed = {int(line["step"]) for line in lines}
        self.last = numbers(lines[-1]) if lines else {}

    def _snapshot(self, offset: int) -> None:
        """Save the state; a restart cuts off the metrics after ``offset``."""
        self._journal.snapshot(
            {
                "offset": offset,
                "last_numbers": self._last_numbers,
                "tracker": self.tracker.state_dict(),
            }
        )

    def _restore(self) -> None:
        state, entries = self._journal.load()
        if state is None:
            self._snapshot(self._lines.offset())  # existing lines are not this tracker's to cut off
            return
        self._lines.truncate(state["offset"])
        self._last_numbers = state["last_numbers"]
        self.tracker.load_state_dict(numbers(state["tracker"]))
        self._journal.replay(entries, self._apply)


def finite(value: Any) -> Any:
    """Return nested values as plain ones, with ``None`` for those that are not finite: JSON has only null."""
    if isinstance(value, Mapping):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else None


def numbers(value: Any) -> Any:
    """Return data of :func:`finite` with NaN in place of every ``None``."""
    if isinstance(value, dict):
        return {name: numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [numbers(one) for one in value]
    return math.nan if value is None else value


def _parts_of(batch_id: str) -> tuple[str, int]:
    sender, _, number = batch_id.rpartition(":")
    if not number.isdecimal():
        raise InputError("batch_id", f"{batch_id!r} has no number", "Use <sender>:<number>.")
    return sender, int(number)


SILENT_AFTER = 30.0
"""Seconds without a load report after which an actor is shown as silent."""


class TrackerService:
    """See the module, and :class:`sparring.collection.tracker.Tracker` for what is measured.

    A call whose answer is lost is repeated. So :meth:`put` recognises its batches and :meth:`flush` its
    steps, and ``log`` and ``log_model_pool`` are idempotent. ``log_inference`` counts each call.

    Args:
        run_name: the name shown by sinks and dashboards.
        wandb_project: also send everything to this Weights & Biases project.
        directory: the run's directory, created if missing; ``None`` takes ``runs/<run_name>`` or, if that is
            taken, ``runs/<run_name>-2`` and so on.
        tensorboard: also write TensorBoard scalars into the run's directory.
        owner: an identity that is the same after a restart, by which the tracker finds the directory that it
            chose. ``None`` chooses a new one.
    """

    def __init__(
        self,
        run_name: str,
        wandb_project: str | None = None,
        *,
        directory: str | None = None,
        tensorboard: bool = False,
        owner: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self._run_name = run_name
        self._wandb_project = wandb_project
        self._given_directory = directory
        self._tensorboard = tensorboard
        self._owner = owner
        self._epoch = epoch
        self._loads: dict[str, tuple[float, dict[str, Any]]] = {}
        with contextlib.suppress(SparringError):  # every call raises it: see Journaled
            self.check()

    def check(self) -> None:
        """Return if the service can work; raise the reason if it cannot, as any other call does.

        Raises:
            InputError: the directory cannot be written or is damaged, the name cannot be a directory's, or a
                sink's package is not installed.
            SparringError: the epoch is over.
        """
        _ = self._metrics

    @cached_property
    def _directory(self) -> Path:
        return _claim(self._run_name, self._given_directory, self._owner)

    @cached_property
    def _metrics(self) -> MetricsLog:
        sinks: list[Sink] = []
        if self._wandb_project is not None:
            sinks.append(WandbSink(self._wandb_project, self._run_name, directory=self._directory))
        if self._tensorboard:
            sinks.append(TensorBoardSink(self._directory / "tensorboard"))
        return MetricsLog(self._run_name, self._directory, sinks, self._epoch)

    @cached_property
    def _source(self) -> RunDirectorySource:
        return RunDirectorySource(self._directory)

    def run_directory(self) -> str:
        """Return the absolute path of the run's directory."""
        return str(self._directory)

    def put(self, batch_id: str, values: Mapping[str, Sequence[float]], games: Mapping[str, int]) -> None:
        """Record windowed values and count games; see :meth:`Tracker.put`.

        Args:
            batch_id: ``<sender>:<number>``. A sender's numbers rise; a number that is not above its last one
                changes nothing.
            values: new values by the metric's full name.
            games: how many new games, by prefix.

        Raises:
            InputError: the id has no number.
        """
        if not self._metrics.knows(batch_id):
            self._metrics.do(Put(batch_id, finite(values), dict(games)))

    def log_inference(self, actor: str, gpu_ids: list[int], stats: Mapping[str, float]) -> None:
        """Record an engine's statistics as rolling means."""
        self._metrics.do(LogInference(actor, list(gpu_ids), finite(stats)))

    def log_model_pool(
        self,
        match_counts: Mapping[tuple[str, str], int],
        ts_dict: Mapping[str, Mapping[str, float]],
        exploration: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Record the model pool's state; only what changed since the last call is sent."""
        matches = [(first, second, count) for (first, second), count in match_counts.items()]
        self._metrics.do(LogModelPool(matches, finite(ts_dict), finite(exploration)))

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record exact values under their full names; the last one given before a flush is sent."""
        self._metrics.do(Log(finite(name_value_dict)))

    def flush(self, step: int, metrics: Mapping[str, float] | None = None) -> Metrics:
        """Send everything since the last flush to every sink, as the line of ``step``, and return the line.

        ``metrics`` are exact values of this step. For a step that already has its line, this records and
        writes nothing and returns that line.
        """
        if step in self._metrics.flushed:
            return self._metrics.line(step)
        self.log(metrics or {})
        return self._metrics.flush(step)

    def has_line(self, step: int) -> bool:
        """Return whether the line of ``step`` is written."""
        return step in self._metrics.flushed

    def truncate_after(self, step: int) -> None:
        """Delete the lines of later steps, which are flushed again. A repeated call changes nothing."""
        if max(self._metrics.flushed, default=0) > step:
            self._metrics.truncate_after(step)

    def get_interface_info(self) -> dict[str, Any]:
        """Return what a terminal interface shows: the latest statistics, ratings and metrics."""
        return self._metrics.tracker.get_interface_info() | {"metrics": dict(self._metrics.last)}

    def heartbeat(self, actor: str, load: Mapping[str, Any]) -> None:
        """Record an actor's current load, in memory only.

        Args:
            actor: the actor's name.
            load: numbers and words: an engine's ``tok_s``, ``running``, ``queued`` and ``idle_share``, a
                learner's ``state``, ``step`` and ``seconds``, a buffer's ``steps`` and ``games``, a
                collector's ``in_flight`` and ``evaluating``.
        """
        self._loads[actor] = time.monotonic(), dict(load)

    def view(self) -> RunView:
        """Return a view of the run's directory and of the load of every actor.

        The load of an actor without a report for ``SILENT_AFTER`` seconds contains ``silent_seconds``.
        """
        now = time.monotonic()
        actors = {}
        for name, (heard, load) in self._loads.items():
            silent = now - heard
            actors[name] = load | ({"silent_seconds": round(silent)} if silent > SILENT_AFTER else {})
        return replace(self._source.read(), actors=actors)

    def close(self) -> None:
        """Close every sink."""
        self._metrics.tracker.close()


def _claim(run_name: str, directory: str | None, owner: str | None) -> Path:
    """Return the directory to use, with the owner's name in it."""
    if directory is not None:
        path = Path(directory)
    elif run_name in ("", ".", "..") or "/" in run_name:
        raise InputError("run_name", f"{run_name!r} cannot name a directory", "Leave out slashes.")
    else:
        path = _owned_by(owner) or new_run_directory(RUNS, run_name)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if owner is not None:
            (path / OWNER_FILE).write_text(owner)
    except OSError as error:
        raise InputError(
            "run directory", f"{path} cannot be made ({error.strerror})", "Choose a writable directory."
        ) from error
    return path.resolve()


def _owned_by(owner: str | None) -> Path | None:
    if owner is None:
        return None
    return next(
        (file.parent for file in RUNS.glob(f"*/{OWNER_FILE}") if file.read_bytes() == owner.encode()), None
    )
