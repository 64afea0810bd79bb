"""A run on a Ray cluster.

The state of the actors is in the run's directory, so the command may be killed like any of them:
``selfplay train --resume RUN`` rebuilds the actors and they continue.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from selfplay.cluster.connect import connected
from selfplay.cluster.node_cores import Sharing
from selfplay.cluster.run import ClusterRun
from selfplay.cluster.view import NAMESPACE
from selfplay.config import Config
from selfplay.training.progress_views import working
from selfplay.training.run_directory import RunDirectory
from selfplay.training.start import Work, resume_run, start_run
from selfplay.training.threads import available_cores


class Cluster:
    """See :class:`selfplay.training.start.Runtime`."""

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
    """Train a new run on a cluster; see :func:`selfplay.training.start.start_run`."""
    start_run(config, run_dir, console, Cluster())


def resume(run_dir: Path, console: Console, changes: Mapping[str, str | None] | None = None) -> None:
    """Continue a run on a cluster; see :func:`selfplay.training.start.resume_run`."""
    resume_run(run_dir, console, Cluster(), changes or {})
