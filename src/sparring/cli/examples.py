"""``sparring examples`` and ``sft``: games as conversations, and an adapter trained on such a file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.options import (
    GAME_OPTIONS,
    TEMPLATE_OPTIONS,
    Players,
    SeedOrNone,
    Template,
    TemplateOptions,
    check_writable,
    write_text,
)
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.errors import refuse, renaming

GAMES = 500
_SOURCE_HELP = "A scripted player, optimal or random, which plays new games; or a run, by name or path."
_FILE_HELP = "The file to write: OpenAI's format, one move a line."
_ENV_HELP = "The game; by default all of the run."
_MEMBER_HELP = "Of a run: all moves of this member, such as default or ckpt-10; by default the winners'."
_REASONING_HELP = "Of a run: begin answers with what the model thought."


def examples(
    source: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RUN", help=_SOURCE_HELP)],
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help=_FILE_HELP)],
    env: Annotated[str | None, typer.Option(metavar="ID", help=_ENV_HELP)] = None,
    member: Annotated[str | None, typer.Option(metavar="NAME", help=_MEMBER_HELP)] = None,
    reasoning: Annotated[bool, typer.Option("--reasoning", help=_REASONING_HELP)] = False,
    opponent: Annotated[
        str | None, typer.Option(metavar="SCRIPT", help="The other script; by default random.")
    ] = None,
    games: Annotated[
        int | None, typer.Option(min=1, help="Number of new games, with balanced seats; by default 500.")
    ] = None,
    template: Template = None,
    players: Players = None,
    seed: SeedOrNone = None,
) -> None:
    """Write the moves of games as conversations, for supervised training: a scripted player's or a run's."""
    check_writable("FILE", file)
    from sparring.commands.console import ConsoleProgress
    from sparring.envs.scripted import PLAYER_NAMES

    progress = ConsoleProgress(Console())
    of_scripts = {"--opponent": opponent, "--games": games, "--template": template}
    of_scripts |= {"--players": players, "--seed": seed}
    names = {"member": "--member", "opponent": "--opponent"}
    names |= dict.fromkeys(("script", "RUN"), "SCRIPT_OR_RUN")
    with renaming(GAME_OPTIONS | names):
        if source in PLAYER_NAMES:
            refuse({"--member": member, "--reasoning": reasoning}, "is for a run's games", "Leave it out")
            from sparring.commands.examples import expert_examples, expert_game

            other = opponent or "random"
            game = expert_game(source, other, env, players, template)
            found = expert_examples(source, other, game, games or GAMES, seed or 0, progress)
        else:
            refuse(of_scripts, "is for games of a scripted player", "Leave it out")
            from sparring.commands.examples import run_examples
            from sparring.run.run_names import find_run

            run = find_run(source, "SCRIPT_OR_RUN")
            found = run_examples(run, env, member, reasoning=reasoning, progress=progress)
    write_text(file, "\n".join(found.lines) + "\n")
    progress.say(found.summary(file))
    if found.plain:
        progress.say("note: prompts are plain text, in messages of the role text, which only our jobs read")


def sft(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Conversations in OpenAI's format, one a line.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The adapter's directory; it must not exist.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="The base model.")] = BUNDLED_MODEL,
    epochs: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Passes over the file; by default about 3.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Conversations a step; by default 0.2% of the file.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-6, max=1e6, help="Multiplies the learning rate, 0.0002.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default the fastest.")] = None,
    template_options: TemplateOptions = None,
    seed: SeedOrNone = None,
) -> None:
    """Train an adapter on a file of conversations, as a fine-tuning job does, without a server."""
    from sparring.commands.console import ConsoleProgress
    from sparring.commands.model_source import base_model, loaded_as, with_template_options
    from sparring.commands.sft import fine_tune
    from sparring.learn.fine_tuning.settings import JobSettings

    settings = JobSettings("supervised", seed or 0, epochs, batch_size, rate)
    with renaming({"model": "--model", "MODEL_OR_RUN": "--model", **TEMPLATE_OPTIONS}):
        base = loaded_as(base_model(model), threads, dtype)
        base = with_template_options(base, template_options)
        fine_tune(file, out, base, settings, ConsoleProgress(Console()))
