"""What is played at a table: games against models, or a role in a program's episodes."""

from collections.abc import Callable
from contextlib import nullcontext

from sparring.commands.persons_games import (
    Dealt,
    PersonsGames,
    make_move,
    model_move,
    next_to_move,
    outcome_text,
)
from sparring.commands.play_browser.server import serve_page
from sparring.commands.play_browser.table import PersonsTable, Told
from sparring.commands.programs import PERSON, ProgramRun, WithPerson, play_episode
from sparring.core import derive_seed
from sparring.core.env_id import class_name
from sparring.evaluation.match import Progress
from sparring.evaluation.venues import started

Say = Callable[[str], None]


def games_in_browser(games: PersonsGames, say: Say) -> None:
    """Serve a page on which a person plays one game after another, until interrupted."""

    async def play(table: PersonsTable) -> None:
        async with games.deal() as dealt:
            await play_game_at(table, dealt, games.max_turns)

    serve_page(play, nullcontext(), say)


async def play_game_at(table: PersonsTable, dealt: Dealt, max_turns: int) -> None:
    """Play a game to its end. Until then the person sees what its seat sees and no more."""
    game, mine = dealt.game, dealt.mine
    table.title = f"{class_name(game.env_id)}: you have seat {mine} of {game.num_players}"
    table.rules = game.rules(mine).strip()
    told: list[Told] = []
    turn = 0
    while not game.done:
        if turn == max_turns:
            game.truncate()
            break
        pid = next_to_move(game, mine)
        if pid == mine:
            legal = game.legal_actions()
            action = game.normalise(await table.ask(game.observation(pid).strip(), legal))
            if legal is not None and action not in legal:
                table.refuse(f"{action} is not legal; choose one of: {', '.join(legal)}")
                continue
            told.append(Told("you", action, problem=await make_move(game, mine, action)))
            table.problem = told[-1].problem
        else:
            move = await model_move(game, dealt.model, derive_seed(dealt.seed, turn))
            told.append(Told(f"player {pid}", move.action, move.said, move.thought, move.problem))
        turn += 1
    said, each = outcome_text(game.rewards(), mine)
    table.end(f"{said} ({each})", told)


def program_in_browser(run: str, role: str, seed: int | None, progress: Progress, say: Say) -> None:
    """Serve a page on which a person plays a role in one episode after another, until interrupted."""
    program = ProgramRun(run, {role: PERSON}, seed, progress)

    async def play(table: PersonsTable) -> None:
        await play_role_at(table, program, role)

    serve_page(play, started(program.arena, program.checkpoint), say)


async def play_role_at(table: PersonsTable, program: ProgramRun, role: str) -> None:
    """Play an episode to its end. Until then the person sees what its role is asked and no more."""
    table.title = f"{program.config.play.names[0]}: you are {role}"
    program.arena.client = person = WithPerson(program.client, table.ask)
    result = await play_episode(program, role, person)
    rollouts = result.all_rollouts()
    told = [
        Told("you" if step.role_id == role else step.role_id, "", step.completion_text, step.reasoning)
        for rollout in rollouts
        for step in rollout.steps
    ]
    rewards = [f"reward of {name}: {reward:+g}" for one in rollouts for name, reward in one.rewards.items()]
    failures = [f"the episode failed: {one.error}" for one in rollouts if one.error]
    table.end(", ".join([*rewards, *failures]) or "the episode has ended", told)
