"""The tracker of a cluster. It neither loses nor double-counts a number that it accepted.

An entry is written to a journal before it is acknowledged, and :class:`MetricsLog` makes the state from it.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sparring.collection.metrics_log import Log, LogInference, LogModelPool, MetricsLog, Put, finite
from sparring.collection.sinks import Metrics, further_sinks
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.run.run_layout import OWNER_FILE
from sparring.run.run_names import RUNS, new_run_directory
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource

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
        name, run = self._run_name, self._directory
        sinks = further_sinks(name, run, self._wandb_project, tensorboard=self._tensorboard)
        return MetricsLog(name, run / "metrics.jsonl", sinks, run / "state" / "tracker", self._epoch)

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
        """See :meth:`MetricsLog.flush`."""
        return self._metrics.flush(step, metrics)

    def resume(self, step: int, state: dict[str, Any]) -> bool:
        """See :meth:`MetricsLog.resume`."""
        return self._metrics.resume(step, state)

    def truncate_after(self, step: int) -> None:
        """See :meth:`MetricsLog.truncate_after`."""
        self._metrics.truncate_after(step)

    def checkpoint(self) -> dict[str, Any]:
        """See :meth:`MetricsLog.checkpoint`."""
        return self._metrics.checkpoint()

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
        self._metrics.close()


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
