"""TrackerService: the tracker of a cluster. It neither loses nor double-counts a number that it accepted.

Everything is written to a journal before it is acknowledged. A flush writes its line and then a snapshot;
after a kill between the two the line is cut off and the flush, which was not answered, is requested again.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfplay.cluster.services.journal import Journal
from selfplay.core import InputError, Trajectory
from selfplay.read.run_view import RunView
from selfplay.read.source import RunDirectorySource
from selfplay.record.game_values import eval_values, trajectory_values
from selfplay.record.sinks import (
    JsonlSink,
    Metrics,
    Sink,
    TensorBoardSink,
    WandbSink,
    end_of_step,
    read_metrics,
)
from selfplay.record.tracker import Tracker
from selfplay.training.epoch import Epoch
from selfplay.training.run_names import RUNS, new_run_directory

OWNER_FILE = ".tracker"
SILENT_AFTER = 30.0
"""Seconds without a load report after which an actor is shown as silent."""


class TrackerService:
    """See the module, and :class:`selfplay.record.tracker.Tracker` for what is measured.

    A call whose answer is lost is repeated. So :meth:`put` recognises its batches and :meth:`flush` its
    steps, and ``log``, ``log_learner`` and ``log_model_pool`` are idempotent. ``add_trajectory``,
    ``add_eval_episode``, ``add`` and ``log_inference`` count each call.

    Args:
        run_name: the name shown by sinks and dashboards.
        wandb_project: also send everything to this Weights & Biases project.
        directory: the run's directory, created if missing; ``None`` takes ``runs/<run_name>`` or, if that is
            taken, ``runs/<run_name>-2`` and so on.
        tensorboard: also write TensorBoard scalars into the run's directory.
        owner: an identity that is the same after a restart, by which the tracker finds the directory that it
            chose. ``None`` chooses a new one.
        epoch: the run's epoch; see :class:`Journal`.

    Raises:
        InputError: the directory cannot be written or is damaged, the name cannot be a directory's, or a
            sink's package is not installed.
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
        self._directory = _claim(run_name, directory, owner)
        self._journal = Journal(self._directory / "state" / "tracker", epoch)
        self._metrics = JsonlSink(self._directory / "metrics.jsonl")
        sinks: list[Sink] = [self._metrics]
        if wandb_project is not None:
            sinks.append(WandbSink(wandb_project, run_name, directory=self._directory))
        if tensorboard:
            sinks.append(TensorBoardSink(self._directory / "tensorboard"))
        self._tracker = Tracker(run_name, sinks=sinks)
        self._last_numbers: dict[str, int] = {}
        self._loads: dict[str, tuple[float, dict[str, Any]]] = {}
        self._restore()
        self._last: Metrics = {}
        self._read_lines()
        self._source = RunDirectorySource(self._directory)

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
        sender, number = _parts_of(batch_id)
        if number > self._last_numbers.get(sender, -1):
            self._record("put", batch_id, _finite(values), dict(games))

    def add_trajectory(self, traj: Trajectory, player_id: int, env_id: str) -> None:
        """Record one trained seat of a finished training game."""
        values = trajectory_values(traj, player_id, env_id)
        self._record("put", "", _finite(values), {f"collection-{env_id}": 1})

    def add_eval_episode(self, rewards: Mapping[int, float], player_id: int, env_id: str) -> None:
        """Record one evaluation game of the seat ``player_id``."""
        values = eval_values(rewards, player_id, env_id)
        self._record("put", "", _finite(values), {f"evaluation-{env_id}": 1})

    def log_inference(self, actor: str, gpu_ids: list[int], stats: Mapping[str, float]) -> None:
        """Record an engine's statistics as rolling means."""
        self._record("inference", actor, list(gpu_ids), _finite(stats))

    def log_learner(self, info: Mapping[str, float]) -> None:
        """Record one learner step's figures under ``learner/``, exactly."""
        self.log({f"learner/{name}": value for name, value in info.items()})

    def log_model_pool(
        self,
        match_counts: Mapping[tuple[str, str], int],
        ts_dict: Mapping[str, Mapping[str, float]],
        exploration: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Record the model pool's state; only what changed since the last call is sent."""
        counts = [[first, second, count] for (first, second), count in match_counts.items()]
        self._record("pool", counts, _finite(ts_dict), _finite(exploration))

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record exact values under their full names; the last one given before a flush is sent."""
        self._record("log", _finite(name_value_dict))

    def add(self, values: Mapping[str, float]) -> None:
        """Record exact values that are summed until the next flush, such as seconds."""
        self._record("add", _finite(values))

    def flush(self, step: int, metrics: Mapping[str, float] | None = None) -> Metrics:
        """Send everything since the last flush to every sink, as the line of ``step``, and return the line.

        ``metrics`` are exact values of this step. For a step that already has its line, this records and
        writes nothing and returns that line.
        """
        if step not in self._flushed:
            self.log(metrics or {})
            self._flushed_now(self._tracker.flush(step))
            return self._last
        if step == self._last["step"]:
            return self._last
        return next(_numbers(line) for line in read_metrics(self._metrics.path) if line["step"] == step)

    def has_line(self, step: int) -> bool:
        """Return whether the line of ``step`` is written."""
        return step in self._flushed

    def truncate_after(self, step: int) -> None:
        """Delete the lines of later steps, which are flushed again. A repeated call changes nothing.

        The next line has the whole state of the pool, because a change of it may be in a deleted line.
        """
        if max(self._flushed, default=0) <= step:
            return
        end = end_of_step(self._metrics.path, step)
        self._tracker.load_state_dict(self._tracker.state_dict() | {"pool": {}})
        self._snapshot(end)
        self._metrics.truncate(end)
        self._read_lines()

    def flush_if_due(self, step: int | None = None) -> Metrics | None:
        """Flush when ``Tracker.FLUSH_EVERY`` seconds have passed since the last time, else return ``None``.

        Without a step, the step is the one after the highest so far.
        """
        if step is None:
            step = max(self._flushed, default=0) + 1
        if step in self._flushed:
            return None
        metrics = self._tracker.flush_if_due(step)
        if metrics is not None:
            self._flushed_now(metrics)
        return metrics

    def get_interface_info(self) -> dict[str, Any]:
        """Return what a terminal interface shows: the latest statistics, ratings and metrics."""
        return self._tracker.get_interface_info() | {"metrics": dict(self._last)}

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
        self._tracker.close()

    def _record(self, *entry: Any) -> None:
        with self._journal.noted(entry):
            self._apply(list(entry))

    def _apply(self, entry: list[Any]) -> None:
        match entry:
            case ["put", batch_id, values, games]:
                self._tracker.put(values, games)
                if batch_id:
                    sender, number = _parts_of(batch_id)
                    self._last_numbers[sender] = number
            case ["inference", actor, gpu_ids, stats]:
                self._tracker.log_inference(actor, gpu_ids, stats)
            case ["pool", counts, ratings, exploration]:
                matches = {(first, second): count for first, second, count in counts}
                self._tracker.log_model_pool(matches, ratings, exploration)
            case ["log", values]:
                self._tracker.log(values)
            case ["add", values]:
                self._tracker.add(values)
            case _:
                raise InputError(
                    "run directory", f"the tracker's journal has {entry[:1]}", "Start a new run."
                )

    def _flushed_now(self, metrics: Metrics) -> None:
        self._flushed.add(int(metrics["step"]))
        self._last = metrics
        self._snapshot(self._metrics.offset())

    def _read_lines(self) -> None:
        lines = read_metrics(self._metrics.path)
        self._flushed = {int(line["step"]) for line in lines}
        self._last = _numbers(lines[-1]) if lines else {}

    def _snapshot(self, offset: int) -> None:
        """Save the state; a restart cuts off the metrics after ``offset``."""
        self._journal.snapshot(
            {
                "offset": offset,
                "last_numbers": self._last_numbers,
                "tracker": self._tracker.state_dict(),
            }
        )

    def _restore(self) -> None:
        state, entries = self._journal.load()
        if state is None:
            self._snapshot(self._metrics.offset())  # existing lines are not this tracker's to cut off
            return
        self._metrics.truncate(state["offset"])
        self._last_numbers = state["last_numbers"]
        self._tracker.load_state_dict(_numbers(state["tracker"]))
        self._journal.replay(entries, lambda entry: self._apply(_numbers(entry)))


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
    """Return the run's directory that an earlier process of this owner chose."""
    if owner is None:
        return None
    return next((file.parent for file in RUNS.glob(f"*/{OWNER_FILE}") if file.read_text() == owner), None)


def _parts_of(batch_id: str) -> tuple[str, int]:
    sender, _, number = batch_id.rpartition(":")
    if not number.isdecimal():
        raise InputError("batch_id", f"{batch_id!r} has no number", "Use <sender>:<number>.")
    return sender, int(number)


def _finite(value: Any) -> Any:
    """Return nested values as plain ones, with NaN for those that are not finite: JSON has only null."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else math.nan


def _numbers(value: Any) -> Any:
    """Return data read from JSON with NaN in place of every null."""
    if isinstance(value, dict):
        return {name: _numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return math.nan if value is None else value
