"""Let a model write questions and solve them; the best question is one that it solves half of the time.

    sparring serve smollm2-135m --port 8000
    python examples/run_proposer_solver.py --local --port 8000
    python examples/run_proposer_solver.py --questions '[{"question": "What is 2+2?", "ground_truth": "4"}]'

With ``--questions`` the proposer follows these examples and writes questions in words and their answers.
Without them it writes arithmetic, whose answers are computed. Without ``--local`` OpenRouter answers; its key
is read from OPENROUTER_API_KEY. Nothing is trained: ``sparring train proposer-solver`` does that.
"""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from server import connect, run

from sparring.config.programs import ProposerSolverSettings
from sparring.core import GenerateResult, InputError, VerboseLogger
from sparring.core.text import one_line, printable
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.programs.questions import Question, check_questions

LOG = "proposer_solver_run.log"


def main(
    questions: Annotated[
        str | None, typer.Option(help='JSON: [{"question": "...", "ground_truth": "..."}, ...]')
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Ask a server on this machine.")] = False,
    port: Annotated[int, typer.Option(help="Port of that server.")] = 8000,
    model: Annotated[str | None, typer.Option(help="Name of the served model.")] = None,
    num_steps: Annotated[int, typer.Option(min=1, help="Number of batches.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Proposals per batch.")] = 4,
    solver_rollouts: Annotated[int, typer.Option(min=1, help="Answers to each question.")] = 4,
    verbose: Annotated[bool, typer.Option("--verbose", help=f"Write {LOG}.")] = False,
) -> None:
    """Propose and solve questions; print the proposals of each batch and a table of results."""
    run(_propose(questions, local, port, model, num_steps, batch_size, solver_rollouts, verbose))


async def _propose(
    questions: str | None,
    local: bool,
    port: int,
    model: str | None,
    num_steps: int,
    batch_size: int,
    solver_rollouts: int,
    verbose: bool,
) -> None:
    given = _questions(questions) if questions is not None else None
    client = await connect(local, port, model)
    logger = VerboseLogger(LOG) if verbose else None
    settings = ProposerSolverSettings(
        batch_size=batch_size,
        solver_rollouts=solver_rollouts,
        proposer_policy="default",
        solver_policy="default",
    )
    arena = ProposerSolverArena(client, settings, questions=given, logger=logger)
    console = Console()
    table = Table("step", "proposals", "failed", "valid", "pass rate", "reward", "stored", title="Results")
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Proposals", total=num_steps * batch_size)
            arena.on_result = lambda result: progress.advance(task)
            for step in range(1, num_steps + 1):
                _, results = await arena.play_step()
                console.rule(f"Step {step}")
                for result in results:
                    _print_proposal(console, result)
                table.add_row(str(step), *_row(results), str(arena.stores["questions"].count()))
    finally:
        await client.close()
        if logger is not None:
            logger.close()
    console.print(table)
    if verbose:
        console.print(f"Full log: {LOG}")


def _questions(text: str) -> list[Question]:
    """Parse the value of ``--questions``.

    Raises:
        InputError: the value is not a list of questions.
    """
    try:
        return check_questions(json.loads(text))
    except ValueError as error:
        raise InputError("--questions", f"is not JSON ({error})", "Give a list of objects") from error


def _print_proposal(console: Console, result: GenerateResult) -> None:
    rollout = result.rollout
    if rollout.error is not None:
        console.print(f"failed: {one_line(rollout.error)}", style="red", markup=False)
        return
    question = rollout.extras["question"]
    if question is None:
        said = printable(rollout.steps[0].completion_text.strip())
        console.print(Text(f"not a question: {said}", style="yellow"))
        return
    rewards = rollout.extras["solver_rewards"]
    asked = printable(f"{question['question']}  ({question['ground_truth']})")
    console.print(Text(asked, style="bold"))
    console.print(f"  solved {sum(rewards):g} of {len(rewards)}, reward {rollout.rewards['Proposer']:+.2f}")
    steps = [child.rollout.steps[0] for child in result.children if child.rollout.steps]
    console.print(Text("  " + " | ".join(one_line(step.completion_text)[:60] for step in steps), style="dim"))


def _row(results: list[GenerateResult]) -> list[str]:
    held = [result.rollout for result in results if result.rollout.error is None]
    rates = [rollout.extras["pass_rate"] for rollout in held if rollout.extras["valid"]]
    rewards = [rollout.rewards["Proposer"] for rollout in held]
    return [
        str(len(results)),
        str(len(results) - len(held)),
        str(len(rates)),
        f"{sum(rates) / len(rates):.2f}" if rates else "-",
        f"{sum(rewards) / len(rewards):+.2f}" if rewards else "-",
    ]


if __name__ == "__main__":
    typer.run(main)
