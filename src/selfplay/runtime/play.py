"""``selfplay play``: a person against the model, in the terminal."""

import asyncio
import random

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from selfplay.core import InferenceClient, InputError, derive_seed
from selfplay.envs.catalog import make_game
from selfplay.envs.game import Game
from selfplay.envs.templates import PromptTemplate, get_template
from selfplay.runtime.evaluate import build_engine, find_model


def play(
    run: str, env_id: str, *, template: str | None, seat: int | None, seed: int, console: Console
) -> None:
    """Play games until the person has enough. The model holds all seats but one.

    Without ``template`` the game is put to the model as in its training.

    Raises:
        InputError: the model or environment cannot be had, or there is no such seat.
    """
    source = find_model(run)
    env = source.environment(env_id, template, None)
    num_players, prompts = env.num_players, get_template(env.template)
    if seat is not None and seat >= num_players:
        raise InputError("--seat", f"{seat} is none of the {num_players} seats", "Seats count from 0.")
    engine = build_engine(source, console, seed)
    rng = random.Random(seed)
    number = 0
    while True:
        game = make_game(env_id, num_players, derive_seed(seed, "play", number))
        mine = rng.randrange(num_players) if seat is None else seat
        console.rule(f"game {number + 1}: you are player {mine} (empty answer or Ctrl-D ends)")
        asyncio.run(_game(game, mine, engine, prompts, source.max_tokens, seed + number, console))
        if not game.done:
            return
        outcome = ", ".join(f"player {pid}: {reward:+g}" for pid, reward in game.rewards().items())
        console.print(f"[bold]over[/bold]: {outcome}")
        number += 1


async def _game(
    game: Game,
    mine: int,
    client: InferenceClient,
    template: PromptTemplate,
    max_tokens: int,
    seed: int,
    console: Console,
) -> None:
    """Play one game; leaves it unfinished when the person stops."""
    shown_rules = False
    turn = 0
    while not game.done:
        pid = game.current_pid
        if pid != mine:
            await _model_move(game, client, template, max_tokens, derive_seed(seed, turn), console)
        else:
            text = game.observation(pid) if shown_rules else f"{game.rules(pid)}\n\n{game.observation(pid)}"
            shown_rules = True
            console.print(Panel(escape(text.strip()), title="your turn"))
            move = _ask_move(game, console)
            if move is None:
                return
            game.apply(move)
        turn += 1


def _ask_move(game: Game, console: Console) -> str | None:
    """The person's move; ``None`` when there is none. Illegal ones are asked for again."""
    legal = game.legal_actions()
    while True:
        try:
            typed = console.input("your move> ").strip()
        except EOFError:
            return None
        if not typed:
            return None
        move = game.normalise(typed)
        if legal is None or move in legal:
            return move
        console.print(f"not legal; choose one of: {escape(', '.join(legal))}")


async def _model_move(
    game: Game,
    client: InferenceClient,
    template: PromptTemplate,
    max_tokens: int,
    seed: int,
    console: Console,
) -> None:
    pid = game.current_pid
    response = await client.complete(
        template.messages(game, pid), max_tokens=max_tokens, return_tokens=False, model="default", seed=seed
    )
    action, _ = template.extract(response.text)
    move = game.normalise(action)
    legal = game.legal_actions()
    valid = (legal is None or move in legal) and game.apply(move)
    console.print(f"player {pid} (model): {escape(response.text.strip())}", highlight=False)
    if not valid and not game.done:
        console.print("that was not a legal move")
        game.forfeit(pid, "illegal move")
