"""MetricsLog: the figures of a run and its file of metrics, in this process or in an actor."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, assert_never

from sparring.collection.journal import Journal, JournalEntry
from sparring.collection.sinks import JsonlSink, Metrics, Sink, end_of_step, read_metrics
from sparring.collection.tracker import Tracker
from sparring.core import InputError
from sparring.core.files import Epoch

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

    With a journal, a flush writes its line and then a snapshot; after a kill between the two the line is cut
    off and the flush, which was not answered, is requested again.

    Args:
        lines: the file of a line for each step.
        sinks: further sinks.
        journal: directory of the journal; without one, checkpoints of the run have the state, and existing
            lines count only after ``resume``.

    Attributes:
        tracker: what the entries have made.
        flushed: the steps that have their line.
        last: the last line; empty before the first.
    """

    def __init__(
        self,
        run_name: str,
        lines: Path,
        sinks: Sequence[Sink] = (),
        journal: Path | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self._journal: Journal[TrackerEntry] | None = None
        if journal is not None:
            self._journal = Journal(journal, epoch, TrackerEntry)
        self._lines = JsonlSink(lines)
        self.tracker = Tracker(run_name, sinks=[self._lines, *sinks])
        self._last_numbers: dict[str, int] = {}
        self.flushed: set[int] = set()
        self.last: Metrics = {}
        if self._journal is not None:
            self._restore(self._journal)
            self._read_lines()  # without a journal, ``resume`` reads them: it first cuts off later ones

    def do(self, entry: TrackerEntry) -> None:
        """Write an entry to the journal, if there is one, then apply it."""
        with self._journal.noted(entry) if self._journal is not None else nullcontext():
            self._apply(entry)

    def knows(self, batch_id: str) -> bool:
        """Return whether this batch, or a later one of its sender, was put.

        Raises:
            InputError: the id has no number.
        """
        sender, number = _parts_of(batch_id)
        return number <= self._last_numbers.get(sender, -1)

    def flush(self, step: int, metrics: Mapping[str, float] | None = None) -> Metrics:
        """Send everything since the last flush to every sink, as the line of ``step``, and return the line.

        ``metrics`` are exact values of this step. For a step that already has its line, this records and
        writes nothing and returns that line.
        """
        if step in self.flushed:
            return self._line(step)
        self.do(Log(finite(metrics or {})))
        self.last = self.tracker.flush(step)
        self.flushed.add(step)
        self._snapshot(self._lines.offset())
        return self.last

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint of the run must have: the state, unless the journal has it."""
        return {} if self._journal is not None else self._state(self._lines.offset())

    def resume(self, step: int, state: dict[str, Any]) -> bool:
        """Continue after ``step`` from a checkpoint's state; return whether the line of ``step`` is written.

        Lines after it are deleted. ``{}`` is the beginning, unless the journal has the state.
        """
        if self._journal is not None:
            self.truncate_after(step)
        elif state:
            self._load(state)
        else:
            self._lines.truncate(0)
        self._read_lines()
        return step in self.flushed

    def truncate_after(self, step: int) -> None:
        """Delete the lines of later steps, which are flushed again. A repeated call changes nothing.

        The next line has the whole state of the pool, because a change of it may be in a deleted line.
        """
        if max(self.flushed, default=0) <= step:
            return
        end = end_of_step(self._lines.path, step)
        self.tracker.load_state_dict(self.tracker.state_dict() | {"pool": {}})
        self._snapshot(end)
        self._lines.truncate(end)
        self._read_lines()

    def close(self) -> None:
        """Close every sink."""
        self.tracker.close()

    def _line(self, step: int) -> Metrics:
        if step == self.last["step"]:
            return self.last
        return next(numbers(line) for line in read_metrics(self._lines.path) if line["step"] == step)

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
        """Save the state, if there is a journal; a restart cuts off the metrics after ``offset``."""
        if self._journal is not None:
            self._journal.snapshot(self._state(offset))

    def _state(self, offset: int) -> dict[str, Any]:
        state = self.tracker.state_dict()
        return {"offset": offset, "last_numbers": self._last_numbers, "tracker": state}

    def _load(self, state: dict[str, Any]) -> None:
        self._lines.truncate(state["offset"])
        self._last_numbers = state["last_numbers"]
        self.tracker.load_state_dict(numbers(state["tracker"]))

    def _restore(self, journal: Journal[TrackerEntry]) -> None:
        state, entries = journal.load()
        if state is None:
            self._snapshot(self._lines.offset())  # existing lines are not this tracker's to cut off
            return
        self._load(state)
        journal.replay(entries, self._apply)


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
