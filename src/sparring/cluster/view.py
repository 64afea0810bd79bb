"""Show a run of a Ray cluster in a terminal.

The process that draws does not join the cluster itself: Ray ends every process of a cluster that is lost, and
prints to its terminal. A separate process joins, and passes on the tracker's views.
"""

import contextlib
import logging
import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from sparring.cluster.connect import (
    KNOCK_SECONDS,
    import_ray,
    knock,
    no_cluster,
    why_not_joined,
)
from sparring.core import InputError
from sparring.view.run_view import RunView

TRACKER = "Tracker"
NAMESPACE = "sparring-"
ANSWER_SECONDS = 10.0
"""Seconds that the tracker may take to answer."""
JOIN_SECONDS = 60.0
"""Seconds that joining a cluster may take; the first import of Ray alone takes several."""


class HandleSource:
    """Reads from a tracker by its Ray handle; see :class:`sparring.view.run_view.ViewSource`.

    Args:
        tracker: the handle of a :class:`TrackerService` actor.
    """

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self._last = RunView("")

    def read(self) -> RunView:
        """Ask the tracker for a view; return the last one if it does not answer."""
        import ray

        try:
            self._last = ray.get(self.tracker.view.remote(), timeout=ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return _troubled(self._last, f"no answer for {ANSWER_SECONDS:.0f} s")
        except ray.exceptions.RayError as error:
            return _troubled(self._last, f"the tracker is gone ({type(error).__name__})")
        return self._last


class ClusterSource:
    """Follows a run of a cluster; see :class:`sparring.view.run_view.ViewSource`.

    Args:
        address: the cluster's address: ``HOST:PORT``, ``ray://HOST:PORT``, or ``auto`` for a cluster on this
            machine.

    Raises:
        InputError: the cluster cannot be joined, or it has no such run.
    """

    def __init__(self, address: str, run: str | None) -> None:
        knock(address)
        # A fresh process, not a fork: threads of this one may hold locks.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_follow, args=(address, run, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._last = RunView("")
        answer = self._answer(JOIN_SECONDS)
        if not isinstance(answer, _Joined):
            self.close()
            problem = answer if isinstance(answer, InputError) else no_cluster(address, "it does not answer")
            raise problem

    def read(self) -> RunView:
        """Return a new view; if the cluster is gone, return the last view with ``trouble`` set."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
            answer = self._answer(ANSWER_SECONDS + KNOCK_SECONDS)
            if isinstance(answer, RunView):
                self._last = answer
                return answer
        self.close()
        return _troubled(self._last, "the cluster is gone")

    def close(self) -> None:
        """Leave the cluster, and wait until the process that joined it has ended; may be repeated."""
        self._process.kill()
        self._process.join(ANSWER_SECONDS)
        self._connection.close()

    def _answer(self, seconds: float) -> Any:
        """Return what the other process sends; ``None`` if it is gone or takes too long."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else None
        except (OSError, EOFError):
            return None


@dataclass(frozen=True)
class _Joined:
    """The other process has found the tracker."""


def _troubled(view: RunView, trouble: str) -> RunView:
    """Return the last view, with the reason why there is no new one."""
    return replace(view, trouble=trouble, share_read=1.0)


def find_tracker(run: str | None) -> Any:
    """Return the handle of a run's tracker in the cluster that this process has joined.

    Args:
        run: its name, or its whole namespace; may be ``None`` if there is only one.

    Raises:
        InputError: there is no such run, or there are several and none is named.
    """
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    namespaces = sorted(one["namespace"] for one in found if one["name"] == TRACKER)
    names = ", ".join(namespace.removeprefix(NAMESPACE) for namespace in namespaces)
    wanted = namespaces if run is None else [one for one in namespaces if one in (run, NAMESPACE + run)]
    if not namespaces:
        raise InputError(
            "--address", "no run is active in this cluster", "Start one, or name another cluster."
        )
    if not wanted:
        raise InputError("RUN", f"no run {run!r} is active in this cluster", f"There are: {names}")
    if len(wanted) > 1:
        raise InputError("RUN", "several runs are active in this cluster", f"Name one of: {names}")
    return ray.get_actor(TRACKER, namespace=wanted[0])


def _follow(address: str, run: str | None, ours: Connection) -> None:
    """Join a cluster, and send a view whenever one is requested; the main function of a process."""
    # The terminal belongs to the process that draws on it, and so does the key that interrupts.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if sys.platform != "win32":
        os.setsid()
    try:
        source = HandleSource(_join(address, run))
    except InputError as error:
        ours.send(error)
        return
    ours.send(_Joined())
    with contextlib.suppress(EOFError, OSError):
        while True:
            ours.recv()
            ours.send(source.read())


def _join(address: str, run: str | None) -> Any:
    import_ray(silent=True)
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise no_cluster(address, why_not_joined(error)) from error
    return find_tracker(run)
