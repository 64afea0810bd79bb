"""Ask a model about the messages of a fine-tuning run's proofs, and show how often it says Yes."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sparring.commands.finetune_view import ConsoleView
from sparring.config.loading import load_config
from sparring.config.programs import ProofsSettings
from sparring.core import InputError, SparringError
from sparring.engine.openai_client import OpenAIClient
from sparring.finetune.analysers import analyser_named
from sparring.finetune.analysis import Analysis, YesShare, drawing_client, yes_shares
from sparring.finetune.run_files import RunFiles
from sparring.programs.proofs.protocols import build_protocol
from sparring.view.tables import Row, Table, figure_cell
from sparring.view.watch.text import table_text


def analyse(
    run: Path,
    analysers: Sequence[str],
    model: str,
    console: Console,
    *,
    base_url: str | None,
    overwrite: bool,
    dry_run: bool,
) -> None:
    """Run analysers over a run of ``sparring finetune`` and print a table of their answers.

    ``base_url`` is the address of the model's API, by default the run's own. ``overwrite`` replaces earlier
    answers. ``dry_run`` draws answers instead of asking, and keeps none.

    Raises:
        InputError: an analyser, the run or the address is wrong.
        SparringError: the model cannot be asked, or the answers cannot be written.
    """
    for name in analysers:
        analyser_named(name)
    config = load_config(str(run / "config.toml"), {})
    files = RunFiles(run)
    if config.finetune is None or not isinstance(config.play, ProofsSettings) or not files.state.exists():
        raise InputError("RUN", f"{run} is not a run of sparring finetune", "Name one")
    iterations = config.finetune.rl.num_iterations
    address = base_url or config.finetune.provider.address
    timeout = config.collection.game_timeout
    analysis = Analysis(
        files=files,
        protocol=build_protocol(config.play.protocol, config.play),
        iterations=iterations,
        client=drawing_client() if dry_run else OpenAIClient(model=model, base_url=address, timeout=timeout),
        model=model,
        workers=config.finetune.provider.concurrency,
        view=ConsoleView(console),
        overwrite=overwrite,
        dry_run=dry_run,
    )
    try:
        analysis.run(analysers)
    except InputError:
        raise
    except SparringError as error:
        raise SparringError(f"{error}. The answers so far are kept; the same command continues") from error
    except OSError as error:
        raise SparringError(f"{files.analysis} cannot be written ({error.strerror})") from error
    if not dry_run:
        console.print(table_text(_shares_table(yes_shares(files, analysers, iterations))))


def _shares_table(shares: Sequence[YesShare]) -> Table:
    """Return the answers by iteration and agent: the share of Yes with its 95% interval."""
    heads = ("Analyser", "Iteration", "Agent", "Yes", "No", "Share of yes", "By text", "No answer", "Model")
    rows: list[Row] = [
        (
            one.analyser,
            f"{one.split} {one.iteration}",
            one.agent,
            f"{one.yes}",
            f"{one.no}",
            figure_cell(one.interval, "share") if one.yes + one.no else "",
            f"{one.by_text}",
            f"{one.unanswered}",
            ", ".join(one.models),
        )
        for one in shares
    ]
    return Table(heads, [("", "", rows)], ["Beside a share: its 95% interval."])
