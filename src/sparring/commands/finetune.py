"""Train through fine-tuning jobs, in a run's directory; maybe with the parameters of an earlier run."""

from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from sparring.collection.sinks import start_wandb
from sparring.commands.finetune_view import ConsoleView
from sparring.config import Config
from sparring.config.facts import check_packages
from sparring.config.finetune import FinetuneSettings
from sparring.config.loading import dump_config, load_config
from sparring.core import InputError, SparringError
from sparring.core.files import check_kinds
from sparring.core.text import counted, shell_command
from sparring.finetune.run_files import CheckPointNotFoundError, RunFiles, read_state
from sparring.finetune.scenario import ScenarioInstance
from sparring.run.progress_views import print_line
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run
from sparring.run.stage_trainers import build_scenario, build_trainer, settings_of, trainer_class
from sparring.view.report.page import build_report

RUN = "finetune.base_run.run_id"
TESTS = {"rl": ["num_test_iterations"], "text_rl": ["test_scheme", "test_on_whole_dataset"]}
"""The parameters that a run does not take from another."""


def finetune(config: Config, directory: Path, console: Console) -> None:
    """Train a new run into a directory.

    Raises:
        InputError: the configuration or its base run cannot be used, or the directory is taken.
        SparringError: the run had to stop; it can be resumed.
    """
    config = with_base_run(config)
    if config.finetune is not None and config.finetune.base_run.run_id is not None:
        print_line(console, f"parameters of {config.finetune.base_run.run_id}")
    check_packages(config.tracking, "tracking")
    scenario = build_scenario(config, directory, partial(print_line, console))
    trainer_class(settings_of(config).trainer)  # a wrong one is refused before there is a directory
    _train(config, scenario, RunDirectory.create(directory), console)


def check_finetune(config: Config, directory: Path) -> list[str]:
    """Return in a few lines what a run would do; nothing is asked of the provider."""
    check_packages(config.tracking, "tracking")
    scenario = build_scenario(config, directory, connect=False)
    given = settings_of(config)
    trainer_class(given.trainer)
    learning = [name for name, group in scenario.shared_model_groups.items() if not group.freeze_agent]
    protocol = scenario.protocol_handler
    rollouts = counted(scenario.train_environment.num_envs, "rollout")
    in_a_test = counted(scenario.test_environment.num_envs, "rollout")
    return [
        f"{protocol.name}: {', '.join(agent.name for agent in protocol.agents)}",
        f"{counted(given.rl.num_iterations, 'iteration')} with {rollouts} each",
        f"{in_a_test} in a test; tests: {given.text_rl.test_scheme}",
        f"jobs after each iteration but the last: {', '.join(learning) or 'none'}",
    ]


def resume_finetune(
    directory: Path, overrides: dict[str, str], console: Console, *, accept_changes: bool
) -> None:
    """Continue a run; ``accept_changes`` allows ``overrides`` that change results."""
    run = RunDirectory.open(directory)
    run.lock()
    try:
        config = load_config(str(run.config_file), overrides)
        given = settings_of(config)
        if given.base_run.base_run_type == "rerun_tests" and not _needs_no_base_run(directory, given):
            _check_tests(Path(str(given.base_run.run_id)), given, given.rl.num_iterations)
        scenario = build_scenario(config, directory, partial(print_line, console))
        _train(config, scenario, run, console, accept_changes=accept_changes)
    finally:
        run.unlock()


def _train(
    config: Config,
    scenario: ScenarioInstance,
    run: RunDirectory,
    console: Console,
    *,
    accept_changes: bool = False,
) -> None:
    """Train to the end. The configuration is written last: with it, the run can be resumed."""
    wandb_run = None
    began = False
    try:
        wandb_run = _start_wandb(config, run)
        trainer = build_trainer(
            config,
            scenario,
            run.path,
            ConsoleView(console),
            accept_changes=accept_changes,
            wandb_run=wandb_run,
        )
        trainer.save_checkpoint(log=False)
        run.write_config(dump_config(config))
        print_line(console, f"run directory: {run.path}")
        began = True
        trainer.train()
        print_line(console, f"report: {build_report(run.path)}")
    except ExceptionGroup as group:
        reasons = "; ".join(str(error) for error in group.exceptions)
        failed = 1 + max(one.state.tries for one in trainer.shared_model_groups.values())
        again = f"--finetune.provider.recreate_failed_jobs {failed}"
        raise SparringError(f"{reasons}. {_continue(run.path, 'make again what failed', again)}") from group
    except InputError:
        if began:  # the account has no more credit, for example
            print_line(console, _continue(run.path))
        raise
    except KeyboardInterrupt:
        print_line(console, _continue(run.path))
        raise
    except SparringError as error:
        raise SparringError(f"{str(error).rstrip('.')}. {_continue(run.path)}") from error
    except OSError as error:
        raise SparringError(f"{run.path} cannot be written ({error}). {_continue(run.path)}") from error
    finally:
        if wandb_run is not None:
            wandb_run.finish()
        run.unlock()


def _start_wandb(config: Config, run: RunDirectory) -> Any | None:
    if config.tracking.wandb_project is None:
        return None
    try:
        return start_wandb(config.tracking.wandb_project, run.path.name, directory=run.path)
    except InputError:
        run.remove_new()
        raise


def _continue(path: Path, what: str = "continue", *options: str) -> str:
    command = " ".join(("sparring finetune --resume", str(path), *options))
    return f"What was sampled and trained is kept; {what} with: {command}"


def with_base_run(config: Config) -> Config:
    """Return the configuration with the parameters of its base run, or unchanged if it names none.

    What decides results is the base run's: the seed, the program, the roles, the model of a local provider
    and, of ``[finetune]``, everything but the provider and ``TESTS``.

    Raises:
        InputError: there is no such run, or it does not fit.
    """
    given = config.finetune
    if given is None:
        return config
    kind, name = given.base_run.base_run_type, given.base_run.run_id
    if kind == "none":
        if name is None:
            return config
        fix = 'Set it to "parameters" or "rerun_tests"'
        raise InputError("finetune.base_run.base_run_type", "is none, although a base run is named", fix)
    if name is None:
        raise InputError(RUN, "is missing", "Name the earlier run")
    path = find_run(name, RUN).absolute()
    base = load_config(str(path / "config.toml"), {})
    if base.finetune is None:
        problem = f"{path} was not trained through fine-tuning jobs"
        raise InputError(RUN, problem, "Name a run of sparring finetune")
    if kind == "rerun_tests":
        _check_tests(path, given, base.finetune.rl.num_iterations)
    base_run = given.base_run.model_copy(update={"run_id": str(path)})
    kept: dict[str, Any] = {"provider": given.provider, "base_run": base_run}
    for section, fields in TESTS.items():
        new = {field: getattr(getattr(given, section), field) for field in fields}
        kept[section] = getattr(base.finetune, section).model_copy(update=new)
    taken = base.finetune.model_copy(update=kept)
    kept_of_base: dict[str, Any] = {"seed": base.seed, "program": base.program, "roles": base.roles}
    if given.provider.type == base.finetune.provider.type == "local":
        kept_of_base["model"] = base.model
    return config.model_copy(update={**kept_of_base, "finetune": taken})


def _needs_no_base_run(directory: Path, given: FinetuneSettings) -> bool:
    """Return whether all tests were played, with models that are not in the base run's directory."""
    try:
        done = read_state(RunFiles(directory).state).train_loop_stage == "done"
    except CheckPointNotFoundError:
        done = False
    return done and given.provider.type != "local"


def _check_tests(path: Path, given: FinetuneSettings, iterations: int) -> None:
    if given.text_rl.test_scheme == "none":
        field = "finetune.text_rl.test_scheme"
        raise InputError(field, "is none, so no test is played again", 'Set it to "all"')
    files = RunFiles(path)
    finish = f"Finish it: {shell_command('finetune', '--resume', path)}"
    if not path.is_dir():
        raise InputError(RUN, f"{path} is gone", "Move the run back there")
    check_kinds(path)
    try:
        state = read_state(files.state)
    except CheckPointNotFoundError:
        raise InputError(RUN, f"{path} has not begun", finish) from None
    if state.train_loop_stage != "done":
        problem = f"{path} is in iteration {state.iteration + 1} of {iterations}"
        raise InputError(RUN, problem, finish)
    for iteration in range(iterations):
        file = files.state_of(iteration)
        if not file.exists():
            raise InputError(RUN, f"{path} has no state of iteration {iteration}", f"Restore {file}")
    if given.provider.type == "local" and not files.server.is_dir():
        problem = f"{path} has no directory {files.server.name}: its jobs were made elsewhere"
        raise InputError(RUN, problem, "Use the provider that it had")
