"""A run in one process: build its parts, train, and report errors in one line."""

import asyncio
from functools import partial
from pathlib import Path

from rich.console import Console
from safetensors import SafetensorError

from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import InputError, SelfplayError
from selfplay.learning.policy import TRAINED, LoraSettings
from selfplay.tracking.sinks import JsonlSink
from selfplay.tracking.tracker import Tracker
from selfplay.training import assembly
from selfplay.training.game_source import GameSource
from selfplay.training.local_learners import LocalLearners
from selfplay.training.metrics import LocalMetrics
from selfplay.training.program_source import ProgramSource
from selfplay.training.programs import build_program, policies_of
from selfplay.training.progress_views import print_line, working
from selfplay.training.run_directory import RunDirectory
from selfplay.training.serving import EmbeddedServing
from selfplay.training.sessions import note_session
from selfplay.training.source import Source
from selfplay.training.threads import available_cores, with_chosen_threads
from selfplay.training.trainer import Trainer


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` and print its results.

    Raises:
        InputError: the configuration cannot run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; it can be resumed from what was saved.
    """
    directory = RunDirectory.create(run_dir)
    _run(config, directory, console)


def resume(run_dir: Path, console: Console) -> None:
    """Continue a run from its newest checkpoint; from its beginning if it has none.

    Raises:
        InputError: the run does not exist, is in use, is finished or is damaged.
        SelfplayError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    directory.lock()
    try:
        config = load_config(str(directory.config_file), {})
        steps = directory.saved_steps()
        if steps and steps[-1] >= config.learning.steps and directory.report_file.exists():
            raise InputError(
                "--resume",
                f"{run_dir} is finished ({steps[-1]} of {config.learning.steps} updates)",
                f"Look at it: selfplay report {run_dir}",
            )
        _run(config, directory, console)
    finally:
        directory.unlock()


def _run(config: Config, directory: RunDirectory, console: Console) -> None:
    try:
        settled = with_chosen_threads(config, available_cores(), partial(print_line, console))
        if settled is not config or not directory.config_file.exists():
            directory.write_config(dump_config(settled))
        trainer = build_trainer(settled, directory, console)
        directory.check_epoch()
        note_session(directory.path)
        asyncio.run(trainer.run())
    except InputError:
        directory.remove_new()
        raise
    except SelfplayError as error:
        raise directory.after_failure(str(error)) from error
    except (OSError, SafetensorError) as error:
        raise directory.cannot_be_written(error) from error
    except BaseException:
        directory.remove_new()
        raise
    finally:
        directory.unlock()


def build_trainer(config: Config, directory: RunDirectory, console: Console) -> Trainer:
    """Build the loop of a run with everything in this process.

    Raises:
        InputError: the model or the program cannot be loaded.
    """
    program = build_program(config)
    policies = policies_of(program) if program is not None else [TRAINED]
    lora = LoraSettings(config.lora.rank, float(config.lora.alpha), list(config.lora.target_modules))
    with working(console, f"loading {config.model.name}"):
        model = assembly.build_policy(config.model, lora, config.seed, partial(print_line, console), policies)
    learners = {policy: assembly.build_learner(config.learning, config, model, policy) for policy in policies}
    engine = assembly.build_engine(config, model)
    directory.check_epoch()
    lines = JsonlSink(directory.metrics_file)
    tracker = Tracker(directory.path.name, sinks=assembly.build_sinks(config, lines, directory.path))
    metrics = LocalMetrics(tracker, lines)
    serving = EmbeddedServing(engine, {policy: learner.result for policy, learner in learners.items()})
    source: Source = (
        ProgramSource(config, directory, metrics, program, engine, serving)
        if program is not None
        else GameSource(config, directory, tracker, metrics, model, serving)
    )
    saving = LocalLearners(model, learners, directory, config.model.name)
    return Trainer(config, directory, source, saving, metrics, console)
