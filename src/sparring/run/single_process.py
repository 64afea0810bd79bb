"""A run in one process: its parts, built from a configuration."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from sparring.collection.local_handle import LocalHandle
from sparring.collection.metrics_log import MetricsLog
from sparring.collection.rollout_log import AdvantageLog
from sparring.collection.sinks import further_sinks
from sparring.config import Config
from sparring.core import InferenceClient
from sparring.engine.answering import Engine
from sparring.engine.hosts import VLLMHost
from sparring.engine.paid_answers import ANSWERS_FILE, PaidFile, paying_client
from sparring.engine.published_adapters import PublishedAdapters
from sparring.learn.learner import Learner
from sparring.run import assembly
from sparring.run.adapter_versions import AdapterVersions
from sparring.run.answer_lengths import answer_limits
from sparring.run.game_source import GameSource
from sparring.run.given_adapters import (
    find_given,
    frozen_adapters,
    frozen_of,
    load_given,
    with_own_copies,
)
from sparring.run.hardware import available_cores
from sparring.run.local_games import LocalGames
from sparring.run.local_learners import LocalLearners
from sparring.run.metrics import RunMetrics
from sparring.run.program_source import ProgramSource
from sparring.run.programs import build_program, trained_policies
from sparring.run.progress_views import print_line, working
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import EmbeddedServing, Serving
from sparring.run.start import Work, resume_run, start_run
from sparring.run.trainer import Source, Trainer
from sparring.run.vllm_serving import VLLMServing


class SingleProcess:
    """The runtime of a run in this process."""

    def cores(self, config: Config) -> int:
        """Return the cores that this process may use."""
        return available_cores()

    @contextmanager
    def prepared(self, config: Config, directory: RunDirectory, console: Console) -> Iterator[Work]:
        """Build the run, and return what trains to the end."""
        yield build_trainer(config, directory, console).run


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run in this process."""
    start_run(config, run_dir, console, SingleProcess())


def resume(run_dir: Path, console: Console, changes: Mapping[str, str | None] | None = None) -> None:
    """Continue a run in this process."""
    resume_run(run_dir, console, SingleProcess(), changes or {})


def build_trainer(config: Config, directory: RunDirectory, console: Console) -> Trainer:
    """Build the loop of a run with everything in this process."""
    program = build_program(config)
    policies = trained_policies(config, program)
    sources = None if directory.config_file.exists() else find_given(config)
    config = with_own_copies(config, directory)
    with working(console, f"loading {config.model.name}"):
        model = assembly.build_policy(
            config.model, config.lora, config.seed, partial(print_line, console), policies
        )
        load_given(config, model, sources)
    learners = {policy: assembly.build_learner(config, model, policy) for policy in policies}
    directory.check_epoch()
    name, tracking = directory.path.name, config.tracking
    sinks = further_sinks(name, directory.path, tracking.wandb_project, tensorboard=tracking.tensorboard)
    log = MetricsLog(name, directory.metrics_file, sinks)
    metrics = RunMetrics(LocalHandle(log))
    may_start_again = [] if config.league is None else config.league.may_start_again
    advantages = AdvantageLog(directory.batches) if config.buffer.log_batches else None
    saving = LocalLearners(
        learners, directory, config.model.name, may_start_again, answer_limits(config), advantages
    )
    serving, engine = _serving(config, directory, learners, console)
    client = _with_apis(engine, config, directory)
    calls = config.inference.max_queue
    source: Source
    if program is not None:
        source = ProgramSource(config, directory, metrics, program, client, serving, saving, calls)
    else:
        games = LocalGames(config, directory, log.tracker, client)
        arena = assembly.build_arena(config, client, calls)
        source = GameSource(config, directory, metrics, games, serving, saving, arena)
    return Trainer(config, directory, source, saving, metrics, console)


def _with_apis(engine: Engine, config: Config, directory: RunDirectory) -> InferenceClient:
    """Return a client that also answers for the models behind an API, whose answers the run keeps."""
    apis = frozen_of(config, "api")
    if not apis:
        return engine
    answers = PaidFile(directory.path / ANSWERS_FILE, config.collection.api_calls)
    return paying_client(engine, apis, answers, config.inference.max_tokens)


def _serving(
    config: Config, directory: RunDirectory, learners: dict[str, Learner], console: Console
) -> tuple[Serving, Engine]:
    """Return who answers the run's model calls, and their client."""
    model = next(iter(learners.values())).policy
    results = {policy: learner.result for policy, learner in learners.items()}
    if config.inference.engine == "vllm":
        say = partial(print_line, console)
        host = VLLMHost(partial(assembly.build_vllm, config.model, config.lora, config.inference, say))
        versions = AdapterVersions(learners, directory, config.model.name)
        sleeps = config.inference.sleep > 0
        ours = VLLMServing(host, versions, results, frozen_adapters(config), console, sleeps=sleeps)
        return ours, ours.client
    engine = assembly.build_engine(config.inference, model)
    serving = EmbeddedServing(PublishedAdapters(engine), results, model, directory, config.model.name)
    for name in frozen_of(config, "adapter"):
        engine.publish(name, name, 0)
    return serving, engine
