"""What runs left behind: ``sparring runs``, ``report``, ``doctor``, ``compare``, ``watch``, ``export``,
``analyse``."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from sparring.cli.options import (
    GAME_OPTIONS,
    Env,
    Exit,
    SeedOrNone,
    check_writable,
    console_of_tables,
    json_text,
    print_table,
    write_text,
)
from sparring.core import InputError
from sparring.core.errors import check_installed, imported, refuse, renaming
from sparring.core.text import counted, shell_command

if TYPE_CHECKING:
    from sparring.view.run_view import ViewSource

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]
_NAMES = "prover_role_conformance, prover_direct_quotation, prover_accurate_quotation or follow_up"
_COMPARED_HELP = "The runs, by name or path; with --deals also RUN@120, RUN@best, an adapter, base or random."
_DEALS_HELP = "Play this many deals with each, and show the games beside each other."
_PAYOFFS_HELP = "Write what the members of the run's pool earned, as JSON and CSV."
_ROLLOUTS_HELP = "Write the games or conversations that the run has logged, as one Parquet file."
_RLDOCTOR_HELP = "Write the run's metrics as JSON lines in the words of rl-doctor."
_PUSH_HELP = "Then upload OUT to this repository of the Hugging Face Hub, made private; needs HF_TOKEN."
_RUNS = Path("runs")


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the runs.")] = _RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the runs of a directory: what they train, how far they are, and what they measured last."""
    from datetime import UTC, datetime

    from sparring.commands.list_runs import list_runs, runs_table

    found = list_runs(directory)
    if as_json:
        print(json_text([run.to_dict() for run in found]), end="")
    elif found:
        console_of_tables().print(runs_table(found, datetime.now(UTC)))
    else:
        print("there are no runs here")


def report(
    run: Run,
    solo: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A solo verifier's run, to show beside a run of sparring finetune."),
    ] = None,
) -> None:
    """Rebuild a run's report.html and print its path."""
    from sparring.run.run_directory import RunDirectory
    from sparring.run.run_names import find_run
    from sparring.view.report.page import build_report

    run_dir = find_run(run)
    solo_dir = None if solo is None else find_run(solo, "--solo")
    print(build_report(RunDirectory.open(run_dir).path, solo_dir))


def doctor(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say why a run does not learn: what stands out, worst first. The exit status is 3 if anything does."""
    from sparring.commands.doctor import diagnose, print_diagnosis, to_dict

    found = diagnose(run)
    if as_json:
        print(json_text(to_dict(found)), end="")
    else:
        for one in found:
            print_diagnosis(one, Console())
    if any(one.findings for one in found):
        raise typer.Exit(Exit.FOUND)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN ...", help=_COMPARED_HELP)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("comparison.html"),
    deals: Annotated[int | None, typer.Option(min=1, metavar="N", help=_DEALS_HELP)] = None,
    env: Env = None,
    seed: SeedOrNone = None,
) -> None:
    """Compare runs in a table and on a page with curves; seeds of one configuration become one entry.

    With --deals, let runs or checkpoints play the same deals and show their games side by side.
    """
    check_writable("--out", out)
    if deals is not None:
        _compare_deals(runs, out, env, deals, seed or 0)
        return
    of_deals = {"--env": env, "--seed": seed}
    refuse(of_deals, "is for games that are played", "Leave it out, or add --deals 4")
    from sparring.commands.compare import read_entries
    from sparring.commands.compare_page import comparison_html, comparison_text

    entries = read_entries(runs)
    page = comparison_html(entries)
    Console().print(comparison_text(entries))
    write_text(out, page)
    print(f"\npage: {out}")


def _compare_deals(members: list[str], out: Path, env: str | None, deals: int, seed: int) -> None:
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.model_source import first_environment_of
    from sparring.commands.side_by_side import side_by_side, side_by_side_html, side_by_side_table

    with renaming(GAME_OPTIONS | {"members": "RUN"}):
        result = side_by_side(
            members, env or first_environment_of(members), deals, seed, ConsoleProgress(Console())
        )
    print_table(console_of_tables(), side_by_side_table(result))
    write_text(out, side_by_side_html(result))
    print(f"\npage: {out}")


def watch(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's name or path; by default the newest.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="The run's Ray cluster: HOST:PORT, or auto for one on this machine."),
    ] = None,
) -> None:
    """Watch a run in the terminal while it is in progress, or look at a finished one."""
    imported("watch", "watch", "textual")
    with ExitStack() as opened:
        source: ViewSource
        if address is not None:
            check_installed("--address", "ray", "ray")
            _require_terminal("Run it in a terminal.")
            from sparring.cluster.view import ClusterSource

            source = opened.enter_context(closing(ClusterSource(address, run)))
        else:
            from sparring.core.files import check_kinds
            from sparring.run.run_names import find_run
            from sparring.view.source import RunDirectorySource

            run_dir = newest_run() if run is None else find_run(run)
            check_kinds(run_dir)
            source = RunDirectorySource(run_dir)
            _require_terminal(f"Run it in a terminal, or use: {shell_command('report', run_dir)}")
        from sparring.view.watch.terminal_interface import TerminalInterface

        TerminalInterface(source).run()


def _require_terminal(fix: str) -> None:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise InputError("watch", "this is not a terminal", fix)


def newest_run() -> Path:
    """Return the directory of the run in ``runs`` that was started or written to last."""
    found = [path.parent for path in _RUNS.glob("*/config.toml")]
    if not found:
        raise InputError("RUN", "there is no run here", "Train one first: sparring train kuhn")
    return max(found, key=_last_written)


def _last_written(run: Path) -> float:
    metrics = run / "metrics.jsonl"
    return (metrics if metrics.exists() else run / "config.toml").stat().st_mtime


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path, or an adapter.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The directory or file to write; it must not exist.")
    ],
    merge: Annotated[
        bool, typer.Option("--merge", help="Write a whole model, with the adapter merged into its weights.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="The policy of a run that trained several.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="N|best|last", help="The checkpoint; by default the last.")
    ] = None,
    gguf: Annotated[
        Literal["f32", "f16", "q8_0"] | None,
        typer.Option("--gguf", help="Write a GGUF file of this type, for llama.cpp."),
    ] = None,
    push: Annotated[str | None, typer.Option("--push", metavar="USER/NAME", help=_PUSH_HELP)] = None,
    payoffs: Annotated[bool, typer.Option("--payoffs", help=_PAYOFFS_HELP)] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts", help=_ROLLOUTS_HELP)] = False,
    verifiers: Annotated[
        bool,
        typer.Option("--verifiers", help="Write what a run or a configuration plays as a package."),
    ] = False,
    rldoctor: Annotated[bool, typer.Option("--rldoctor", help=_RLDOCTOR_HELP)] = False,
) -> None:
    """Copy a run's adapter in PEFT's format, or write a Hugging Face model with --merge."""
    from sparring.commands.export import export as export_adapter
    from sparring.commands.export import export_payoffs

    name = run if checkpoint is None else f"{run}@{checkpoint}"
    of_model: dict[str, object] = {"--merge": merge, "--policy": policy, "--gguf": gguf, "--push": push}
    if rldoctor:
        of_run = {"--rollouts": rollouts, "--payoffs": payoffs, "--verifiers": verifiers}
        _refuse("--rldoctor", {**of_model, **of_run, "--checkpoint": checkpoint})
        from sparring.commands.export_rldoctor import export_rldoctor

        updates = counted(export_rldoctor(run, out), "update")
        print(f"wrote {out}: {updates}. Next: rl-doctor diagnose {out}")
    elif rollouts:
        others = {"--payoffs": payoffs, "--verifiers": verifiers, "--checkpoint": checkpoint}
        _refuse("--rollouts", of_model | others)
        from sparring.commands.export_rollouts import export_rollouts

        found = export_rollouts(run, out, partial(print, file=sys.stderr))
        print(f"wrote {out}: {found.rows:,} rows, {found.rollouts:,} rollouts, {found.updates:,} updates")
        if found.played > found.rollouts:
            kept = f"a run keeps {found.logged:,} of an update (tracking.games_logged) and those that failed"
            print(f"note: {found.played:,} were played; {kept}", file=sys.stderr)
    elif verifiers:
        _refuse("--verifiers", {**of_model, "--payoffs": payoffs, "--checkpoint": checkpoint})
        from sparring.commands.export_verifiers import export_verifiers

        print(f"wrote {out}. Next: {export_verifiers(run, out)}")
    elif payoffs:
        _refuse("--payoffs", of_model)
        export_payoffs(name, out)
        print(f"wrote {out}")
    else:
        export_adapter(name, out, merge=merge, policy=policy, console=Console(), gguf=gguf, push_to=push)


def _refuse(option: str, others: Mapping[str, object]) -> None:
    """Raise an InputError if an option that writes no model stands beside others."""
    if given := [name for name, value in others.items() if value]:
        raise InputError(option, f"does not go together with {given[0]}", f"Leave out {' and '.join(given)}")


def analyse(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of sparring finetune, by name or path.")],
    analyser: Annotated[list[str], typer.Option(metavar="NAME", help=f"{_NAMES}; may be repeated.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="The model that answers Yes or No.")],
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The model's API; by default that of the run.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier answers.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask nothing and keep nothing; count the questions.")
    ] = False,
) -> None:
    """Ask Yes or No questions about the messages of a run's proofs, and print how often the answer is Yes.

    What is answered is kept, so a killed analysis continues.
    """
    from sparring.commands.analyse import analyse as analyse_run
    from sparring.run.run_names import find_run

    with renaming({"analyser": "--analyser", "base_url": "--base-url"}):
        analyse_run(
            find_run(run),
            list(dict.fromkeys(analyser)),
            model,
            console_of_tables(),
            base_url=base_url,
            overwrite=overwrite,
            dry_run=dry_run,
        )
