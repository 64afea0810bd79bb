"""Tournaments of members that are named: runs, scripts, models behind an API; in a directory of their own."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from sparring.commands.members import Member, base_of, environment_of, find_members
from sparring.commands.serving import Serve, serving
from sparring.commands.tournament_page import tournament_html
from sparring.commands.venues import GameVenue, ProgramVenue, Venue, refuse_for_programs
from sparring.config.play import GameSettings
from sparring.core import InputError, SparringError
from sparring.core.errors import check_installed
from sparring.core.files import write_file
from sparring.core.own_code import absolute
from sparring.envs.game_episode import build_episode
from sparring.evaluation.match import Progress
from sparring.evaluation.schedule import GameSchedule
from sparring.evaluation.tournament import (
    SAMPLES_PER_GROUP,
    Tournament,
    TournamentResult,
    measure_members,
)
from sparring.evaluation.tournament_files import (
    PAGE,
    TournamentFiles,
    TournamentMember,
    TournamentSettings,
    write_payoffs,
)
from sparring.population import meta_strategies
from sparring.run.checks import check_models_end_answers, check_nash_conv, checked_seats, renaming

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
        venue = ProgramVenue.of(found, seed)
        seats = len(venue.roles)
    else:
        env_id = absolute(env_id, Path())
        seats = checked_seats(env_id, players, template)
        if seats < 2:
            fix = "A tournament needs a game for two or more players"
            raise InputError("env.id", f"{env_id} has 1 seat", fix)
        found = find_members(members, env_id)
        env = environment_of(found, env_id, template, seats)
        if nash_conv:
            _check_nash_conv(env, temperature)
        venue = GameVenue(env, temperature)
    games = games or (GAMES if budget is None else GAMES_BEFORE_BUDGET)
    schedule = GameSchedule([one.uid for one in found], games, budget, seed, seats)
    return HeldTournament(found, venue, schedule, nash_conv).hold(out, progress or Progress())


def _check_nash_conv(env: GameSettings, temperature: float) -> None:
    if temperature != 1:
        raise InputError("nash_conv", "is that of a temperature of 1", "Leave the temperature out")
    with renaming({"evaluation.nash_conv": "nash_conv"}):
        check_nash_conv(env.id)
    check_models_end_answers(env, "nash_conv", "Leave it out")


@dataclass(frozen=True)
class HeldTournament:
    """A tournament of members, maybe with the NashConv of every model that is served here.

    ``serve`` serves the members' adapters; without it, this process does.
    """

    members: Sequence[Member]
    venue: Venue
    schedule: GameSchedule
    nash_conv: bool = False
    serve: Serve | None = None

    def hold(self, out: Path, progress: Progress) -> TournamentResult:
        """Play the games that ``out`` does not have, and write every file there."""
        agents = {one.uid: self.venue.agents(one) for one in self.members}
        played = Tournament(self.venue.name, self.schedule, agents)
        files = TournamentFiles.open(out, self._settings())
        try:
            with closing(files):
                if isinstance(self.venue, GameVenue):
                    files.check_rewards(self.venue.env.id)
                if files.played:
                    progress.say(f"{out} has {len(files.played)} finished games, which are not played again")
                result = asyncio.run(self._play(played, files, progress))
                self._write(files, result)
        except OSError as error:
            problem = f"{out} cannot be written ({error}): free the disk or fix its permissions"
            raise SparringError(f"{problem}, and give this command again") from error
        return result

    async def _play(
        self, tournament: Tournament, files: TournamentFiles, progress: Progress
    ) -> TournamentResult:
        venue = self.venue
        models = {
            one.uid: one.models(venue.env)
            for one in self.members
            if self.nash_conv and isinstance(venue, GameVenue) and one.kind == "model"
        }
        is_done = tournament.is_complete(files) and files.nash_convs.keys() >= models.keys()
        answering = () if is_done else self.members
        async with (
            serving(answering, self.schedule.seed, progress, self.serve, venue.frozen) as client,
            venue.playing(client) as play,
        ):
            result = await tournament.play(play, files, progress)
            if models and isinstance(venue, GameVenue):
                await measure_members(client, build_episode(venue.env), models, files, progress)
        known = files.nash_convs if self.nash_conv else {}
        members = [replace(one, nash_conv=known.get(one.uid)) for one in result.rankings.members]
        return replace(result, rankings=replace(result.rankings, members=members))

    def _settings(self) -> TournamentSettings:
        base, schedule = base_of(self.members), self.schedule
        members = [TournamentMember(one.uid, one.kind, one.weights(), one.max_tokens) for one in self.members]
        of_base = {"base_model": base.name, "dtype": base.dtype, "quantization": base.quantization}
        return TournamentSettings(
            self.venue.settings, of_base, schedule.seed, members, schedule.games, schedule.budget
        )

    def _write(self, files: TournamentFiles, result: TournamentResult) -> None:
        """Write the payoffs and the page."""
        name, schedule = self.venue.name, self.schedule
        about = {"env_id": name, "rankings": result.rankings.to_dict(), "failures": result.failures}
        write_payoffs(files.path, about, result.table, schedule.uids)
        samples = {
            " and ".join(schedule.uids[member] for member in members): [
                files.sample_path(schedule.game(group, index)) for index in range(SAMPLES_PER_GROUP)
            ]
            for group, members in enumerate(schedule.groups)
            if isinstance(self.venue, GameVenue)
        }
        page = tournament_html(name, schedule.seed, result.table, result.rankings, samples)
        write_file(files.path / PAGE, page.encode())
