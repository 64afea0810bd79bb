"""What games and programs share: members of the pool that are not trained, and the log of who beats whom."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from sparring.collection.pool import Copies
from sparring.collection.pool_state import LeagueTurn
from sparring.collection.serialization import UNREADABLE
from sparring.collection.sinks import JsonlSink
from sparring.config import Config
from sparring.config.league import LeagueSettings
from sparring.config.questions import TaskSettings
from sparring.core import InferenceClient, derive_seed
from sparring.core.confidence_intervals import Interval
from sparring.core.files import remove_directory
from sparring.population.evolution import Selection, select
from sparring.population.pool_members import checkpoint_uid
from sparring.population.standings import Standing, Standings, StandingsLine
from sparring.run.assembly import evaluated_uid, fixed_members
from sparring.run.learners import Learners, Saved, State
from sparring.run.metrics import RunMetrics
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import Serving
from sparring.run.task_evaluations import TaskEvaluations

SCORE_DIGITS, RATING_DIGITS = 4, 1
_Figures = tuple[float, float, float, int]


class StandingsLog:
    """Appends a :class:`StandingsLine` after each update, with the pairs that changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: JsonlSink | None = None
        self._step = -1
        self._known: dict[tuple[str, str], _Figures] = {}

    def continue_after(self, step: int) -> None:
        """Open the file and delete the lines of later updates; damaged lines before them stay."""
        self._lines = JsonlSink(self.path)
        end, self._step, self._known = 0, -1, {}
        for line, after in _lines_of(self.path):
            if line is not None and line.step <= step:
                end, self._step = after, line.step
                self._known |= {
                    (uid, other): (low, mid, high, games) for uid, other, low, mid, high, games in line.pairs
                }
        self._lines.truncate(end)

    def write(self, step: int, found: Standings) -> None:
        """Write the line of an update that has none yet, once members have met: the standings after it."""
        assert self._lines is not None, "continue_after comes first"
        if step <= self._step or not (found.pairs or self._known):
            return
        pairs = {pair: _figures(one) for pair, one in found.pairs.items()}
        members = {*found.policies, *found.frozen}
        gone = {
            pair: (0.0, 0.0, 0.0, 0)
            for pair, figures in self._known.items()
            if pair not in pairs and members.issuperset(pair) and figures[-1]
        }
        new = {pair: one for pair, one in (pairs | gone).items() if self._known.get(pair) != one}
        line = StandingsLine(
            step,
            list(found.policies),
            list(found.frozen),
            [(*pair, *figures) for pair, figures in new.items()],
            {uid: _rounded(one, RATING_DIGITS) for uid, one in found.ratings.items()},
            [list(cycle) for cycle in found.cycles],
        )
        self._lines.write(msgspec.to_builtins(line))
        self._step = step
        self._known |= new

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()


def _lines_of(path: Path) -> Iterator[tuple[StandingsLine | None, int]]:
    """Yield every line, ``None`` for a damaged one, and the offset after it."""
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            yield msgspec.json.decode(line, type=StandingsLine), end
        except UNREADABLE:
            yield None, end


def _figures(one: Standing) -> _Figures:
    return *_rounded(one.score, SCORE_DIGITS), one.games


def _rounded(interval: Interval, digits: int) -> tuple[float, float, float]:
    low, mid, high = interval
    return round(low, digits), round(mid, digits), round(high, digits)


class PlaySource(ABC):
    """What plays for a run, games or a program, and the members of its pool that are not trained.

    It keeps a copy of every policy version that the pool may draw, and serves the active ones; repeated calls
    change nothing. ``pool`` is a handle of the pool of the trained ``policies``, of which the ``copied`` ones
    are frozen at regular intervals. The ``client``, which takes up to ``max_calls`` requests at once, answers
    the questions of tasks. Of the ``learners``, a league lets some begin again.
    ``play_seconds`` are those of the last update.
    """

    overlaps = False
    """Whether play goes on while the learners learn."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        metrics: RunMetrics,
        serving: Serving,
        pool: Any,
        policies: Sequence[str],
        copied: Sequence[str],
        client: InferenceClient,
        max_calls: int,
        learners: Learners,
    ) -> None:
        self.config = config
        self.directory = directory
        self.metrics = metrics
        self.serving = serving
        self.members = pool
        self.policies = policies
        self.copied = copied
        self.learners = learners
        self.standings_log = StandingsLog(directory.standings_file)
        self.tasks = TaskEvaluations(config, client, max_calls, serving.results, directory)
        self.play_seconds = 0.0
        self._serving_logged = False
        self._league_figures: dict[str, float] = {}

    async def startup(self) -> None:
        """Start what answers; called once before the run starts or resumes."""
        await self.serving.start()

    async def shutdown(self) -> None:
        """Close the files, and send no more calls; called once when the run ends, however it ends."""
        try:
            self.standings_log.close()
        finally:
            await self.serving.close()

    async def rest(self) -> None:
        """Leave the machine to the learners, until weights are published again."""
        await self.serving.rest()

    async def ask(self, step: int, tasks: Sequence[TaskSettings], progress: RunProgress) -> dict[str, str]:
        """Ask what training has produced by update ``step`` these tasks; return the accuracies by name."""
        await self.serving.publish_results()
        try:
            return await self.tasks.run(step, tasks, progress)
        finally:
            self.serving.check()
            self.serving.reset()

    async def kept(self, oldest_step: int) -> None:
        """After a checkpoint, delete the copies that retired by ``oldest_step``, and cached contexts.

        A run can be resumed from no step before that one.
        """
        for uid in await self.members.retired_by.remote(oldest_step):
            path = self.directory.population / uid
            if path.exists():
                remove_directory(path)
        await self.serving.forget()

    async def add_members(self) -> None:
        """Fill the pool of a new run: with what its policies start from, if the sample mode draws copies."""
        for policy in self.policies if self.config.envs else ():
            await self.members.add_policy.remote(evaluated_uid(self.config, policy))
        for one in fixed_members(self.config):
            await self.members.add_fixed.remote(
                one.name, kind=one.kind, active=one.active, policy=one.policy, path=one.path
            )
        if self.config.keeps_copies:
            for policy in self.copied:
                starts = policy in self.config.start
                path = await self.serving.freeze(checkpoint_uid(0, policy), policy) if starts else None
                await self.members.add_checkpoint.remote(path, 0, policy)
            await self.serve_copies()

    async def missing_copies(self, step: int) -> list[str]:
        """Return the policies of which a copy is due after update ``step``, and is not in the pool yet."""
        if not self.config.keeps_copies or not step or step % self.config.population.add_every:
            return []
        known = await self.members.copies_of.remote(step)
        return [policy for policy in self.copied if policy not in known]

    async def add_copies(self, step: int) -> bool:
        """Add a copy of each policy to the pool, if that is due; return whether any was added."""
        missing = await self.missing_copies(step)
        for policy in missing:
            path = await self.serving.freeze(checkpoint_uid(step, policy), policy)
            await self.members.add_checkpoint.remote(path, step, policy)
        return bool(missing)

    async def serve_copies(self, in_play: Sequence[str] = ()) -> None:
        """Serve exactly those copies that are active or in play."""
        copies: Copies = await self.members.copies.remote(in_play)
        self.serving.serve_copies(copies.served, copies.kept)

    async def league_turn(self, saved: Saved, state: State) -> Saved:
        """Freeze the players of a league that are due after an update, after which some begin again.

        The pool writes down what is done in one step, and the learners save who begins again, with this
        ``state``. Only then are the update's weights announced, so whoever is killed, the same is done.
        """
        if self.config.league is None or not saved.step:
            return saved
        due: list[str] = await self.members.players_due.remote(saved.step)
        paths = {
            player: await self.serving.freeze(checkpoint_uid(saved.step, player), player) for player in due
        }
        rivals: list[list[str]] = await self.members.rivals.remote(saved.step, due)
        selection = await self._select(saved, self.config.league, rivals)
        turn: LeagueTurn = await self.members.freeze_players.remote(saved.step, paths, selection)
        self._league_figures = turn.figures
        if turn.again or turn.children:
            await self.serve_copies()
            saved = await self.learners.start_again(turn.again, state, turn.children)
            await self.serving.publish(saved)
        return saved

    async def _select(self, saved: Saved, league: LeagueSettings, rivals: list[list[str]]) -> Selection:
        """Compare players, and return which are replaced.

        Those that have learned nothing since they began are left out: they were replaced, and a version of a
        policy has one adapter.
        """
        groups = [[player for player in group if saved.ages[player]] for group in rivals]
        groups = [group for group in groups if len(group) > 1]
        if league.evolution is None or not groups:
            return Selection()
        started = perf_counter()
        await self.serving.log(self.metrics, self.play_seconds)
        self._serving_logged = True
        await self.serving.publish_results()
        rewards = [{player: await self.rewards(player, league) for player in group} for group in groups]
        rewards = [of_group for of_group in rewards if all(of_group.values())]
        self.serving.check()
        self.serving.reset()
        self.metrics.add({"time/evaluation_seconds": perf_counter() - started})
        return select(rewards, league.evolution, derive_seed(self.config.seed, "evolution", saved.step))

    @abstractmethod
    async def rewards(self, player: str, league: LeagueSettings) -> dict[str, float]:
        """Measure what the training of a player has produced by something that stays the same.

        Returns what it earned by game or item, which are the same for all players and at every update; failed
        ones are missing, and all if its role is not measured.
        """

    async def log_serving(self, play_seconds: float) -> None:
        """Log the engines' statistics of an update's play, unless this was done before a comparison."""
        if not self._serving_logged:
            await self.serving.log(self.metrics, play_seconds)
        self._serving_logged = False

    def log_league(self) -> None:
        """Log the figures of a league after its last turn."""
        self.metrics.log({f"league/{name}": value for name, value in self._league_figures.items()})

    def log_standings(self, step: int, found: Standings) -> None:
        """Write who beats whom after an update."""
        if step:
            self.directory.check_epoch()
            self.standings_log.write(step, found)
