"""Tournaments of members that are named: runs, scripts, models behind an API; in a directory of their own."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sparring.commands.members import Member, base_of, environment_of, find_members
from sparring.commands.reference_adapters import own_hashes
from sparring.commands.serving import Serve, serving
from sparring.commands.tournament_page import tournament_html
from sparring.commands.venues import refuse_for_programs, venue_of_members
from sparring.config.play import GameSettings
from sparring.core import InputError
from sparring.core.env_id import absolute_id
from sparring.core.errors import check_installed, renaming
from sparring.core.sampling import drawn_text
from sparring.evaluation.match import Progress
from sparring.evaluation.reference import ReferencePool, reference_pools
from sparring.evaluation.schedule import GameSchedule
from sparring.evaluation.tournament import Tournament, TournamentResult
from sparring.evaluation.tournament_files import TournamentMember, TournamentSettings
from sparring.evaluation.venues import GameVenue, Venue
from sparring.population import meta_strategies
from sparring.run.checks import check_models_end_answers, check_nash_conv, checked_seats

GAMES, GAMES_BEFORE_BUDGET = 200, 20
"""Games of each pair or group, and the first ones where a budget says how many there are in total."""


def tournament(
    members: Sequence[str],
    env_id: str | None,
    out: Path,
    *,
    games: int | None = None,
    budget: int | None = None,
    players: int | None = None,
    template: str | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    nash_conv: bool = False,
    progress: Progress | None = None,
) -> TournamentResult:
    """Let all members play each other, rank them, and write the payoffs and a page into a directory.

    Games that the directory has already are not played again.

    Args:
        members: names of runs, checkpoints, adapters, scripted players, mixtures and models behind an API.
        env_id: the game; ``None`` for the program that the runs trained in. A program's roles are its seats.
        out: the directory, which may hold an unfinished tournament with the same settings.
        games: games of each pair or group; 200 by default. With a budget the first ones; 20 by default.
        budget: games in total, which go where the order is still open.
        players: number of seats of a game; by default two where that is possible.
        template: how positions of a game become prompts; by default as the runs trained.
        temperature: the models' sampling temperature in a game; a program's roles have their own.
        nash_conv: compute the NashConv of every model that is served here too.

    Raises:
        InputError: an argument is wrong, the directory cannot be used, or a model cannot be loaded.
        SparringError: no game could be finished, or the directory cannot be written.
    """
    check_installed("tournament", "populations", *meta_strategies.PACKAGES)
    venue: Venue
    if env_id is None:
        of_games = {"players": players, "template": template, "nash_conv": nash_conv}
        refuse_for_programs(of_games | {"temperature": temperature != 1})
        found = find_members(members, None)
        venue = venue_of_members(found, seed)
        seats = len(venue.seats)
    else:
        env_id = absolute_id(env_id, Path())
        seats = checked_seats(env_id, players, template)
        if seats < 2:
            fix = "A tournament needs a game for two or more players"
            raise InputError("env.id", f"{env_id} has 1 seat", fix)
        found = find_members(members, env_id)
        env = environment_of(found, env_id, template, seats)
        if nash_conv:
            _check_nash_conv(env, temperature, found)
        venue = GameVenue(env, temperature)
    games = games or (GAMES if budget is None else GAMES_BEFORE_BUDGET)
    schedule = GameSchedule([one.uid for one in found], games, budget, seed, seats)
    progress = progress or Progress()
    return hold(tournament_of(found, venue, schedule, progress, nash_conv=nash_conv), out, progress)


def _check_nash_conv(env: GameSettings, temperature: float, members: Sequence[Member]) -> None:
    if temperature != 1:
        raise InputError("nash_conv", "is that of a temperature of 1", "Leave the temperature out")
    for one in members:
        if drawn := drawn_text(one.calls.temperature, one.calls.sampling):
            problem = f"is that of a model's own distribution, and {one.uid} draws with {drawn}"
            raise InputError("nash_conv", problem, "Leave one of the two out")
    with renaming({"evaluation.nash_conv": "nash_conv"}):
        check_nash_conv(env.id)
    check_models_end_answers(env, "nash_conv", "Leave it out")


def tournament_of(
    members: Sequence[Member],
    venue: Venue,
    schedule: GameSchedule,
    progress: Progress,
    *,
    nash_conv: bool = False,
    serve: Serve | None = None,
) -> Tournament:
    """Return the tournament of members; ``serve`` serves their adapters in place of this process."""
    base = base_of(members)
    settings = TournamentSettings(
        venue.settings | ({"repeats": True} if schedule.repeats else {}),
        {"base_model": base.name, "dtype": base.dtype, "quantization": base.quantization},
        schedule.seed,
        [
            TournamentMember(
                one.uid,
                one.kind,
                one.weights(),
                one.max_tokens,
                drawn_text(one.calls.temperature, one.calls.sampling),
            )
            for one in members
        ],
        schedule.games,
        schedule.budget,
    )
    return Tournament(
        venue,
        schedule,
        {one.uid: one.agents(venue) for one in members},
        settings,
        partial(serving, members, schedule.seed, progress, serve, venue.frozen),
        {one.uid: one.models(venue) for one in members if nash_conv and one.kind == "model"},
        _pool(members, venue),
    )


def _pool(members: Sequence[Member], venue: Venue) -> ReferencePool | None:
    """Return the game's reference pool if all of it is among the members, as its adapters are here."""
    pool, uids = reference_pools().get(venue.name), {one.uid for one in members}
    return pool.with_adapters(own_hashes(pool)) if pool is not None and {*pool.members} <= uids else None


def hold(tournament: Tournament, out: Path, progress: Progress) -> TournamentResult:
    """Hold a tournament in a directory, and draw its page there."""

    def draw(result: TournamentResult) -> str:
        name, seed = tournament.venue.name, tournament.schedule.seed
        return tournament_html(name, seed, result.table, result.rankings, tournament.samples(out))

    return tournament.hold(out, progress, draw)
