"""A run in one process: its parts, built from a configuration."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from selfplay.config import Config
from selfplay.record.sinks import JsonlSink
from selfplay.record.tracker import Tracker
from selfplay.training import assembly
from selfplay.training.embedded_serving import EmbeddedServing
from selfplay.training.game_source import GameSource
from selfplay.training.given_adapters import find_given, load_given, with_own_copies
from selfplay.training.local_games import LocalGames
from selfplay.training.local_learners import LocalLearners
from selfplay.training.metrics import LocalMetrics
from selfplay.training.program_source import ProgramSource
from selfplay.training.programs import build_program, policies_of
from selfplay.training.progress_views import print_line, working
from selfplay.training.run_directory import RunDirectory
from selfplay.training.source import Source
from selfplay.training.start import Work, resume_run, start_run
from selfplay.training.threads import available_cores
from selfplay.training.trainer import Trainer


class SingleProcess:
    """See :class:`selfplay.training.start.Runtime`."""

    def cores(self, config: Config) -> int:
        """See ``Runtime``."""
        return available_cores()

    @contextmanager
    def prepared(self, config: Config, directory: RunDirectory, console: Console) -> Iterator[Work]:
        """See ``Runtime``."""
        yield build_trainer(config, directory, console).run


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run in this process; see :func:`selfplay.training.start.start_run`."""
    start_run(config, run_dir, console, SingleProcess())


def resume(run_dir: Path, console: Console, changes: Mapping[str, str | None] | None = None) -> None:
    """Continue a run in this process; see :func:`selfplay.training.start.resume_run`."""
    resume_run(run_dir, console, SingleProcess(), changes or {})


def build_trainer(config: Config, directory: RunDirectory, console: Console) -> Trainer:
    """Build the loop of a run with everything in this process.

    Raises:
        InputError: the model, the program or a given adapter cannot be loaded.
    """
    program = build_program(config)
    policies = policies_of(program) if program is not None else config.policies
    sources = None if directory.config_file.exists() else find_given(config, policies)
    config = with_own_copies(config, directory, policies)
    with working(console, f"loading {config.model.name}"):
        model = assembly.build_policy(
            config.model, config.lora, config.seed, partial(print_line, console), policies
        )
        load_given(config, model, policies, sources)
    learners = {policy: assembly.build_learner(config, model, policy) for policy in policies}
    engine = assembly.build_engine(config.inference, model)
    directory.check_epoch()
    lines = JsonlSink(directory.metrics_file)
    tracker = Tracker(directory.path.name, sinks=assembly.build_sinks(config, lines, directory.path))
    metrics = LocalMetrics(tracker, lines)
    results = {policy: learner.result for policy, learner in learners.items()}
    exploiters = [] if config.league is None else config.league.exploiters
    saving = LocalLearners(model, learners, directory, config.model.name, exploiters)
    serving = EmbeddedServing(engine, results, model, directory, config.model.name)
    for name in config.frozen:
        engine.publish(name, name, 0)
    calls = config.inference.max_queue
    source: Source
    if program is not None:
        source = ProgramSource(config, directory, metrics, program, engine, serving, calls)
    else:
        games = LocalGames(config, directory, tracker, engine)
        arena = assembly.build_arena(config, engine, calls)
        source = GameSource(config, directory, metrics, games, serving, saving, arena)
    return Trainer(config, directory, source, saving, metrics, console)
