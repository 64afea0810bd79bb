"""A run on a Ray cluster.

The state of the actors is in the run's directory, so the command may be killed like any of them:
``sparring train --resume RUN`` rebuilds the actors and they continue.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from sparring.cluster.connect import connected
from sparring.cluster.node_cores import Sharing
from sparring.cluster.run import ClusterRun
from sparring.cluster.view import NAMESPACE
from sparring.config import Config
from sparring.run.progress_views import working
from sparring.run.run_directory import RunDirectory
from sparring.run.start import Work, resume_run, start_run
from sparring.run.threads import available_cores


class Cluster:
    """See :class:`sparring.run.start.Runtime`."""

    def cores(self, config: Config) -> int | None:
        """See ``Runtime``."""
        return Sharing.of(config).cores(available_cores()) if config.ray.address is None else None

    @contextmanager
    def prepared(self, config: Config, directory: RunDirectory, console: Console) -> Iterator[Work]:
        """Join the cluster, or start one; see ``Runtime``."""
        where = "on this machine" if config.ray.address is None else f"at {config.ray.address}"
        namespace = f"{NAMESPACE}{directory.name}"
        with ExitStack() as stack:
            with working(console, f"joining Ray {where}"):
                stack.enter_context(connected(config.ray, namespace))
            yield ClusterRun(config, directory, namespace, console).run


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run on a cluster; see :func:`sparring.run.start.start_run`."""
    start_run(config, run_dir, console, Cluster())


def resume(run_dir: Path, console: Console, changes: Mapping[str, str | None] | None = None) -> None:
    """Continue a run on a cluster; see :func:`sparring.run.start.resume_run`."""
    resume_run(run_dir, console, Cluster(), changes or {})
