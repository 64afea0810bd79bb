"""Let a model debate with itself and a judge name the winner.

    sparring serve smollm2-135m --port 8000
    python examples/run_debate.py "Cities should ban cars" "Homework helps" --local --port 8000

Without ``--local`` OpenRouter answers; its key is read from OPENROUTER_API_KEY. Nothing is trained:
``sparring train debate`` does that.
"""

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from server import connect, run

from sparring.config.programs import DebateSettings
from sparring.core import GenerateResult, Rollout, VerboseLogger
from sparring.core.text import one_line, printable
from sparring.programs.debate import DebateArena

LOG = "debate_run.log"
TEMPERATURE = 0.7
MAX_TOKENS = 80


def main(
    topics: Annotated[list[str], typer.Argument(help="The motions to debate.")],
    local: Annotated[bool, typer.Option("--local", help="Ask a server on this machine.")] = False,
    port: Annotated[int, typer.Option(help="Port of that server.")] = 8000,
    model: Annotated[str | None, typer.Option(help="Name of the served model.")] = None,
    num_steps: Annotated[int, typer.Option(min=1, help="Number of batches.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Debates per batch.")] = 4,
    verbose: Annotated[bool, typer.Option("--verbose", help=f"Write {LOG}.")] = False,
) -> None:
    """Debate TOPICS and print a transcript of each batch and a table of results."""
    run(_debate(topics, local, port, model, num_steps, batch_size, verbose))


async def _debate(
    topics: list[str],
    local: bool,
    port: int,
    model: str | None,
    num_steps: int,
    batch_size: int,
    verbose: bool,
) -> None:
    client = await connect(local, port, model)
    logger = VerboseLogger(LOG) if verbose else None
    settings = DebateSettings(
        topics=topics, batch_size=batch_size, max_tokens=MAX_TOKENS, on_judge_failure="draw"
    )
    arena = DebateArena(client, settings, logger=logger)
    for role in list(arena.roles.values()):
        arena.add_role(replace(role, temperature=TEMPERATURE))
    console = Console()
    table = Table("step", "debates", "failed", "no verdict", "won by Aff", "words a turn", title="Results")
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Debates", total=num_steps * batch_size)
            arena.on_result = lambda result: progress.advance(task)
            for step in range(1, num_steps + 1):
                _, results = await arena.play_step()
                _print_transcript(console, results)
                table.add_row(str(step), *_row(results))
    finally:
        await client.close()
        if logger is not None:
            logger.close()
    console.print(table)
    if verbose:
        console.print(f"Full log: {LOG}")


def _print_transcript(console: Console, results: list[GenerateResult]) -> None:
    """Print the first debate of a batch that did not fail."""
    held = [result.rollout for result in results if result.rollout.error is None]
    if not held:
        console.print(f"All debates failed: {one_line(results[0].rollout.error or '')}", markup=False)
        return
    rollout = held[0]
    console.rule(Text(rollout.artifact["topic"]))
    for step in rollout.steps:
        colour = "green" if step.role_id == "Aff" else "magenta"
        said = Text(printable(step.completion_text.strip()))
        console.print(Panel(said, title=step.role_id, border_style=colour))
    console.print(_verdict(rollout), markup=False)


def _verdict(rollout: Rollout) -> str:
    verdict = rollout.extras["verdict"]
    if verdict is None:
        return "The judge gave no readable verdict."
    return f"The judge: {verdict['winner']} wins, score {verdict['score']:.2f}"


def _row(results: list[GenerateResult]) -> list[str]:
    held = [result.rollout for result in results if result.rollout.error is None]
    verdicts = [rollout.extras["verdict"] for rollout in held]
    judged = [verdict for verdict in verdicts if verdict is not None]
    won = sum(verdict["winner"] == "Aff" for verdict in judged)
    words = [len(step.completion_text.split()) for rollout in held for step in rollout.steps]
    return [
        str(len(results)),
        str(len(results) - len(held)),
        str(len(held) - len(judged)),
        f"{won} of {len(judged)}",
        f"{sum(words) / len(words):.1f}" if words else "-",
    ]


if __name__ == "__main__":
    typer.run(main)
