"""``sparring finetune``: train models behind an API through fine-tuning jobs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.fields import add_options, split_arguments
from sparring.cli.model_options import SEED
from sparring.cli.train import show_dry_run
from sparring.core import InputError

_HELP = "A .toml file or a preset; any field follows as --finetune.rl.num_iterations 4."


def finetune(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG --a.b=VALUE", help=_HELP, show_default=False)
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; by default the configuration's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print and check the configuration.")] = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Continue this run instead.")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although what decides results has changed.")
    ] = False,
) -> None:
    """Train models behind an API into runs/NAME through fine-tuning jobs, or continue such a run."""
    words, overrides = split_arguments(arguments or [])
    add_options(overrides, seed=seed)
    if resume is not None:
        if words or name is not None or dry_run:
            raise InputError("--resume", "a run keeps its configuration and its name", "Give fields only")
        from sparring.commands.finetune import resume_finetune
        from sparring.run.run_layout import check_kind
        from sparring.run.run_names import find_run

        run = find_run(resume, "--resume")
        check_kind(run, "finetune")
        resume_finetune(run, overrides, Console(), accept_changes=accept_changes)
        return
    if len(words) != 1:
        problem = "is missing" if not words else "one configuration is enough"
        raise InputError("CONFIG", problem, "Try: sparring finetune CONFIG.toml")
    from sparring.commands.finetune import check_finetune
    from sparring.commands.finetune import finetune as finetune_run
    from sparring.commands.finetune_base_run import with_base_run
    from sparring.config import load_config
    from sparring.config.without_effect import without_effect_on_jobs
    from sparring.run.run_names import run_directory

    config = load_config(words[0], overrides)
    parent = Path(config.run.directory)
    directory = run_directory(parent, name, Path(words[0]).stem)
    if dry_run:
        whole = with_base_run(config)
        found = [*check_finetune(whole, directory), f"run directory {directory}"]
        show_dry_run(whole, without_effect_on_jobs(whole), found)
        return
    finetune_run(config, directory, Console())
