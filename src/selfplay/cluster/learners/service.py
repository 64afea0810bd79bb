"""LearnerService: the learner's loop on a cluster. Draw a batch, learn it, save and announce the weights.

The saved updates define the progress of the run. A learner that is killed loads what it saved last and
continues with the next update: the buffer still has that update's batch.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from selfplay.cluster.services.buffer import Demand, Drawn
from selfplay.core import Messages, SelfplayError, TrainingRecord
from selfplay.replay.records import records_from_steps
from selfplay.training.figures import answer_figures, idle_share, staleness_shares

HEARTBEAT_SECONDS = 2.0
CONSUMED = "learner/games_consumed"
"""Metric: training games of the run that were learned or were too old."""


class Trainer(Protocol):
    """Makes and saves updates. Its methods run in a thread."""

    saved_metrics: dict[str, float]
    """Metrics of the update that was saved last."""
    trained_records: int
    """Records trained on in all saved updates."""
    notice: str | None
    """A line to show if the newest saved update was damaged."""
    notes: list[str]
    """Lines to show about the model: the layers without LoRA, and a context shorter than its own."""

    @property
    def version(self) -> int:
        """Number of saved updates."""

    def update(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Make an update; return its metrics."""

    def save(self, metrics: dict[str, float]) -> None:
        """Save the last :meth:`update` with its metrics, completely or not at all; increments ``version``."""

    def path(self) -> str | None:
        """Return the path of the saved version's adapter; ``None`` for the untrained policy."""

    def opponent_path(self) -> str | None:
        """Return the path of the adapter that is played as an opponent: the average, if there is one."""

    def tidy(self, paths_in_use: list[str]) -> None:
        """Delete old versions that are no longer in use."""

    def encode_answer(self, prompt: Messages, text: str) -> list[int]:
        """Return the token ids of an answer to ``prompt``, stop token included."""


class LearnerService:
    """See the module.

    Args:
        trainer: makes and saves updates.
        step_buffer, model_pool, tracker: handles; the tracker may be ``None``.
        demand: size and readiness of an update's batch.
        add_every: the policy joins the pool every ``add_every`` updates.
        checkpoint: called with the version after each update, to write user-facing checkpoints.
        patience: seconds without a batch after which the learner gives up.
        last_version: the version whose metrics wait for :meth:`track`, so that they can include the last
            evaluation; those of other versions are written at once.
    """

    def __init__(
        self,
        trainer: Trainer,
        step_buffer: Any,
        model_pool: Any,
        tracker: Any = None,
        *,
        demand: Demand,
        add_every: int = 1,
        checkpoint: Callable[[int, dict[str, Any]], None] | None = None,
        patience: float = 3600.0,
        last_version: int | None = None,
    ) -> None:
        self.trainer = trainer
        self.step_buffer = step_buffer
        self.model_pool = model_pool
        self.tracker = tracker
        self.demand = demand
        self.add_every = add_every
        self.checkpoint = checkpoint
        self.patience = patience
        self.last_version = last_version
        self.state = "starting"
        self.stopping = False
        self._waited = 0.0
        self._learned = 0.0
        self._saved = 0.0
        self._update_began = perf_counter()
        self._telling: asyncio.Task[None] | None = None

    async def train(self, iterations: int) -> int:
        """Learn until there are ``iterations`` updates, then stop the collectors; return how many there are.

        When called again, for example by Ray after a kill, it continues after the last saved update.

        Raises:
            SelfplayError: there is no batch, or an update fails.
        """
        beating = asyncio.create_task(self._beat())
        try:
            await self._make_known()
            while self.trainer.version < iterations and not self.stopping:
                await self._update(iterations)
            await self._told()
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        self.state = "done"
        await self._stop_play()
        return self.trainer.version

    def stop(self) -> None:
        """End after the current update."""
        self.stopping = True

    def progress(self) -> dict[str, Any]:
        """Return the progress: ``step``, ``state``, ``trained_records`` and the last update's metrics.

        ``notice`` is a line to show if the newest saved update is damaged and the one before was loaded;
        ``notes`` are lines to show about the model.
        """
        return {
            "notes": list(self.trainer.notes),
            "notice": self.trainer.notice,
            "trained_records": self.trainer.trained_records,
            "step": self.trainer.version,
            "state": self.state,
            "metrics": dict(self.trainer.saved_metrics),
        }

    async def _update(self, iterations: int) -> None:
        self.state = "waiting"
        started = perf_counter()
        drawn = await self._next_batch(self.trainer.version + 1)
        if drawn is None:
            return
        self._waited = perf_counter() - started
        self.state = "learning"
        started = perf_counter()
        records = await self._in_thread(records_from_steps, drawn.steps, self.trainer.encode_answer)
        metrics = await self._in_thread(self.trainer.update, records)
        metrics |= await self._in_thread(answer_figures, records)
        self._learned = perf_counter() - started
        self.state = "saving"
        await self._told()
        started = perf_counter()
        await self._in_thread(self.trainer.save, metrics | self._overlap(drawn) | self._speed(drawn, metrics))
        self._saved = perf_counter() - started
        if self.trainer.version >= iterations:
            await self._stop_play()  # before new weights let new games begin
        await self._make_known()

    async def _stop_play(self) -> None:
        await self.step_buffer.stop.remote()
        await self.model_pool.stop.remote()

    async def _next_batch(self, update: int) -> Drawn | None:
        """Return the batch of an update; ``None`` if the learner is told to stop."""
        asked = perf_counter()
        while not self.stopping:
            drawn: Drawn | None = await self.step_buffer.draw.remote(update, self.demand)
            if drawn is not None and drawn.steps:
                return drawn
            if drawn is not None:
                await self.publish()
            if perf_counter() - asked > self.patience:
                raise SelfplayError(
                    f"no batch for update {update} came in {self.patience:g} s; look at the games"
                )
        return None

    def _overlap(self, drawn: Drawn) -> dict[str, float]:
        """Return the staleness of the batch, and how long each side waited for the other."""
        version = self.trainer.version
        return {
            **staleness_shares((step.policy_version for step in drawn.steps), version),
            CONSUMED: float(drawn.games),
            "overlap/dropped_steps": float(drawn.dropped),
            "overlap/learner_idle_share": idle_share(self._waited, self._learned),
            "time/learn_seconds": self._learned,
            "time/wait_seconds": self._waited,
            "time/save_seconds": self._saved,  # of the previous update: this one is not saved yet
        }

    def _speed(self, drawn: Drawn, metrics: dict[str, float]) -> dict[str, float]:
        """Return games and tokens per second since the previous update."""
        now = perf_counter()
        seconds, self._update_began = now - self._update_began, now
        games = drawn.games - self.trainer.saved_metrics.get(CONSUMED, 0.0)
        tokens = metrics.get("separate_tokens", 0.0)
        return {
            "time/games_per_second": games / max(seconds, 1e-9),
            "time/trained_tokens_per_second": tokens / max(self._learned, 1e-9),
        }

    async def _make_known(self) -> None:
        """Announce the saved version to all services. Repeating it after a kill changes nothing."""
        version = self.trainer.version
        if version:
            await self._join_pool(version)
        await self.publish()
        if self.checkpoint is not None and version:
            state = await self.model_pool.checkpoint_summary.remote()
            await self._in_thread(self.checkpoint, version, state)
        self._telling = asyncio.create_task(self._tell(version))

    async def _tell(self, version: int) -> None:
        """Do what may overlap with drawing and learning the next batch, but must precede saving it."""
        if version != self.last_version:
            await self.track()
        in_use = await self.model_pool.paths_in_use.remote()
        await self._in_thread(self.trainer.tidy, in_use)

    async def _told(self) -> None:
        """Wait until the saved version is completely announced."""
        if self._telling is not None:
            await self._telling

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do slow work in a thread, so that the actor answers meanwhile."""
        return await asyncio.to_thread(work, *args)

    async def publish(self) -> None:
        """Announce the newest weights, and how many games are consumed so that others may start."""
        version = self.trainer.version
        consumed = await self.step_buffer.learned_batch.remote(version)
        await self.model_pool.publish.remote(self.trainer.path(), version, consumed)

    async def _join_pool(self, version: int) -> None:
        """Add the policy to the pool before the new weights start games: these must meet the new pool."""
        settled = False
        while not settled:
            settled = await self.model_pool.settled.remote()
        if version % self.add_every == 0:
            opponent = await self._in_thread(self.trainer.opponent_path)
            await self.model_pool.add_checkpoint.remote(opponent, version)

    async def track(self) -> None:
        """Write the metrics of the saved update; a repeated call changes nothing."""
        version = self.trainer.version
        if self.tracker is None or not version:
            return
        games = await self.model_pool.accounts.remote()
        steps = await self.step_buffer.counts.remote()
        metrics = {
            name if "/" in name else f"learner/{name}": value
            for name, value in self.trainer.saved_metrics.items()
        }
        metrics |= {f"accounts/{name}": float(count) for name, count in games.items()}
        metrics |= {f"accounts/steps {name}": float(count) for name, count in steps.items()}
        await self.tracker.flush.remote(version, metrics)

    async def _beat(self) -> None:
        while True:
            if self.tracker is not None:
                load = {"step": self.trainer.version, "state": self.state}
                self.tracker.heartbeat.remote("Learner", load)
                steps, games = await self.step_buffer.size.remote(), await self.step_buffer.games.remote()
                self.tracker.heartbeat.remote("Buffer", {"steps": steps, "games": games})
            await asyncio.sleep(HEARTBEAT_SECONDS)
