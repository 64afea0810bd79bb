"""``sparring train`` and ``finetune``: start a new run, or continue one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sparring.cli.options import (
    Address,
    ConfigWords,
    Exit,
    Recipe,
    RuntimeName,
    SeedOrNone,
    config_of,
    json_text,
    split_arguments,
)
from sparring.core import InputError
from sparring.core.text import one_line, shell_command

if TYPE_CHECKING:
    from sparring.config import Config

RunName = Annotated[str | None, typer.Option(help="Name of the run; by default the configuration's.")]
Validate = Annotated[bool, typer.Option("--validate", help="Say what is wrong with the configuration.")]
AsJson = Annotated[bool, typer.Option("--json", help="With --validate: as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print and check the configuration.")]


def train(
    arguments: ConfigWords = None,
    seed: SeedOrNone = None,
    name: RunName = None,
    recipe: Recipe = None,
    dry_run: DryRun = False,
    validate: Validate = False,
    as_json: AsJson = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue this run instead; with --learning.steps N, up to N."),
    ] = None,
    runtime: RuntimeName = None,
    address: Address = None,
) -> None:
    """Train a model by self-play into runs/NAME, or continue one that was stopped or killed."""
    if as_json and not validate:
        raise InputError("--json", "is for --validate", "Give both")
    if resume is None and validate:
        options = {"seed": seed, "runtime": runtime, "address": address}
        _show_problems(_problems_in(arguments, recipe, name, options), as_json)
        return
    if resume is None:
        source, overrides = config_of(arguments, "train kuhn", seed=seed, runtime=runtime, address=address)
        _start(source, overrides, recipe, name, dry_run)
        return
    from sparring.run.resume import STEPS

    words, overrides = split_arguments(arguments or [])
    changes = {STEPS: overrides.pop(STEPS)} if STEPS in overrides else {}
    given = [*words, *(f"--{key}" for key in overrides)]
    options = {"--seed": seed, "--name": name, "--recipe": recipe, "--runtime": runtime}
    given += [option for option, value in options.items() if value is not None]
    given += [option for option, is_on in {"--dry-run": dry_run, "--validate": validate}.items() if is_on]
    _resume(resume, given, changes, address)


def _problems_in(
    arguments: list[str] | None, recipe: str | None, name: str | None, options: dict[str, Any]
) -> list[InputError]:
    from sparring.run.configuration import problems_of

    try:
        source, overrides = config_of(arguments, "train kuhn --validate", **options)
    except InputError as error:
        return [error]
    return problems_of(source, overrides, recipe, name)


def _show_problems(problems: list[InputError], as_json: bool) -> None:
    if as_json:
        named = [{"field": one.field, "problem": one.problem, "fix": one.fix} for one in problems]
        print(json_text({"problems": named}), end="")
    else:
        for one in problems:
            print(f"error: {one_line(str(one))}", file=sys.stderr)
    if problems:
        raise typer.Exit(Exit.BAD_INPUT)
    if not as_json:
        print("ok")


def _start(
    source: str, overrides: dict[str, str], recipe: str | None, name: str | None, dry_run: bool
) -> None:
    from sparring.config.without_effect import without_effect
    from sparring.run.checks import check_config, notes_on
    from sparring.run.configuration import load_fitted
    from sparring.run.progress_views import print_line
    from sparring.run.run_names import run_directory

    config, left_out = load_fitted(source, overrides, recipe)
    stem = "-".join(Path(one).stem for one in (source, recipe) if one is not None)
    run_dir = run_directory(Path(config.run.directory), name, stem)
    found = check_config(config)
    found += [] if recipe is None else [f"recipe {recipe}"]
    if dry_run:
        from sparring.run.rehearsal import dry_run_of

        more, notes = dry_run_of(config)
        stderr = _show_dry_run(config, without_effect(config), [*found, *more, f"run directory {run_dir}"])
        for line in [*left_out, *notes_on(config), *notes]:
            print_line(stderr, f"note: {line}")
        return
    console = Console()
    for line in [*left_out, *notes_on(config)]:
        print_line(console, f"note: {line}")
    from sparring.commands.console import ConsoleProgress, runtime_of
    from sparring.run.start import start_run

    start_run(config, run_dir, console, runtime_of(config, ConsoleProgress(console)))


def _resume(run: str, given: list[str], changes: dict[str, str], address: str | None) -> None:
    command = shell_command("train", "--resume", run)
    if given:
        problem = (
            "a run keeps its own configuration, so only --learning.steps and --address can be given "
            f"(got {', '.join(given)})"
        )
        raise InputError("--resume", problem, f"Use only: {command}")
    from sparring.run.resume import ADDRESS, STORE, resumed_config
    from sparring.run.run_directory import RunDirectory
    from sparring.run.run_layout import check_kind
    from sparring.run.run_names import find_run

    console = Console()
    run_dir = _fetched(run, console) if "://" in run else find_run(run, "--resume")
    check_kind(run_dir, "train")
    config = resumed_config(RunDirectory(run_dir), changes)
    store = run.rstrip("/").rpartition("/")[0]
    if "://" in run and (config.run.store or "").rstrip("/") != store:
        changes[STORE] = store
    if address is not None:
        if config.run.runtime == "local":
            raise InputError("--address", f"{run_dir} is a run of one process", f"Use only: {command}")
        changes[ADDRESS] = address
    from sparring.commands.console import ConsoleProgress, runtime_of
    from sparring.run.start import resume_run

    resume_run(run_dir, console, runtime_of(config, ConsoleProgress(console)), changes)


def _fetched(url: str, console: Console) -> Path:
    from sparring.run.start import fetch_run

    return fetch_run(url, console)


def finetune(
    arguments: ConfigWords = None,
    seed: SeedOrNone = None,
    name: RunName = None,
    dry_run: DryRun = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Continue this run instead.")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although what decides results has changed.")
    ] = False,
) -> None:
    """Train models behind an API into runs/NAME through fine-tuning jobs, or continue such a run."""
    if resume is not None:
        words, overrides = split_arguments(arguments or [])
        overrides |= {} if seed is None else {"seed": str(seed)}
        if words or name is not None or dry_run:
            raise InputError("--resume", "a run keeps its configuration and its name", "Give fields only")
        from sparring.commands.finetune import resume_finetune
        from sparring.run.run_layout import check_kind
        from sparring.run.run_names import find_run

        run = find_run(resume, "--resume")
        check_kind(run, "finetune")
        resume_finetune(run, overrides, Console(), accept_changes=accept_changes)
        return
    source, overrides = config_of(arguments, "finetune CONFIG.toml", seed=seed)
    from sparring.commands.finetune import check_finetune, with_base_run
    from sparring.commands.finetune import finetune as finetune_run
    from sparring.config import load_config
    from sparring.config.without_effect import without_effect_on_jobs
    from sparring.run.run_names import run_directory

    config = load_config(source, overrides)
    directory = run_directory(Path(config.run.directory), name, Path(source).stem)
    if dry_run:
        whole = with_base_run(config)
        found = [*check_finetune(whole, directory), f"run directory {directory}"]
        _show_dry_run(whole, without_effect_on_jobs(whole), found)
        return
    finetune_run(config, directory, Console())


def _show_dry_run(config: "Config", without_effect: dict[str, str], found: list[str]) -> Console:
    """Print the configuration as TOML that can be trained from; return standard error, which has the rest."""
    from sparring.config import dump_active

    text, console = dump_active(config, without_effect), Console()
    if console.is_terminal:
        from rich.syntax import Syntax

        console.print(Syntax(text, "toml", background_color="default", word_wrap=True))
    else:
        print(text, end="")
    stderr = Console(stderr=True, soft_wrap=True)
    for line in found:
        stderr.print(Text.assemble(("ok", "green"), f" {one_line(line)}"))
    return stderr
