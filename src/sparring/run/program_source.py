"""ProgramSource: records of an arena program's episodes, between ``begin_step`` and ``end_step``."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from sparring.collection.local_handle import LocalHandle
from sparring.collection.rollout_log import BatchLog, RolloutLog, write_rollouts
from sparring.config import Config
from sparring.config.league import FEWEST_COMPARED, LeagueSettings
from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeRequest,
    GenerateResult,
    GRPOCredit,
    InferenceClient,
    InputError,
    ReinforcePPBaselineCredit,
    RLOOCredit,
    SparringError,
    TrainingBatch,
    TrainingRecord,
)
from sparring.core.adapters import BASE
from sparring.core.credit.assigners import equal_group_share, mean_group_size
from sparring.core.current_episode import episode_counts
from sparring.core.errors import check_failures, shown
from sparring.core.garbage_collection import infrequent_garbage_collection
from sparring.core.own_code import called, list_of, own_code, returned, state_of
from sparring.core.play import trajectories_of_roles
from sparring.core.records import records_from_steps, rewarded_without_step
from sparring.core.text import counted
from sparring.core.types import seated
from sparring.evaluation.figures import figure_text, figures_of
from sparring.evaluation.results import MeasureResult, evaluation_path, write_evaluation
from sparring.population.standings import standings
from sparring.run import assembly
from sparring.run.best import SMALLEST
from sparring.run.learners import BatchOf, Learners, Saved, UpdateBatch, by_policy
from sparring.run.metrics import RunMetrics
from sparring.run.play_source import PlaySource
from sparring.run.program_payoffs import ProgramPayoffs
from sparring.run.program_seats import ProgramSeats
from sparring.run.programs import (
    NOTHING_TO_PLAY,
    drawn_by_role,
    failures_of_evaluation,
    measured,
    measured_agents,
    roles_of_policies,
    seats_of_program,
    trained_policies,
)
from sparring.run.progress import RunProgress
from sparring.run.progress_views import print_line
from sparring.run.rewards import build_buffer
from sparring.run.run_directory import RunDirectory
from sparring.run.serving import Serving

PlayedStep = tuple[int, list[GenerateResult], int]
"""A step of the arena: its number, its results, and how many episodes were started for it."""


class ProgramSource(PlaySource):
    """Plays a program. Each role trains the policy that it names.

    Members of the pool that meet in an episode are rated by TrueSkill from ``arena.outcomes``. The client
    takes up to ``max_calls`` requests at once.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        metrics: RunMetrics,
        arena: Arena,
        client: InferenceClient,
        serving: Serving,
        learners: Learners,
        max_calls: int,
    ) -> None:
        policies = trained_policies(config, arena)
        copied = policies if config.league is None else config.copied_policies
        self.service = assembly.build_pool(config, policies, roles=seats_of_program(arena))
        pool = LocalHandle(self.service)
        super().__init__(
            config, directory, metrics, serving, pool, policies, copied, client, max_calls, learners
        )
        self.pool = self.service.pool
        self.rollout_log = RolloutLog(directory.rollouts)
        self.arena = arena
        arena.client = client
        arena.set_concurrency(min(config.collection.concurrency, max_calls))
        self.payoffs = ProgramPayoffs(config, self.pool, arena)
        self.seats = ProgramSeats(config, self.pool, self.service.state.league, arena)
        arena.seat = self.seats.seat
        self.counts = dict.fromkeys(("started", "finished", "failed", "dropped", "retried"), 0)
        self.overlaps = config.collection.max_staleness > 0
        self._playing: asyncio.Task[PlayedStep] | None = None
        self._in_play: set[str] = set()
        self._pids = {role: pid for pid, role in enumerate(arena.roles)}
        batch_log = BatchLog(directory.batches) if config.buffer.log_batches else None
        self.buffer = build_buffer(config, metrics, batch_log) if config.uses_buffer else None
        self._evaluated: list[GenerateResult] = []
        self._state_before_step: dict[str, Any] = {}

    async def startup(self) -> None:
        """Start what answers, and call the arena's own ``startup``."""
        await super().startup()
        try:
            await called(self.arena.startup, "the program's startup")
        except BaseException:
            await self.serving.close()
            raise

    async def shutdown(self) -> None:
        """End play, close the files, and call the arena's own ``shutdown``."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)
        try:
            await called(self.arena.shutdown, "the program's shutdown")
        finally:
            await super().shutdown()

    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue from a state."""
        if state:
            with own_code("the program's load_state_dict failed"):
                self.arena.load_state_dict(state["arena"])
            self._load_pool(state)
            self.counts = dict(state["counts"])
            if self.buffer is not None:
                self.buffer.load_state_dict(state["buffer"])
            await self.serve_copies()
            self._delete_after(saved.step)
            return
        self._delete_after(0)
        await self.add_members()

    def _delete_after(self, step: int) -> None:
        self.directory.truncate_after(step)
        self.standings_log.continue_after(step)

    async def play(self, saved: Saved, progress: RunProgress) -> UpdateBatch:
        """Play one step of the arena; if play overlaps with learning, begin the next one."""
        self.arena.on_result = lambda result: self._ended(result, progress)
        if self._playing is None:
            await self._begin_step(progress)
        assert self._playing is not None
        began = perf_counter()
        try:
            number, results, started = await self._playing
        finally:
            self._playing = None
            self.serving.check()
        self.play_seconds = perf_counter() - began
        with own_code():
            batch = returned(self.arena.end_step(number, results), TrainingBatch, "the program's end_step")
            list_of(TrainingRecord, batch.records, "what the program's end_step returned as records")
        progress.played = len(results)
        self._log_rollouts(saved.step, results)
        self._count(batch, results, started)
        self._check(results)
        with own_code("the program's outcomes failed"):
            for result in results:
                self.seats.rate(result)
        figures = {k: v for k, v in batch.meta.items() if k.startswith(("reward/", "metric/", "broken_"))}
        self.metrics.log({f"program/{name}": float(value) for name, value in figures.items()})
        self._log_signal(results)
        records = by_policy(batch.records if self.buffer is None else self._drawn(saved, results))
        unknown = records.keys() - self.policies
        if unknown:
            raise SparringError(f"a step is by {min(unknown)}, which is not a policy of the program")
        if self.overlaps and saved.step + 1 < self.config.learning.steps:
            await self._begin_step(progress)
        turns = self.config.league is not None and self.config.league.at_once is not None
        return BatchOf(records, results, may_be_empty=turns)

    def _drawn(self, saved: Saved, results: list[GenerateResult]) -> list[TrainingRecord]:
        assert self.buffer is not None
        for trajectory in (one for result in results for one in trajectories_of_roles(result, self._pids)):
            self.buffer.add_player_trajectory(trajectory, trajectory.env_id)
        self.buffer.drop_stale(saved.step, self.config.collection.max_staleness, saved.versions)
        records = records_from_steps(self.buffer.draw(self.config.buffer.batch_size))
        self.metrics.log({f"accounts/steps {k}": float(v) for k, v in self.buffer.counts().items()})
        return records

    async def _begin_step(self, progress: RunProgress) -> None:
        await self._play_payoffs(progress)
        if self.overlaps:
            self._state_before_step = self._state_of_arena()
        with own_code():
            number, requests = await self.arena.begin_step()
        self._in_play = {uid for one in requests for uid in one.meta.get("uids", {}).values()}
        self._playing = asyncio.create_task(self._play_step(number, requests))

    async def _play_payoffs(self, progress: RunProgress) -> None:
        """Play the episodes between frozen members that the pool waits for."""
        waiting = len(self.pool.payoffs.waiting)
        if not waiting:
            return
        progress.say(f"{waiting} episodes between frozen opponents, for the payoff matrix")
        self.arena.on_result = None
        failed = await self.payoffs.play()
        self.arena.on_result = lambda result: self._ended(result, progress)
        self.serving.check()
        check_failures(failed, waiting, self.config.collection.max_failed_fraction, "episodes for payoffs")
        for name, count in (("finished", waiting - len(failed)), ("failed", len(failed))):
            self.counts[f"payoff_{name}"] = self.counts.get(f"payoff_{name}", 0) + count
        if line := self.payoffs.warning():
            print_line(progress.console, line)

    async def _play_step(self, number: int, requests: list[EpisodeRequest]) -> PlayedStep:
        counts = Counter[str]()
        episode_counts.set(counts)
        with own_code(), infrequent_garbage_collection():
            results = await self.arena.generate_rollouts(requests)
        return number, results, counts["started"]

    def _ended(self, result: GenerateResult, progress: RunProgress) -> None:
        if "step" in result.rollout.meta:
            progress.played_one()
        else:
            self._evaluated.append(result)
            progress.evaluation_game(len(self._evaluated), None)

    def _log_signal(self, results: list[GenerateResult]) -> None:
        """Log how much of the reward signal gives no gradient: equal groups, and roles without steps."""
        credit = None if self.arena.critics or self.buffer is not None else self.arena.credit_assigner
        if isinstance(credit, GRPOCredit | RLOOCredit | ReinforcePPBaselineCredit):
            share, size = (one(results, credit.group) for one in (equal_group_share, mean_group_size))
            if share is not None and size is not None:
                self.metrics.log({"program/equal_group_share": share, "program/group_size": size})
        rewarded = rewarded_without_step(results)
        self.metrics.log({f"program/rewarded_without_step/{role}": float(n) for role, n in rewarded.items()})

    def _count(self, batch: TrainingBatch, results: list[GenerateResult], started: int) -> None:
        """Add a step to the accounts. Sub-episodes of failed attempts were started, but are not kept."""
        kept, failed = batch.meta["episodes"], batch.meta["failed"]
        self.counts["started"] += started
        self.counts["finished"] += kept - failed
        self.counts["failed"] += failed
        self.counts["dropped"] += started - kept
        self.counts["retried"] += batch.meta["retried"]
        for rollout in (rollout for result in results for rollout in result.all_rollouts()):
            if rollout.error is not None:
                name = f"failed {rollout.error_type}"
                self.counts[name] = self.counts.get(name, 0) + 1

    def _check(self, results: list[GenerateResult]) -> None:
        if not results:
            raise SparringError(NOTHING_TO_PLAY)
        rollouts = [rollout for result in results for rollout in result.all_rollouts()]
        failed = [rollout.error for rollout in rollouts if rollout.error is not None]
        check_failures(failed, len(rollouts), self.config.collection.max_failed_fraction, "episodes")

    def _log_rollouts(self, step: int, results: list[GenerateResult]) -> None:
        """Log all failures, and some results spread over the step, since neighbours may be one group."""
        limit = self.config.tracking.games_logged
        apart = max(1, len(results) // max(limit, 1))
        shown = [rollout for result in results[::apart][:limit] for rollout in result.all_rollouts()]
        ids = {rollout.id for rollout in shown}
        everything = [rollout for result in results for rollout in result.all_rollouts()]
        failed = [one for one in everything if one.error is not None and one.id not in ids]
        self.directory.check_epoch()
        self.rollout_log.write(step + 1, shown + failed)

    async def publish(self, saved: Saved) -> None:
        """Play with these weights, freeze copies of them if that is due, and log who beats whom."""
        await self.serving.publish(saved)
        self.directory.check_epoch()
        copied = await self.add_copies(saved.step)
        await self.league_turn(saved, self.state)
        if copied or self.config.league is not None:
            await self.serve_copies(sorted(self._in_play))
        self.log_standings(saved.step, standings(self.pool))

    async def log(self, play_seconds: float) -> None:
        """Log the engines' statistics, the counts of episodes, the ratings of several policies, and the
        figures of a league."""
        await self.log_serving(play_seconds)
        self.metrics.log({f"accounts/{name}": float(count) for name, count in self.counts.items()})
        self.log_league()
        members = self.pool.opponents()
        if len(members) > 1:
            figures = self.pool.figures()
            for one in members:
                named = {**figures[one.uid], "games": float(one.games)}
                self.metrics.log({f"model-pool/{one.uid}/{name}": value for name, value in named.items()})

    async def evaluate(self, step: int, *, full: bool, progress: RunProgress) -> dict[str, str]:
        """Measure with the arena's own ``evaluate``, played by the adapters that training produces."""
        seen = self._evaluated = list[GenerateResult]()
        self.arena.on_result = lambda result: self._ended(result, progress)
        await self.serving.publish_results()
        agents = self._results()
        try:
            measures = await self._measured(agents)
        except SparringError:
            self._report_failures(seen, progress)
            raise
        self._report_failures(seen, progress)
        self.directory.check_epoch()
        if not step:
            self._check_compared(measures, progress)
        summary = {}
        for name, result in measures.items():
            write_evaluation(self.directory.evaluation, step, name, result)
            summary[name] = next(map(figure_text, figures_of(result)), "-")
        self._keep_evaluated(step, seen)
        self.serving.reset()
        return summary

    def _check_compared(self, measures: Mapping[str, MeasureResult], progress: RunProgress) -> None:
        """Raise an InputError unless the program measures what evolution compares players by.

        A measure of too few items is a warning.
        """
        league = self.config.league
        wanted = {} if league is None or league.evolution is None else league.evolution.measures
        for role, name in wanted.items():
            measure = name.removeprefix(SMALLEST)
            if measure not in measures:
                problem = f"the program does not measure {shown(name)}"
                known = f"Name one of: {', '.join(measures)}; one without a value yet must be an empty list"
                raise InputError(f"league.evolution.measures.{role}", problem, known)
            items = len(measures[measure].values)
            if items < FEWEST_COMPARED:
                least = f"players are compared by {FEWEST_COMPARED} or more, so nobody is replaced"
                progress.warn_of(0, f"{measure} has {counted(items, 'item')}; {least}")

    async def _measured(self, agents: dict[str, AgentSpec]) -> dict[str, MeasureResult]:
        playing = seated.set(agents)
        try:
            measures = await called(self.arena.evaluate, "the program's evaluate")
        finally:
            seated.reset(playing)
            self.serving.check()
        return measured(measures, drawn_by_role(self.arena, agents))

    async def rewards(self, player: str, league: LeagueSettings) -> dict[str, float]:
        """Measure the program with the player in its roles, and the base model in the others.

        An item is named by its place and the number of items: where some are missing, nobody knows which.
        """
        assert league.evolution is not None
        held, names = roles_of_policies(self.config, self.arena)[player], league.evolution.measures
        wanted = next((names[role] for role in held if role in names), None)
        if wanted is None:
            return {}
        model = self.serving.results[player]
        models = {role: model if role in held else BASE for role in self.seats.policy_of}
        self.arena.on_result = lambda result: None
        measures = await self._measured(measured_agents(self.arena, self.config, models))
        result = measures.get(wanted.removeprefix(SMALLEST))
        sign = -1 if wanted.startswith(SMALLEST) else 1
        values = [] if result is None else result.values
        return {f"{item} of {len(values)}": sign * one for item, one in enumerate(values)}

    def _keep_evaluated(self, step: int, results: list[GenerateResult]) -> None:
        """Write the first episodes of an evaluation, ordered by seed because they end in any order."""
        in_order = sorted(results, key=lambda result: str(result.rollout.meta.get("seed")))
        kept = in_order[: self.config.tracking.games_logged]
        rollouts = [rollout for result in kept for rollout in result.all_rollouts()]
        if rollouts:
            path = evaluation_path(self.directory.evaluation, step, "conversations", ".jsonl")
            write_rollouts(path, step, rollouts)

    def _results(self) -> dict[str, AgentSpec]:
        results = {role: self.serving.results[policy] for role, policy in self.seats.policy_of.items()}
        return measured_agents(self.arena, self.config, results)

    def _report_failures(self, seen: list[GenerateResult], progress: RunProgress) -> None:
        if line := failures_of_evaluation(seen, self.config.collection.max_failed_fraction):
            print_line(progress.console, line)

    async def accounts(self) -> dict[str, int]:
        """Return the counts of episodes, sub-episodes included."""
        return self.counts

    async def state(self) -> dict[str, Any]:
        """Return the arena's state, the pool and the counts.

        While a step is in progress, the arena's state is that before the step, from which it is played again.
        """
        arena = self._state_of_arena() if self._playing is None else self._state_before_step
        games = self.service.state.whole_state()
        state = {"arena": arena, "pool": games.pop("pool"), "games": games, "counts": dict(self.counts)}
        return state if self.buffer is None else state | {"buffer": self.buffer.state_dict()}

    def _load_pool(self, state: dict[str, Any]) -> None:
        """Continue from the pool of a state, and from its league, which those of earlier versions lack."""
        pool = self.service.state
        pool.load_state_dict(pool.whole_state() | state.get("games", {}) | {"pool": state["pool"]})

    def _state_of_arena(self) -> dict[str, Any]:
        with own_code("the program's state_dict failed"):
            return state_of(self.arena, "the program's state_dict")
