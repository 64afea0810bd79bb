"""``sparring train``: start a new run, or continue one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sparring.cli.fields import add_options, split_arguments
from sparring.cli.model_options import ADDRESS, RUNTIME, SEED
from sparring.core import InputError
from sparring.core.shell_command import shell_command
from sparring.core.text import one_line

if TYPE_CHECKING:
    from sparring.config import Config

_HELP = (
    "A .toml file or a preset (kuhn, kuhn-long, quickstart, league, tictactoe, tictactoe-long, "
    "proposer-solver, debate, nip, debate-proof); any field follows as --learning.steps 20."
)


def train(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG --a.b=VALUE", help=_HELP, show_default=False)
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; by default the configuration's.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A published algorithm, such as grpo, or a .toml file of your own.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print and check the configuration.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue this run instead; with --learning.steps N, up to N."),
    ] = None,
    runtime: Annotated[str | None, RUNTIME] = None,
    address: Annotated[str | None, ADDRESS] = None,
) -> None:
    """Train a model by self-play into runs/NAME, or continue one that was stopped or killed."""
    words, overrides = split_arguments(arguments or [])
    if resume is not None:
        from sparring.run.resume import STEPS

        changes = {STEPS: overrides.pop(STEPS)} if STEPS in overrides else {}
        given = [*words, *(f"--{key}" for key in overrides)]
        options = {"--seed": seed, "--name": name, "--recipe": recipe, "--runtime": runtime}
        given += [option for option, value in options.items() if value is not None]
        given += ["--dry-run"] if dry_run else []
        _resume(resume, given, changes, address)
        return
    if not words:
        raise InputError("CONFIG", "is missing", "Try: sparring train kuhn")
    if len(words) > 1:
        raise InputError(words[1], "one configuration is enough", "Fields are set like --learning.steps 20")
    add_options(overrides, seed=seed, runtime=runtime, address=address)
    _start(words[0], overrides, recipe, name, dry_run)


def _start(
    source: str, overrides: dict[str, str], recipe: str | None, name: str | None, dry_run: bool
) -> None:
    from sparring.config import load_config
    from sparring.config.without_effect import without_effect
    from sparring.run.checks import check_config, notes_on
    from sparring.run.progress_views import print_line, working
    from sparring.run.run_names import run_directory

    config = load_config(source, overrides, recipe)
    parent = Path(config.run.directory)
    stem = "-".join(Path(one).stem for one in (source, recipe) if one is not None)
    run_dir = run_directory(parent, name, stem)
    found = check_config(config)
    found += [] if recipe is None else [f"recipe {recipe}"]
    if dry_run:
        from sparring.run.rehearsal import dry_run_of

        more, notes = dry_run_of(config)
        stderr = show_dry_run(config, without_effect(config), [*found, *more, f"run directory {run_dir}"])
        for line in [*notes_on(config), *notes]:
            print_line(stderr, f"note: {line}")
        return
    console = Console()
    for line in notes_on(config):
        print_line(console, f"note: {line}")
    if config.run.runtime == "ray":
        with working(console, "importing torch and Ray"):
            from sparring.cluster.ray_import import import_ray

            import_ray(silent=True)
            from sparring.cluster.train import train as train_run
    else:
        with working(console, "importing torch"):
            from sparring.run.single_process import train as train_run

    train_run(config, run_dir, console)


def _resume(run: str, given: list[str], changes: dict[str, str], address: str | None) -> None:
    if given:
        raise InputError(
            "--resume",
            "a run keeps its own configuration, so only --learning.steps and --address can be given "
            f"(got {', '.join(given)})",
            f"Use only: {shell_command('train', '--resume', run)}",
        )
    from sparring.run.progress_views import working
    from sparring.run.resume import ADDRESS, resumed_config
    from sparring.run.run_directory import RunDirectory
    from sparring.run.run_layout import check_kind
    from sparring.run.run_names import find_run

    run_dir = find_run(run, "--resume")
    check_kind(run_dir, "train")
    config = resumed_config(RunDirectory(run_dir), changes)
    console = Console()
    if config.run.runtime == "ray":
        with working(console, "importing torch and Ray"):
            from sparring.cluster.ray_import import import_ray

            import_ray(silent=True)
            from sparring.cluster.train import resume as resume_on_ray

        resume_on_ray(run_dir, console, changes | ({} if address is None else {ADDRESS: address}))
        return
    if address is not None:
        raise InputError(
            "--address",
            f"{run_dir} is a run of one process",
            f"Use only: {shell_command('train', '--resume', run)}",
        )
    with working(console, "importing torch"):
        from sparring.run.single_process import resume as resume_in_process

    resume_in_process(run_dir, console, changes)


def show_dry_run(config: "Config", without_effect: dict[str, str], found: list[str]) -> Console:
    """Print the configuration and, on the standard error output, which this returns, what was found right."""
    _print_config(config, without_effect)
    stderr = Console(stderr=True, soft_wrap=True)
    for line in found:
        stderr.print(Text.assemble(("ok", "green"), f" {one_line(line)}"))
    return stderr


def _print_config(config: "Config", without_effect: dict[str, str]) -> None:
    """Print the configuration as TOML that can be saved and trained from; in colours on a terminal."""
    from sparring.config import dump_active

    text = dump_active(config, without_effect)
    console = Console()
    if not console.is_terminal:
        print(text, end="")
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, "toml", background_color="default", word_wrap=True))
