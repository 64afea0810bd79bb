"""Tournaments: everybody against everybody, one log of games, and what is read off the payoffs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparring.core import InferenceClient, InputError, PlaySpec, SparringError
from sparring.core.files import unwritable, write_file
from sparring.envs.templates import get_template
from sparring.evaluation.match import Agent, Models, Play, Progress, SeatedGame, drawn, play_games
from sparring.evaluation.nash_conv import LONG_LIMIT, TooSlow, nash_conv
from sparring.evaluation.reference import ReferencePool
from sparring.evaluation.schedule import MAX_GAMES, GameSchedule, ScheduledGame
from sparring.evaluation.tournament_files import (
    GAMES,
    PAGE,
    PlayedGame,
    TournamentFiles,
    TournamentSettings,
    sample_path,
    write_payoffs,
)
from sparring.evaluation.venues import GameVenue, Venue
from sparring.population import PayoffTable
from sparring.population.rankings import Rankings, rank

SAMPLES_PER_GROUP = 2
"""Games of a group that are kept to read: the first deal in two orders of seats, of a pair in both."""


@dataclass(frozen=True)
class TournamentResult:
    """A played tournament: the payoffs, what is read off them, and the reasons of games that failed."""

    table: PayoffTable
    rankings: Rankings
    failures: dict[str, int]


@dataclass(frozen=True)
class Tournament:
    """What is played, and by whom.

    Attributes:
        agents: who answers for each member in each seat.
        settings: by what a directory knows the tournament again.
        serve: answers for every member while its body runs, and keeps what it paid for in a directory,
            if there is one; called only if something is left to play or to measure.
        exact: the models of each member whose NashConv is measured too.
        reference: the pool to which ratings are anchored, whose members all take part.
    """

    venue: Venue
    schedule: GameSchedule
    agents: Mapping[str, Sequence[Agent]]
    settings: TournamentSettings
    serve: Callable[[Path | None], AbstractAsyncContextManager[InferenceClient]]
    exact: Mapping[str, Models] = field(default_factory=dict)
    reference: ReferencePool | None = None

    def hold(
        self, out: Path, progress: Progress, draw: Callable[[TournamentResult], str] | None = None
    ) -> TournamentResult:
        """Play the games that the directory ``out`` does not have, rank the members, and write the payoffs.

        ``draw`` draws the page, which is written too.

        Raises:
            InputError: the directory cannot be used, or has a game that is none of this tournament.
            SparringError: no game could be finished, or the directory cannot be written.
        """
        try:
            with closing(TournamentFiles.open(out, self.settings)) as files:
                if isinstance(self.venue, GameVenue):
                    files.check_rewards(self.venue.env.id)
                if files.played:
                    progress.say(f"{out} has {len(files.played)} finished games, which are not played again")
                result = asyncio.run(self._held(files, progress))
                rankings = result.rankings.to_dict()
                about = {"env_id": self.venue.name, "rankings": rankings, "failures": result.failures}
                write_payoffs(out, about, result.table, self.schedule.uids)
                if draw is not None:
                    write_file(out / PAGE, draw(result).encode())
        except OSError as error:
            raise unwritable(out, error) from error
        return result

    async def _held(self, files: TournamentFiles, progress: Progress) -> TournamentResult:
        unmeasured = {uid: models for uid, models in self.exact.items() if uid not in files.nash_convs}
        table, failures = PayoffTable(), Counter[str]()
        if self._is_complete(files) and not unmeasured:
            await self._play(None, table, failures, files, progress)
        else:
            async with self.serve(files.path) as client, self.venue.playing(client) as play:
                await self._play(play, table, failures, files, progress)
                await self._measure(client, unmeasured, files, progress)
        _add(self._beyond(files, table), files, table)
        if not any(payoff.games for _, payoff in table.items()):
            reason = next(iter(failures), "there was none")
            raise SparringError(f"no game of the tournament could be finished: {reason}")
        with progress.doing("ranking the members"):
            rankings = rank(table, self.schedule.uids, _in_order(files, table), self.venue.seats)
        known = files.nash_convs if self.exact else {}
        rankings = replace(
            rankings, members=[replace(one, nash_conv=known.get(one.uid)) for one in rankings.members]
        )
        if self.reference is not None:
            rankings = self._anchored(self.reference, rankings, files)
        return TournamentResult(table, rankings, dict(failures))

    def _anchored(self, pool: ReferencePool, rankings: Rankings, files: TournamentFiles) -> Rankings:
        """Return the rankings with the rating of each member by its games against the pool: the first ones,
        because where a budget goes depends on further members."""
        played = [
            (game, one.rewards)
            for number, one in sorted(files.played.items())
            if (game := self.schedule.numbered(number)) is not None and game.index < self.schedule.games
        ]
        members = [replace(one, anchored=pool.rate(one.uid, played)) for one in rankings.members]
        return replace(rankings, members=members, reference_pool=pool.version)

    def _is_complete(self, files: TournamentFiles) -> bool:
        """Return whether every game of the schedule is finished."""
        table = PayoffTable()
        for batch in self.schedule.batches(table):
            if any(game.number not in files.played for game in batch):
                return False
            _add(batch, files, table)
        return True

    async def _play(
        self,
        play: Play | None,
        table: PayoffTable,
        failures: Counter[str],
        files: TournamentFiles,
        progress: Progress,
    ) -> None:
        """Add all games to the table; play those that are not in ``files`` yet, at the same time."""
        done, total = 0, self.schedule.total
        with progress.doing(f"playing {self.venue.name}", "games", total) as count:
            for batch in self.schedule.batches(table):
                waiting = [game for game in batch if game.number not in files.played]
                done += len(batch) - len(waiting)
                count(done, total)

                def record(
                    index: int, played: SeatedGame | str, games: list[ScheduledGame] = waiting
                ) -> None:
                    nonlocal done
                    if isinstance(played, str):
                        failures[played] += 1
                    else:
                        self._record(games[index], played, files)
                    done += 1
                    count(done, total)

                if play is not None:
                    specs = [(f"game-{game.number:010d}", self.spec(game)) for game in waiting]
                    await play_games(play, specs, record)
                _add(batch, files, table)

    async def _measure(
        self,
        client: InferenceClient,
        models: Mapping[str, Models],
        files: TournamentFiles,
        progress: Progress,
    ) -> None:
        """Add NashConv of these members to ``files``, except where that would take too long."""
        for uid, model in models.items():
            assert isinstance(self.venue, GameVenue), "programs have no exact measure"
            env, prompts = self.venue.env, get_template(self.venue.env.template)
            try:
                found = await nash_conv(
                    client, env.id, prompts, model=model, timeout=LONG_LIMIT, progress=progress
                )
            except TooSlow as error:
                progress.say(f"note: NashConv of {uid} is left out: {error.problem}")
            else:
                files.add_nash_conv(uid, found.nash_conv)

    def samples(self, out: Path) -> dict[str, list[Path]]:
        """Return the files of a game's games to read, by the members of their group."""
        if not isinstance(self.venue, GameVenue):
            return {}
        schedule = self.schedule
        return {
            " and ".join(schedule.uids[member] for member in members): [
                sample_path(out, schedule.game(group, index)) for index in range(SAMPLES_PER_GROUP)
            ]
            for group, members in enumerate(schedule.groups)
        }

    def spec(self, game: ScheduledGame) -> PlaySpec:
        """Return a game with who plays it."""
        seats = tuple(drawn(self.agents[uid][seat], game.seed, seat) for seat, uid in enumerate(game.seating))
        return PlaySpec(self.venue.name, len(seats), seats, game.seed)

    def _record(self, game: ScheduledGame, played: SeatedGame, files: TournamentFiles) -> None:
        if game.index < SAMPLES_PER_GROUP:
            files.add_sample(game, played.rollout)
        files.add(PlayedGame(game.number, [*game.seating], played.rewards, played.invalid_seat))

    def _beyond(self, files: TournamentFiles, table: PayoffTable) -> list[ScheduledGame]:
        """Return the finished games that the schedule leaves out now: it was larger once."""
        games = []
        for number in sorted(number for number in files.played if number not in table):
            game = self.schedule.numbered(number)
            if game is None:
                problem = f"game {number} is none of this tournament"
                raise InputError(str(files.path / GAMES), problem, "Delete its line")
            games.append(game)
        return games


def _add(batch: Sequence[ScheduledGame], files: TournamentFiles, table: PayoffTable) -> None:
    """Add a batch to the table; what is not finished has failed."""
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


def _in_order(files: TournamentFiles, table: PayoffTable) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return the games of the table, all pairs in turns, as TrueSkill rates them."""
    numbers = [number for number in files.played if number in table]
    numbers.sort(key=lambda number: (number % MAX_GAMES, number // MAX_GAMES))
    games = [files.played[number] for number in numbers]
    return [(tuple(game.players), game.rewards) for game in games]
