"""``selfplay tournament``: everybody against everybody, and what is read off the payoffs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from selfplay.cluster.engines.api_models import api_client
from selfplay.commands.payoff_files import write_payoffs
from selfplay.commands.tournament_clients import MembersClient
from selfplay.commands.tournament_exact import (
    measure_members,
    read_nash_convs,
    unmeasured,
    with_nash_conv,
)
from selfplay.commands.tournament_files import GAMES, PAGE, PlayedGame, TournamentFiles
from selfplay.commands.tournament_members import Member, base_of
from selfplay.commands.tournament_page import tournament_html
from selfplay.commands.tournament_schedule import MAX_GAMES, Schedule, ScheduledGame
from selfplay.config.model import InferenceSettings
from selfplay.config.play import GameSettings
from selfplay.core import AgentSpec, Arena, InferenceClient, InputError, PlaySpec, SelfplayError
from selfplay.core.files import write_file
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.templates import get_template
from selfplay.evaluation.match import play_game
from selfplay.evaluation.mixture import Mixture, drawn
from selfplay.population import PayoffTable
from selfplay.population.rankings import Rankings, rank
from selfplay.training.progress_views import View, print_line, view_of, working
from selfplay.training.publishing import publish_models

CONCURRENCY = 256
"""Games in flight. Those of all pairs mix, so that adapters share forward passes."""
SAMPLES_PER_GROUP = 2
"""Games of a group that are kept to read: the first deal in two orders of seats, of a pair in both."""
RETRIES = 1

Serve = Callable[[Mapping[str, Path]], AbstractAsyncContextManager[InferenceClient]]
"""Serves adapters by name, and their base model as ``base``, for as long as the body runs."""


@dataclass(frozen=True)
class Tournament:
    """What is played.

    Attributes:
        members: the players.
        env: the environment, a game for two or more.
        schedule: the games.
        agents: who answers for each member in each seat.
        temperature: the models' sampling temperature.
        seed: root of all randomness.
        nash_conv: whether the NashConv of every model that is served here is computed as well.
    """

    members: list[Member]
    env: GameSettings
    schedule: Schedule
    agents: dict[str, tuple[AgentSpec | Mixture[AgentSpec], ...]]
    temperature: float
    seed: int
    nash_conv: bool = False

    def settings(self, budget: int | None) -> dict[str, Any]:
        """Return what a tournament that goes on must share with its beginning."""
        base = base_of(self.members)
        return {
            "env_id": self.env.name,
            "players": self.env.num_players,
            "template": self.env.template,
            "max_turns": self.env.max_turns,
            "error_allowance": self.env.error_allowance,
            **({"stop": self.env.stop} if self.env.stop else {}),  # tournaments of before have none
            "base_model": base.name,
            "dtype": base.dtype,
            "quantization": base.quantization,
            "temperature": self.temperature,
            "seed": self.seed,
            "games": self.schedule.games,
            "budget": budget,
            "members": [
                {
                    "uid": one.uid,
                    "kind": one.kind,
                    "weights": one.weights(),
                    "max_tokens": one.max_tokens,
                }
                for one in self.members
            ],
        }


@dataclass(frozen=True)
class Outcome:
    """A played tournament: the payoffs, what is read off them, and the reasons of games that failed."""

    table: PayoffTable
    rankings: Rankings
    failures: dict[str, int]


def run_tournament(
    tournament: Tournament, out: Path, budget: int | None, console: Console, serve: Serve | None = None
) -> Outcome:
    """Play the games that ``out`` does not have, and write every file there.

    Args:
        tournament: what is played.
        out: the directory, which may hold an unfinished tournament with the same settings.
        budget: as in the schedule, to be written down.
        console: where progress is shown.
        serve: serves the members' adapters; without it, this process does.

    Raises:
        InputError: the directory cannot be used, or a model cannot be loaded.
        SelfplayError: no game could be finished, or the directory cannot be written.
    """
    files = TournamentFiles.open(out, tournament.settings(budget))
    try:
        files.check_rewards(tournament.env.id)
        if files.played:
            print_line(console, f"{out} has {len(files.played)} finished games, which are not played again")
        outcome = asyncio.run(_play(tournament, files, console, serve))
        _write(tournament, files, outcome)
    except OSError as error:
        problem = f"{out} cannot be written ({error}): free the disk or fix its permissions"
        raise SelfplayError(f"{problem}, and give this command again") from error
    finally:
        files.close()
    return outcome


async def _play(
    tournament: Tournament, files: TournamentFiles, console: Console, serve: Serve | None
) -> Outcome:
    table, failures = PayoffTable(), Counter[str]()
    view = view_of(console, "games", tournament.schedule.total)
    try:
        async with _client(tournament, files, console, serve) as client:
            view.start()
            view.doing(f"playing {tournament.env.name}")
            await _play_batches(tournament, files, table, failures, Arena(client), view)
            exact = await _nash_convs(tournament, files, client, view, console)
        if not any(payoff.games for _, payoff in table.items()):
            reason = next(iter(failures), "there was none")
            raise SelfplayError(f"no game of the tournament could be finished: {reason}")
        view.doing("ranking the members")
        uids = [member.uid for member in tournament.members]
        rankings = rank(table, uids, _in_order(files, table))
        return Outcome(table, with_nash_conv(rankings, exact), dict(failures))
    finally:
        view.stop()


async def _play_batches(
    tournament: Tournament,
    files: TournamentFiles,
    table: PayoffTable,
    failures: Counter[str],
    arena: Arena,
    view: View,
) -> None:
    done, total = 0, tournament.schedule.total
    for batch in tournament.schedule.batches(table):
        waiting = [game for game in batch if game.number not in files.played]
        done += len(batch) - len(waiting)
        view.count(done, total)
        reasons = await _play_games(tournament, files, waiting, arena, partial(_count, view, done, total))
        done += len(waiting)
        failures.update(reasons.values())
        _add(batch, files, table)
    _add(_beyond(tournament.schedule, files, table), files, table)


async def _nash_convs(
    tournament: Tournament, files: TournamentFiles, client: InferenceClient, view: View, console: Console
) -> dict[str, float]:
    """Return the NashConv of the members by name; of none if it is not asked for."""
    if not tournament.nash_conv:
        return {}
    say = partial(print_line, console)
    members, agents = tournament.members, tournament.agents
    return await measure_members(client, tournament.env, members, agents, files.path, view, say)


def _is_complete(schedule: Schedule, files: TournamentFiles) -> bool:
    """Whether every game of the schedule is finished, so that no model needs to be loaded."""
    table = PayoffTable()
    for batch in schedule.batches(table):
        if any(game.number not in files.played for game in batch):
            return False
        _add(batch, files, table)
    return True


def _beyond(schedule: Schedule, files: TournamentFiles, table: PayoffTable) -> list[ScheduledGame]:
    """Return the finished games that the schedule leaves out now: it was larger once.

    Raises:
        InputError: a game is none of this tournament.
    """
    numbers = sorted(number for number in files.played if number not in table)
    games = {number: schedule.numbered(number) for number in numbers}
    for number, game in games.items():
        if game is None:
            problem = f"game {number} is none of this tournament"
            raise InputError(str(files.path / GAMES), problem, "Delete its line")
    return [game for game in games.values() if game is not None]


def _add(batch: Sequence[ScheduledGame], files: TournamentFiles, table: PayoffTable) -> None:
    """Add a batch to the table; what is not finished has failed.

    Raises:
        InputError: the record of a game is not that of its players.
    """
    for game in batch:
        played = files.played.get(game.number)
        if played is None:
            table.add_failure(game.number, game.seating)
            continue
        if played.players != [*game.seating] or len(played.rewards) != len(game.seating):
            problem = f"game {game.number} is not one of {' and '.join(game.seating)}"
            fix = "Delete its line; the game is played again"
            raise InputError(str(files.path / GAMES), problem, fix)
        table.add(game.number, game.seating, played.rewards, played.invalid, game.deal)


def _count(view: View, before: int, total: int, done: int) -> None:
    view.count(before + done, total)


async def _play_games(
    tournament: Tournament,
    files: TournamentFiles,
    games: Sequence[ScheduledGame],
    arena: Arena,
    on_game: Callable[[int], None],
) -> dict[int, str]:
    """Play and record games; return the reasons of those that failed, by number."""
    env = tournament.env
    template = get_template(env.template)
    episode = GameEpisode(
        env.id,
        env.num_players,
        template,
        max_turns=env.max_turns,
        error_allowance=env.error_allowance,
        stop=env.stop,
    )
    reasons: dict[int, str] = {}
    waiting, done = iter(games), 0

    async def work() -> None:
        nonlocal done
        for game in waiting:
            seats = tuple(
                drawn(tournament.agents[uid][seat], game.seed, seat) for seat, uid in enumerate(game.seating)
            )
            spec = PlaySpec(episode.name, env.num_players, seats, game.seed)
            played = await play_game(arena, episode, spec, f"game-{game.number:010d}", RETRIES)
            if isinstance(played, str):
                reasons[game.number] = played
            else:
                if game.index < SAMPLES_PER_GROUP:
                    files.add_sample(game, played)
                rewards = [played.extras["final_rewards"][seat] for seat in range(env.num_players)]
                invalid = played.extras["invalid_pid"]
                files.add(PlayedGame(game.number, list(game.seating), rewards, invalid))
            done += 1
            on_game(done)

    workers = [asyncio.create_task(work()) for _ in range(min(CONCURRENCY, len(games)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return reasons


@asynccontextmanager
async def _client(
    tournament: Tournament, files: TournamentFiles, console: Console, serve: Serve | None
) -> AsyncIterator[InferenceClient]:
    """Yield a client that answers for every member, or for none if nothing is left to do."""
    done = _is_complete(tournament.schedule, files)
    if tournament.nash_conv and unmeasured(tournament.members, read_nash_convs(files.path)):
        done = False
    members = [] if done else tournament.members
    apis = {one.uid: api_client(one.name) for one in members if one.kind == "api"}
    models = [one for one in members if one.kind == "model"]
    if not models:
        yield MembersClient(None, apis)
    elif serve is None:
        yield MembersClient(_engine(models, tournament.seed, console), apis)
    else:
        async with serve({name: path for one in models for name, path in one.adapters().items()}) as client:
            yield MembersClient(client, apis)


def _engine(models: Sequence[Member], seed: int, console: Console) -> InferenceClient:
    """Serve the adapters of members, and their base model as ``base``.

    Raises:
        InputError: a model cannot be loaded, or an adapter belongs to another model.
    """
    settings = base_of(models)
    adapters = {name: path for one in models for name, path in one.adapters().items()}
    inference = InferenceSettings(max_tokens=max(one.max_tokens or 1 for one in models))
    with working(console, f"loading {settings.name}"):
        say = partial(print_line, console)
        return publish_models(settings, adapters, inference, seed=seed, say=say).engine


def _in_order(files: TournamentFiles, table: PayoffTable) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return the games of the table, all pairs in turns, as TrueSkill rates them."""
    numbers = [number for number in files.played if number in table]
    numbers.sort(key=lambda number: (number % MAX_GAMES, number // MAX_GAMES))
    games = [files.played[number] for number in numbers]
    return [(tuple(game.players), game.rewards) for game in games]


def _write(tournament: Tournament, files: TournamentFiles, outcome: Outcome) -> None:
    """Write the payoffs and the page."""
    about = {
        "env_id": tournament.env.name,
        "rankings": outcome.rankings.to_dict(),
        "failures": outcome.failures,
    }
    write_payoffs(files.path, about, outcome.table, [member.uid for member in tournament.members])
    schedule = tournament.schedule
    samples = {
        " and ".join(schedule.uids[member] for member in members): [
            files.sample_path(schedule.game(group, index)) for index in range(SAMPLES_PER_GROUP)
        ]
        for group, members in enumerate(schedule.groups)
    }
    page = tournament_html(tournament.env.name, tournament.seed, outcome.table, outcome.rankings, samples)
    write_file(files.path / PAGE, page.encode())
