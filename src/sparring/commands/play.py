"""``sparring play``: a person against the model, in the terminal."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from sparring.commands.console import typed
from sparring.commands.persons_games import (
    Dealt,
    PersonsGames,
    make_move,
    model_move,
    next_to_move,
    outcome_text,
    verdict_of,
)
from sparring.core import derive_seed
from sparring.core.text import printable
from sparring.envs.game import Game

ENDS = ("won", "drew", "lost")
"""How a game can end for one of two players."""


def play_games(games: PersonsGames, console: Console) -> None:
    """Play games until the person stops. The model, or the policy of each seat, holds all seats but one.

    An empty line or the end of the input ends the session at any question; after each game the person is
    asked for another.
    """
    tally: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        while True:
            opened = AsyncExitStack()
            try:
                dealt = runner.run(opened.enter_async_context(games.deal()))
                title = f"game {games.dealt}: you have seat {dealt.mine} of {dealt.game.num_players}"
                console.rule(title, align="left")
                play_game(dealt, runner, console)
                if not dealt.game.done:
                    break
                rewards = dealt.game.rewards()
            finally:
                runner.run(opened.aclose())
            tally[verdict_of(rewards, dealt.mine)] += 1
            said, each = outcome_text(rewards, dealt.mine)
            console.print(f"[bold]{said}[/bold] ({each})", highlight=False)
            console.print(_tally_text(tally))
            again = typed("another game? (y; an empty line or Ctrl-D ends)> ", console)
            if again.lower() not in ("y", "yes"):
                break
    console.print(_tally_text(tally))


def play_game(dealt: Dealt, runner: asyncio.Runner, console: Console) -> None:
    """Play one game; leave it unfinished when the person stops.

    The event loop runs only while nobody is asked, because it would hold back a Ctrl-C.
    """
    game, mine = dealt.game, dealt.mine
    shown_rules = False
    turn = 0
    while not game.done:
        pid = next_to_move(game, mine)
        if pid != mine:
            move = runner.run(model_move(game, dealt.model, derive_seed(dealt.seed, turn)))
            console.print(Text(printable(f"player {pid} (model): {move.said.strip()}")))
            problem = move.problem
        else:
            text = game.observation(pid) if shown_rules else f"{game.rules(pid)}\n\n{game.observation(pid)}"
            shown_rules = True
            console.print(Panel(Text(printable(text.strip())), title="your turn"))
            chosen = _ask_move(game, console)
            if chosen is None:
                return
            problem = runner.run(make_move(game, mine, chosen))
        if problem:
            console.print(Text(printable(problem)))
        turn += 1


def _ask_move(game: Game, console: Console) -> str | None:
    """Ask for the person's move until it is legal; return ``None`` if the person stops."""
    legal = game.legal_actions()
    while True:
        line = typed("your move (an empty line or Ctrl-D ends)> ", console)
        if not line:
            return None
        move = game.normalise(line)
        if legal is None or move in legal:
            return move
        console.print(Text(printable(f"not legal; choose one of: {', '.join(legal)}")))


def _tally_text(tally: Counter[str]) -> str:
    places = (f", {count} {verdict}" for verdict, count in tally.items() if verdict not in ENDS)
    return f"you: {tally['won']} won, {tally['drew']} drawn, {tally['lost']} lost{''.join(places)}"
