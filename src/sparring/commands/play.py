"""``sparring play``: a person against the model, in the terminal."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from sparring.commands.members import MODEL, Member
from sparring.commands.model_source import find_player
from sparring.commands.serving import build_engine
from sparring.config.model import InferenceSettings
from sparring.core import CallSettings, InferenceClient, InputError, derive_seed
from sparring.core.env_id import absolute_id
from sparring.core.errors import is_transient
from sparring.core.model_caller import ModelCaller
from sparring.core.own_code import is_from_outside
from sparring.core.text import one_line, printable
from sparring.envs.catalog import open_game
from sparring.envs.game import Game
from sparring.envs.templates import PromptTemplate, calls_of, get_template
from sparring.evaluation.match import Progress, drawn
from sparring.evaluation.results import outcome_of
from sparring.evaluation.venues import GameVenue
from sparring.run.checks import checked_seats

_SAID = {"win": "won", "draw": "drew", "loss": "lost"}


def play(
    run: str,
    env_id: str,
    *,
    template: str | None = None,
    seat: int | None = None,
    seed: int = 0,
    console: Console,
    progress: Progress | None = None,
) -> None:
    """Play games until the person stops. The model, or the policy of each seat, holds all seats but one.

    An empty line or the end of the input ends the session at any question; after each game the person is
    asked for another. Without ``template`` the model sees the game as in its training.

    Raises:
        InputError: the model or environment is not available, or there is no such seat.
    """
    env_id = absolute_id(env_id, Path())
    checked_seats(env_id, None, template)
    source = find_player(run)
    member, env = Member(MODEL, "model", run, source), source.environment(env_id, template, None)
    num_players, prompts = env.num_players, get_template(env.template)
    if seat is not None and seat >= num_players:
        raise InputError(
            "seat", f"{seat} is not one of the {num_players} seats", "Seats are numbered from 0."
        )
    policies = member.models(GameVenue(env), "RUN")
    inference = InferenceSettings(max_tokens=source.max_tokens)
    engine = build_engine(source.model, member.adapters(), inference, seed, progress or Progress())
    calls = replace(env.calls, max_tokens=env.max_tokens or source.max_tokens)
    rng = random.Random(seed)
    tally: Counter[str] = Counter()
    number = 0
    with asyncio.Runner() as runner:
        while True:
            deal = derive_seed(seed, "play", number)
            playing = [drawn(policy, deal, pid) for pid, policy in enumerate(policies)]
            model = ModelPlayer(engine, playing, prompts, calls, runner)
            mine = rng.randrange(num_players) if seat is None else seat
            number += 1
            console.rule(f"game {number}: you have seat {mine} of {num_players}", align="left")
            rewards = _played(env.env_id, num_players, deal, mine, model, seed + number, console)
            if rewards is None:
                break
            tally[outcome_of(rewards, mine)] += 1
            _print_outcome(rewards, mine, console)
            console.print(_tally_text(tally))
            if not _wants_another(console):
                break
    console.print(_tally_text(tally))


@dataclass(frozen=True)
class ModelPlayer:
    """The person's opponent, a policy in each seat.

    Only its answers run in an event loop, which would hold back a Ctrl-C.
    """

    client: InferenceClient
    policies: Sequence[str]
    template: PromptTemplate
    calls: CallSettings
    runner: asyncio.Runner

    def answer(self, game: Game, seed: int) -> str:
        """Return the model's answer to the prompt of the player whose turn it is."""
        answering = ModelCaller(self.client, 1, None).call_model(
            self.template.messages(game, game.current_pid),
            calls=self.calls.over(calls_of(self.template)),
            return_tokens=False,
            model=self.policies[game.current_pid],
            seed=seed,
        )
        return self.runner.run(answering).text


def _played(
    env_id: str, num_players: int, deal: int, mine: int, model: ModelPlayer, seed: int, console: Console
) -> dict[int, float] | None:
    """Play one game and close it; return the rewards, or ``None`` if the person stopped."""
    stack = AsyncExitStack()
    try:
        game = model.runner.run(stack.enter_async_context(open_game(env_id, num_players, deal)))
        play_game(game, mine, model, seed, console)
        return game.rewards() if game.done else None
    finally:
        model.runner.run(stack.aclose())


def play_game(game: Game, mine: int, model: ModelPlayer, seed: int, console: Console) -> None:
    """Play one game; leave it unfinished when the person stops."""
    shown_rules = False
    turn = 0
    while not game.done:
        acting = game.acting()
        pid = mine if mine in acting else acting[0]  # of moves at once, the person makes the first
        game.turn_to(pid)
        if pid != mine:
            _model_move(game, model, derive_seed(seed, turn), console)
        else:
            text = game.observation(pid) if shown_rules else f"{game.rules(pid)}\n\n{game.observation(pid)}"
            shown_rules = True
            console.print(Panel(Text(printable(text.strip())), title="your turn"))
            move = _ask_move(game, console)
            if move is None:
                return
            _apply(game, mine, move, model.runner, console)
        turn += 1


def _ask_move(game: Game, console: Console) -> str | None:
    """Ask for the person's move until it is legal; return ``None`` if the person stops."""
    legal = game.legal_actions()
    while True:
        typed = _ask("your move (an empty line or Ctrl-D ends)> ", console)
        if not typed:
            return None
        move = game.normalise(typed)
        if legal is None or move in legal:
            return move
        console.print(Text(printable(f"not legal; choose one of: {', '.join(legal)}")))


def _wants_another(console: Console) -> bool:
    return _ask("another game? (y; an empty line or Ctrl-D ends)> ", console).lower() in ("y", "yes")


def _ask(question: str, console: Console) -> str:
    """Return the line that the person types, stripped; an empty one at the end of the input."""
    try:
        return console.input(question).strip()
    except EOFError:
        console.print()
        return ""


def _print_outcome(rewards: Mapping[int, float], mine: int, console: Console) -> None:
    others = [f"player {pid} {reward:+g}" for pid, reward in sorted(rewards.items()) if pid != mine]
    each = ", ".join([f"you {rewards[mine]:+g}", *others])
    console.print(f"[bold]you {_SAID[outcome_of(rewards, mine)]}[/bold] ({each})", highlight=False)


def _tally_text(tally: Counter[str]) -> str:
    return f"you: {tally['win']} won, {tally['draw']} drawn, {tally['loss']} lost"


def _model_move(game: Game, model: ModelPlayer, seed: int, console: Console) -> None:
    pid = game.current_pid
    text = model.answer(game, seed)
    action, _ = model.template.extract(text)
    move = game.normalise(action)
    legal = game.legal_actions()
    console.print(Text(printable(f"player {pid} (model): {text.strip()}")))
    valid = (legal is None or move in legal) and _apply(game, pid, move, model.runner, console)
    if not valid and not game.done:
        console.print("that was not a legal move")
        game.forfeit(pid, "illegal move")


def _apply(game: Game, pid: int, move: str, runner: asyncio.Runner, console: Console) -> bool:
    """Make the move; return whether it was valid. One on which the game raises is invalid and ends it."""
    try:
        valid = game.apply(move)
        runner.run(game.settle())
        return valid
    except BaseException as error:  # any error is the move's fault
        if is_from_outside(error) or is_transient(error):
            raise
        game.break_off(pid, error)
        reason = game.game_info()[pid]["reason"]
        console.print(Text(one_line(f"{reason}; this is an invalid move of player {pid}")))
        return False
