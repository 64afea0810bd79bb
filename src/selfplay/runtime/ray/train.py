"""``selfplay train`` on a Ray cluster: connect, run, and say in a line what went wrong.

What the actors know is in the run's directory, so this process may be killed like any of them:
``selfplay train --resume RUN`` builds the actors again and they go on.
"""

import asyncio
from pathlib import Path

from ray.exceptions import RayError
from rich.console import Console

from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import InputError, SelfplayError
from selfplay.runtime.ray.cluster import connected, in_our_words
from selfplay.runtime.ray.game_actors import TO_EVALUATE
from selfplay.runtime.ray.game_run import GameRun
from selfplay.runtime.ray.live_view import NAMESPACE
from selfplay.runtime.ray.program_run import ProgramRun
from selfplay.runtime.run_directory import RunDirectory


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` on a cluster and print what came of it.

    Raises:
        InputError: the configuration cannot be run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; it can be resumed.
    """
    directory = RunDirectory.create(run_dir)
    try:
        directory.write_config(dump_config(config))
        if config.program is None:
            (directory.path / TO_EVALUATE / f"step-{0:06d}").mkdir(parents=True)  # the untrained model
        _run(config, directory, console)
    except (InputError, KeyboardInterrupt):
        if not _has_learned(run_dir):
            directory.remove_new()
        raise
    finally:
        directory.unlock()


def resume(run_dir: Path, console: Console, address: str | None = None) -> None:
    """Continue a run of a cluster where it ended or was killed; at ``address``, if the cluster has moved.

    Raises:
        InputError: there is no such run, it is in use or finished.
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
    """Join the cluster and go on; a run that has ``moved`` keeps its new address."""
    resume_command = f"selfplay train --resume {directory.path}"
    with connected(config.ray, f"{NAMESPACE}{directory.path.name}"):
        try:
            if moved:
                directory.write_config(dump_config(config))
            asyncio.run(_build(config, directory, console).run())
        except InputError:
            raise
        except SelfplayError as error:
            raise SelfplayError(
                f"{error}. What was learned is saved; continue with: {resume_command}"
            ) from error
        except RayError as error:
            what = in_our_words(error, "the cluster")
            raise SelfplayError(
                f"{what}. What was learned is saved; continue with: {resume_command}"
            ) from error
        except OSError as error:
            raise directory.cannot_be_written(error) from error


def _has_learned(run_dir: Path) -> bool:
    steps = [path.name for path in (run_dir / "learner").glob("*")]
    return any(name.isdigit() and int(name) for name in steps)


def _build(config: Config, directory: RunDirectory, console: Console) -> GameRun | ProgramRun:
    if config.program is not None:
        return ProgramRun(config, directory, console)
    return GameRun(config, directory, console)
