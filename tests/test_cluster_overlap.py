"""Play and learning at the same time, with a simulated engine and learner on virtual time; no Ray."""

import asyncio
import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ray_simulation import (
    RestartingHandle,
    SimulatedHost,
    SimulatedLearner,
    VirtualTimeLoop,
)
from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.service import EngineService
from selfplay.cluster.services.collector import CollectorService
from selfplay.cluster.services.tracker import TrackerService
from selfplay.collection.buffer import BufferService, Demand
from selfplay.collection.games_in_flight import PlaySettings
from selfplay.collection.pool import PoolService
from selfplay.collection.scheduler import EnvSpec
from selfplay.compat.unstable.learner import LearningLoop
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.templates import get_template
from selfplay.replay.buffers import EpisodeBuffer, StepBuffer

KUHN = EnvSpec("kuhn", "kuhn_poker", 2)
EPISODE = GameEpisode("kuhn_poker", 2, get_template("fewshot-chat"))


def answer(messages: list[dict[str, str]], seed: int | None) -> str:
    return ("Pass", "Bet")[(seed or 0) % 2]


class Cluster:
    """All services of a small run in this process."""

    def __init__(
        self,
        directory: Path,
        *,
        games: int,
        staleness: int,
        move_seconds: float,
        learn_seconds: float,
        collectors: int = 1,
        buffer_kind: type = StepBuffer,
        mode: str = "mirror",
    ) -> None:
        self.games = games
        self.staleness = staleness
        self.buffer = RestartingHandle(
            lambda: BufferService(
                buffer_kind(10_000),
                max_staleness=staleness,
                in_order=staleness == 0,
                directory=str(directory / "buffer"),
            )
        )
        self.pool = RestartingHandle(lambda: PoolService(mode, 2, directory=str(directory / "pool")))
        self.tracker = RestartingHandle(lambda: TrackerService("run", directory=str(directory / "run")))
        self.host = SimulatedHost(move_seconds, answer)
        self.engine = RestartingHandle(lambda: EngineService(self.host))
        self.trainer = SimulatedLearner(learn_seconds)
        self.learner = RestartingHandle(self._learner)
        self.settings = PlaySettings((KUHN,), (1.0,), (), 0, 1.0, 4, games, staleness)
        self.collectors = [self._collector(f"Collector-{number}") for number in range(collectors)]
        self.playing: list[asyncio.Task] = []

    def _learner(self) -> LearningLoop:
        self.trainer = self.trainer.restarted()
        return LearningLoop(
            self.trainer, self.buffer, self.pool, self.tracker, demand=Demand(games=self.games)
        )

    def _collector(self, name: str) -> CollectorService:
        client = EngineClient([self.engine])
        return CollectorService(
            name, client, self.buffer, self.pool, self.tracker, self.settings, {"kuhn": EPISODE}
        )

    async def run(self, updates: int, saboteur=None) -> None:
        await self.pool.add_checkpoint.remote(None, 0)
        playing = [asyncio.create_task(self._play(number)) for number in range(len(self.collectors))]
        disturbing = asyncio.create_task(saboteur(self)) if saboteur else None
        try:
            async with asyncio.timeout(100_000):
                await self.learner.train.remote(updates)
                await asyncio.wait(playing)
        finally:
            for task in [*playing, *([disturbing] if disturbing else [])]:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    async def _play(self, number: int) -> None:
        """Run a collector and restart it when it is killed, like an actor."""
        while True:
            collector = self.collectors[number]
            collecting = asyncio.create_task(collector.collect(self.games * (self.staleness + 1)))
            self.playing.append(collecting)
            try:
                await asyncio.shield(collecting)
                return
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():
                    collecting.cancel()
                    raise
                self.collectors[number] = self._collector(collector.name)

    def kill(self, victim: str) -> None:
        if victim == "collector":
            self.playing[-1].cancel()
        else:
            getattr(self, victim).kill()

    def check(self, updates: int) -> None:
        """Check that no step is trained twice, lost or too old."""
        trained = [one for update in self.trainer.trained for one in update]
        assert len(self.trainer.trained) == updates
        for version, update in enumerate(self.trainer.trained):
            assert all(0 <= version - acted <= self.staleness for _, acted in update)
        counts = self.buffer.service.counts()
        assert len(trained) == counts["sampled"]
        parts = ("stored", "evicted", "dropped_stale", "sampled", "cleared")
        assert counts["added"] == sum(counts[part] for part in parts)
        accounts = self.pool.service.accounts()
        assert accounts["started"] == accounts["finished"] + accounts["failed"] + accounts["in_flight"]
        assert accounts["failed"] == 0
        assert accounts["finished"] == self.buffer.service.games()
        if self.staleness == 0:
            assert accounts["finished"] == self.games * updates
        assert self.buffer.service.games() >= self.games * updates


def run_on_virtual_time(work) -> float:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(work)
        return runner.get_loop().time()


class UnevenHost(SimulatedHost):
    """Needs a different time for every call."""

    async def complete(self, request):
        await asyncio.sleep((request.seed or 0) % 7)
        return await super().complete(request)


def test_games_that_begin_together_and_end_one_after_the_other_are_all_learned(tmp_path):
    cluster = Cluster(tmp_path, games=6, staleness=0, move_seconds=0.1, learn_seconds=0.5)
    cluster.engine = RestartingHandle(lambda: EngineService(UnevenHost(0.1, answer)))
    cluster.collectors = [cluster._collector("Collector-0")]
    run_on_virtual_time(asyncio.wait_for(cluster.run(3), 1000.0))
    cluster.check(3)


SECONDS = st.floats(0.001, 20.0)


@settings(max_examples=10, deadline=None)
@given(
    staleness=st.integers(0, 3),
    move=SECONDS,
    learn=SECONDS,
    games=st.integers(1, 6),
    collectors=st.integers(1, 3),
    kind=st.sampled_from([StepBuffer, EpisodeBuffer]),
)
def test_no_trained_record_is_older_than_the_bound(
    tmp_path_factory, staleness, move, learn, games, collectors, kind
):
    cluster = Cluster(
        tmp_path_factory.mktemp("run"),
        games=games,
        staleness=staleness,
        move_seconds=move,
        learn_seconds=learn,
        collectors=collectors,
        buffer_kind=kind,
    )
    run_on_virtual_time(cluster.run(5))
    cluster.check(5)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    staleness=st.integers(0, 2),
    collectors=st.integers(1, 2),
    mode=st.sampled_from(["mirror", "random", "ts-dist"]),
    often=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_no_kill_loses_a_game_or_trains_it_twice(tmp_path_factory, seed, staleness, collectors, mode, often):
    rng = random.Random(seed)

    async def disturb(cluster: Cluster) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(often))
            cluster.kill(rng.choice(["buffer", "pool", "tracker", "engine", "learner", "collector"]))

    cluster = Cluster(
        tmp_path_factory.mktemp("run"),
        games=4,
        staleness=staleness,
        move_seconds=0.3,
        learn_seconds=0.5,
        collectors=collectors,
        mode=mode,
    )
    run_on_virtual_time(cluster.run(6, disturb))
    cluster.check(6)
