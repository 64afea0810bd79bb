"""``selfplay train`` on a Ray cluster: connect, run, and report errors in one line.

The state of the actors is in the run's directory, so this process may be killed like any of them:
``selfplay train --resume RUN`` rebuilds the actors and they continue.
"""

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ray.exceptions import RayError
from rich.console import Console

from selfplay.cluster.connect import connected, in_our_words
from selfplay.cluster.game_actors import TO_EVALUATE
from selfplay.cluster.game_run import GameRun
from selfplay.cluster.node_cores import Sharing
from selfplay.cluster.program_run import ProgramRun
from selfplay.cluster.view import NAMESPACE
from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import InputError, SelfplayError
from selfplay.training.progress_views import print_line, working
from selfplay.training.run_directory import RunDirectory
from selfplay.training.sessions import note_session
from selfplay.training.threads import available_cores, with_chosen_threads


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` on a cluster and print its results.

    Raises:
        InputError: the configuration cannot run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; it can be resumed.
    """
    directory = RunDirectory.create(run_dir)
    try:
        directory.write_config(dump_config(config))
        if config.program is None:
            (directory.path / TO_EVALUATE / f"step-{0:06d}").mkdir(parents=True)  # the untrained model
        _run(config, directory, console)
    except BaseException:
        directory.remove_new()
        raise
    finally:
        directory.unlock()


def resume(run_dir: Path, console: Console, address: str | None = None) -> None:
    """Continue a run on a cluster where it ended or was killed; at ``address`` if the cluster has moved.

    Raises:
        InputError: the run does not exist, is in use or is finished.
        SelfplayError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    directory.lock()
    try:
        config = load_config(str(directory.config_file), {} if address is None else {"ray.address": address})
        if directory.report_file.exists() and config.learning.steps in directory.saved_steps():
            raise InputError("--resume", f"{run_dir} is finished", f"Look at it: selfplay report {run_dir}")
        _run(config, directory, console, moved=address is not None)
    finally:
        directory.unlock()


def _run(config: Config, directory: RunDirectory, console: Console, *, moved: bool = False) -> None:
    """Join the cluster and run; a run that has ``moved`` saves its new address."""
    where = "on this machine" if config.ray.address is None else f"at {config.ray.address}"
    settled = config
    if config.ray.address is None:  # elsewhere, each engine and learner has its share of its own node
        most = Sharing.of(config).cores(available_cores())
        settled = with_chosen_threads(config, most, partial(print_line, console))
    with ExitStack() as stack:
        with working(console, f"joining Ray {where}"):
            stack.enter_context(connected(config.ray, f"{NAMESPACE}{directory.path.name}"))
        try:
            if moved or settled is not config:
                directory.write_config(dump_config(settled))
            directory.check_epoch()
            note_session(directory.path)
            asyncio.run(_build(settled, directory, console).run())
        except InputError:
            raise
        except SelfplayError as error:
            raise directory.after_failure(str(error)) from error
        except RayError as error:
            raise directory.after_failure(str(in_our_words(error, "the cluster"))) from error
        except OSError as error:
            raise directory.cannot_be_written(error) from error


def _build(config: Config, directory: RunDirectory, console: Console) -> GameRun | ProgramRun:
    if config.program is not None:
        return ProgramRun(config, directory, console)
    return GameRun(config, directory, console)
