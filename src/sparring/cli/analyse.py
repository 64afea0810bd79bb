"""``sparring analyse``: ask a model about the messages of a fine-tuning run's proofs."""

from typing import Annotated

import typer

from sparring.cli.files import console_of_tables

_NAMES = "prover_role_conformance, prover_direct_quotation, prover_accurate_quotation or follow_up"


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
    from sparring.run.checks import renaming
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
