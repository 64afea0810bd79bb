"""LocalGames: the games of a run in one process, which plays them whenever a batch is wanted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from sparring.collection.buffer import BufferService
from sparring.collection.buffer_state import Demand, Ready
from sparring.collection.collector import Collector, arena_of_games
from sparring.collection.local_handle import LocalHandle
from sparring.collection.results import Played
from sparring.collection.rollout_log import BatchLog
from sparring.collection.tracker import Tracker
from sparring.config import Config
from sparring.core import InferenceClient, SparringError
from sparring.run import assembly
from sparring.run.game_source import GameHost
from sparring.run.learners import Saved
from sparring.run.progress import RunProgress
from sparring.run.rewards import build_buffer
from sparring.run.run_directory import RunDirectory


class LocalGames(GameHost):
    """Plays games in this process. Pool and buffer keep no journals: checkpoints have their state."""

    def __init__(
        self, config: Config, directory: RunDirectory, tracker: Tracker, client: InferenceClient
    ) -> None:
        self.config = config
        self.directory = directory
        self.in_lockstep = config.collection.max_staleness == 0
        self.members = assembly.build_pool(config, config.policies, LocalHandle(tracker))
        log = BatchLog(directory.batches) if config.buffer.log_batches else None
        self.steps = BufferService(
            build_buffer(config, tracker, log),
            max_staleness=config.collection.max_staleness,
            in_order=self.in_lockstep,
            rollouts=str(directory.rollouts),
            epoch=directory.epoch,
        )
        demand = Demand(config.buffer.batch_size, games=0, failed_share=config.collection.max_failed_fraction)
        super().__init__(LocalHandle(self.steps), LocalHandle(self.members), demand)
        self.settings = assembly.play_settings(config, limited=self.in_lockstep)
        limits = assembly.limits(config, config.inference.max_queue)
        self.collector = Collector(
            arena_of_games(client, self.settings, assembly.build_episodes(config), limits),
            self.members,
            self.steps,
            tracker,
            concurrency=config.collection.concurrency,
            take_in=assembly.take_in(config),
        )

    async def begin(self, saved: Saved, state: dict[str, Any]) -> None:
        """Continue from a state, or begin."""
        if state:
            settings = msgspec.to_builtins(self.settings)
            self.members.state.load_state_dict(
                {**state["games"], "pool": state["pool"], "settings": settings}
            )
            for one in assembly.fixed_members(self.config):
                if one.path:
                    self.members.pool.place(one.name, one.path)
            self.steps.state.load_state_dict(state["buffer"])
        self.members.register(self.collector.NAME, self.settings)
        self.directory.truncate_after(saved.step)

    async def state(self) -> dict[str, Any]:
        """Return the whole state of pool and buffer."""
        games = self.members.state.whole_state()
        return {
            "pool": games.pop("pool"),
            "accounts": self.members.accounts(),
            "games": games,
            "buffer": self.steps.state.whole_state(),
        }

    async def play(self, saved: Saved, progress: RunProgress) -> Ready:
        """Play until the batch of the update after ``saved`` can be drawn."""
        if waiting := len(self.members.pool.payoffs.waiting):
            progress.say(f"{waiting} games between frozen opponents, for the payoff matrix")
        return await self.next_batch(saved, partial(self._play, saved.step + 1, progress))

    async def _play(self, update: int, progress: RunProgress) -> None:
        def count(played: Played) -> None:
            if played.job.is_training:
                progress.played_one()

        if self.in_lockstep:
            await self.collector.play_all(count)
            return
        alongside = self.config.evaluation.games_alongside if self.settings.evaluation else 0
        share = alongside / (alongside + self.config.collection.games_per_step)
        if not await self.collector.play_until(self._enough(), share, count):
            played = self.steps.state.since_last_draw()
            self.steps.check_failures(update, self.demand.failed_share)
            self.steps.log_late(update)
            raise SparringError(f"{played} games gave too little to train on; look at the rollouts")

    def _enough(self) -> Callable[[], bool]:
        """Return the condition on which an update begins while games go on.

        It is ``batch_size`` entries in the buffer if that is configured, else ``games_per_step`` more games.
        """
        wanted, stored = self.config.buffer.batch_size, self.steps.state.buffer
        if wanted is not None:
            return lambda: stored.entries() >= wanted
        accounts = self.members.ledger.accounts
        finished = accounts["finished"] + self.config.collection.games_per_step
        return lambda: accounts["finished"] >= finished

    async def finish_games(self, step: int, freezes: bool) -> None:
        """Let games in flight end before a copy retires against which they may be playing.

        Where they are fewer than an update's, their failures count with those of the next.
        """
        if freezes:
            await self.collector.drain()
            self.steps.log_late(step)
            if self.steps.state.since_last_draw() >= self.config.collection.games_per_step:
                self.steps.check_failures(step, self.demand.failed_share)
