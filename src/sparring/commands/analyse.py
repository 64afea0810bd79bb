"""Ask a model about the messages of a fine-tuning run's proofs, and show how often it says Yes."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring.commands.finetune_view import ConsoleView
from sparring.config.loading import load_config
from sparring.config.programs import ProofsSettings
from sparring.core import InputError, SparringError
from sparring.core.text import one_line
from sparring.engine.openai_client import OpenAIClient
from sparring.finetune.analysers import analyser_named
from sparring.finetune.analysis import Analysis, YesShare, drawing_client, yes_shares
from sparring.finetune.run_files import RunFiles
from sparring.programs.proofs.protocols import build_protocol


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

    Args:
        run: the run's directory.
        analysers: names of analysers.
        model: the model that answers.
        console: where progress and the table are shown.
        base_url: the address of the model's API; by default the run's own.
        overwrite: replace earlier answers.
        dry_run: draw answers instead of asking, and keep none.

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
    analysis = Analysis(
        files=files,
        protocol=build_protocol(config.play.protocol, config.play),
        iterations=iterations,
        client=drawing_client()
        if dry_run
        else OpenAIClient(model=model, base_url=address, timeout=config.collection.game_timeout),
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
        console.print(shares_table(yes_shares(files, analysers, iterations)))


def shares_table(shares: Sequence[YesShare]) -> Table:
    """Return the table of answers: the share of Yes with its 95% interval, by iteration and agent."""
    table = Table(box=None, pad_edge=False)
    for heading in ("analyser", "iteration", "agent"):
        table.add_column(heading)
    for heading in ("yes", "no", "share of yes", "95% interval", "by text", "no answer"):
        table.add_column(heading, justify="right")
    table.add_column("model", overflow="fold")
    for one in shares:
        low, share, high = one.interval
        known = one.yes + one.no > 0
        table.add_row(
            one.analyser,
            f"{one.split} {one.iteration}",
            Text(one_line(one.agent)),
            f"{one.yes}",
            f"{one.no}",
            f"{100 * share:.1f}%" if known else "",
            f"{100 * low:.1f} to {100 * high:.1f}" if known else "",
            f"{one.by_text}",
            f"{one.unanswered}",
            Text(one_line(", ".join(one.models))),
        )
    return table
