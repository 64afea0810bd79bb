"""Tournaments: everybody against everybody, one log of games, and what is read off the payoffs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.core import InferenceClient, InputError, PlaySpec, SparringError
from sparring.envs.game_episode import GameEpisode
from sparring.evaluation.match import Agent, Models, Play, Progress, SeatedGame, drawn, play_games
from sparring.evaluation.nash_conv import LONG_LIMIT, TooSlow, nash_conv
from sparring.evaluation.schedule import MAX_GAMES, GameSchedule, ScheduledGame
from sparring.evaluation.tournament_files import GAMES, PlayedGame, TournamentFiles
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
    """What is played, and by whom: ``agents`` answer for each member in each seat."""

    name: str
    schedule: GameSchedule
    agents: Mapping[str, Sequence[Agent]]

    def is_complete(self, files: TournamentFiles) -> bool:
        """Return whether every game of the schedule is finished, so that no model is needed."""
        table = PayoffTable()
        for batch in self.schedule.batches(table):
            if any(game.number not in files.played for game in batch):
                return False
            _add(batch, files, table)
        return True

    async def play(self, play: Play, files: TournamentFiles, progress: Progress) -> TournamentResult:
        """Play the games that are not in ``files`` yet, at the same time, and rank the members.

        Raises:
            InputError: a game in ``files`` is none of this tournament.
            SparringError: no game could be finished.
            OSError: a file cannot be written.
        """
        table, failures = PayoffTable(), Counter[str]()
        done, total = 0, self.schedule.total
        with progress.doing(f"playing {self.name}", "games", total) as count:
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

                specs = [(f"game-{game.number:010d}", self._spec(game)) for game in waiting]
                await play_games(play, specs, record)
                _add(batch, files, table)
        _add(self._beyond(files, table), files, table)
        if not any(payoff.games for _, payoff in table.items()):
            reason = next(iter(failures), "there was none")
            raise SparringError(f"no game of the tournament could be finished: {reason}")
        with progress.doing("ranking the members"):
            rankings = rank(table, self.schedule.uids, _in_order(files, table))
        return TournamentResult(table, rankings, dict(failures))

    def _spec(self, game: ScheduledGame) -> PlaySpec:
        seats = tuple(drawn(self.agents[uid][seat], game.seed, seat) for seat, uid in enumerate(game.seating))
        return PlaySpec(self.name, len(seats), seats, game.seed)

    def _record(self, game: ScheduledGame, played: SeatedGame, files: TournamentFiles) -> None:
        if game.index < SAMPLES_PER_GROUP:
            files.add_sample(game, played.rollout)
        files.add(PlayedGame.of(game.number, game.seating, played.rewards, played.invalid_seat))

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


async def measure_members(
    client: InferenceClient,
    episode: GameEpisode,
    models: Mapping[str, Models],
    files: TournamentFiles,
    progress: Progress,
) -> None:
    """Compute the NashConv of the members that have none in ``files`` yet, and add it there.

    Where that would take too long, it is left out, and ``progress`` is told so.
    """
    env_id, template = episode.env_id, episode.template
    for uid, model in models.items():
        if uid in files.nash_convs:
            continue
        try:
            found = await nash_conv(
                client, env_id, template, model=model, timeout=LONG_LIMIT, progress=progress
            )
        except TooSlow as error:
            progress.say(f"note: NashConv of {uid} is left out: {error.problem}")
        else:
            files.add_nash_conv(uid, found.nash_conv)


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
