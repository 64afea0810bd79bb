"""Train through fine-tuning jobs, in a run's directory."""

from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from sparring.collection.sinks import start_wandb
from sparring.commands.finetune_base_run import with_base_run
from sparring.commands.finetune_view import ConsoleView
from sparring.config import Config
from sparring.config.facts import check_packages
from sparring.config.loading import dump_config, load_config
from sparring.core import InputError, SparringError
from sparring.finetune.scenario import ScenarioInstance
from sparring.run.progress_views import print_line
from sparring.run.run_directory import RunDirectory
from sparring.run.stage_trainers import build_scenario, build_trainer, settings_of, trainer_class
from sparring.view.report.page import build_report


def finetune(config: Config, directory: Path, console: Console) -> None:
    """Train a new run into a directory.

    Raises:
        InputError: the configuration has no fine-tuning, its base run cannot be used, or the
            directory is taken.
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
    """Return what a run would do, in a few lines; nothing is asked of the provider.

    ``config`` has the parameters of its base run already.

    Raises:
        InputError: the configuration does not fit.
    """
    check_packages(config.tracking, "tracking")
    scenario = build_scenario(config, directory, connect=False)
    given = settings_of(config)
    trainer_class(given.trainer)
    learning = [name for name, group in scenario.shared_model_groups.items() if not group.freeze_agent]
    protocol = scenario.protocol_handler
    return [
        f"{protocol.name}: {', '.join(agent.name for agent in protocol.agents)}",
        f"{scenario.train_environment.num_envs} rollouts in each of {given.rl.num_iterations} iterations",
        f"{scenario.test_environment.num_envs} rollouts in a test; tests: {given.text_rl.test_scheme}",
        f"jobs after each iteration but the last: {', '.join(learning) or 'none'}",
    ]


def resume_finetune(
    directory: Path, overrides: dict[str, str], console: Console, *, accept_changes: bool
) -> None:
    """Continue a run.

    Args:
        directory: the run's directory.
        overrides: fields of the configuration that change.
        console: where progress is shown.
        accept_changes: continue although parameters that change results have changed.

    Raises:
        InputError: there is no such run, or its parameters have changed.
        SparringError: the run had to stop again.
    """
    run = RunDirectory.open(directory)
    run.lock()
    try:
        config = load_config(str(run.config_file), overrides)
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
    """Return a W&B run if the configuration asks for one; a new run that cannot have it is removed."""
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
