"""A cluster of plain objects on virtual time."""

import asyncio
import functools
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from ray_simulation import RestartingHandle, SimulatedHost, SimulatedLearner, VirtualTimeLoop
from sparring.cluster.actor_classes import Hosted
from sparring.cluster.collector import CollectorService
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.service import EngineService
from sparring.cluster.games import ClusterGames
from sparring.cluster.learner import LearnerService
from sparring.cluster.learner_group import LearnerGroup, learners_from_config
from sparring.cluster.remote import ClusterServing, RemoteLearners
from sparring.cluster.tracker import TrackerService
from sparring.collection.buffer import BufferService, Demand, FinishedGame
from sparring.collection.buffers import StepBuffer
from sparring.collection.games_in_flight import GameResult, PlaySettings
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.collection.results import EnvSpec
from sparring.collection.rollout_log import BatchLog
from sparring.compat.unstable.actors import LearningLoop
from sparring.config import Config
from sparring.core import Rollout, Step, Trajectory
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.run import assembly
from sparring.run.game_source import GameSource
from sparring.run.metrics import RunMetrics
from sparring.run.run_directory import RunDirectory
from sparring.run.trainer import Trainer

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


GAMES = 2


PLAY = PlaySettings((KUHN,), (1.0,), (), 0, 1.0, 4, games_per_step=GAMES)


class Waiting:
    """A collector whose games are made up elsewhere; it ends when play ends."""

    def __init__(self, pool: PoolService) -> None:
        self.pool = pool

    async def collect(self, *workers: int) -> None:
        while not self.pool.state.stopped:
            await asyncio.sleep(0.01)


class MadeUpGames(GameSource):
    """Games on a cluster that are made up, as their evaluations are."""

    services: "Services"

    async def play(self, saved, progress):
        await self.services.before_play(saved.step)
        return await super().play(saved, progress)

    async def evaluate(self, step, *, full, progress):
        await self.learners.results()
        write_evaluation(self.directory.evaluation, step, "made-up", MeasureResult("made-up", [1.0]))
        await self.games.pool.push_match.remote(step, 1, [("average", "fixed-random", 1.0, "kuhn_poker")])
        return {}


class Services:
    """The services of one start of a run, in this process."""

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self.directory = RunDirectory(path) if path.exists() else RunDirectory.create(path)
        if self.directory.epoch is None:
            self.directory.lock()
        epoch = self.directory.epoch
        self.tracker = TrackerService("run", directory=str(path), epoch=epoch)
        self.pool = self.new_pool(str(path / "state" / "pool"))
        self.buffer = BufferService(
            StepBuffer(1000, seed=3, batch_log=BatchLog(path / "batches")),
            in_order=True,
            directory=str(path / "state" / "buffer"),
            rollouts=str(path / "rollouts"),
            epoch=epoch,
        )
        self.learner = self.new_learner()
        self.actors = SimpleNamespace(
            buffer=LocalHandle(self.buffer),
            pool=LocalHandle(self.pool),
            tracker=LocalHandle(self.tracker),
            learner=LocalHandle(Hosted(lambda: self.learner)),
            collectors=[LocalHandle(self.new_collector())],
            engines=[],
        )
        self.said = io.StringIO()
        metrics = RunMetrics(self.actors.tracker)
        learners = RemoteLearners(self.actors.learner, self.directory.checkpoint)
        host = ClusterGames(config, self.directory, self.actors, "run")
        host.buffer_name = self.actors.buffer
        client = EngineClient([], config.policies)
        results = {policy: assembly.evaluated_uid(config, policy) for policy in config.policies}
        serving = ClusterServing(client, results, learners, self.directory.path)
        arena = assembly.build_arena(config, client, 1)
        games = MadeUpGames(config, self.directory, metrics, host, serving, learners, arena)
        games.services = self
        console = Console(file=self.said, width=300)
        self.trainer = Trainer(config, self.directory, games, learners, metrics, console)
        self.before_play = self.play

    def new_pool(self, directory: str) -> PoolService:
        return PoolService("random", 3, directory=directory, epoch=self.directory.epoch)

    def new_collector(self) -> Any:
        return Waiting(self.pool)

    def new_learner(self) -> LearnerService:
        build = functools.partial(learners_from_config, self.config)
        group = LearnerGroup(build, 1, cpus=0, gpus=0, timeout_seconds=10)
        return LearnerService(group, self.directory.path, "tiny", epoch=self.directory.epoch)

    async def play(self, version: int) -> None:
        """Play the games of an update."""
        for index in range(self.buffer.games(), self.buffer.games() + GAMES):
            played = Rollout(episode_type="kuhn", id=f"train-{index:08d}")
            self.buffer.add_games([replace(game(index, version), rollout=played)])

    async def play_what_may_start(self, version: int) -> int:
        """Play the games that the pool hands out to a new collector; return how many."""
        self.pool.resume()
        self.pool.register("Collector-0", PLAY)
        given = await self.pool.next_jobs("Collector-0", 1, 100, 0, wait=0.0)
        for job in given.jobs:
            played = Rollout(episode_type="kuhn", id=job.name)
            self.buffer.add_games([replace(game(job.meta.index, version), rollout=played)])
            self.pool.finish([GameResult(job.name, "finished", rewards=[1.0, -1.0])])
        return len(given.jobs)

    async def train(self, updates: int) -> None:
        """Train until there are this many updates, and end."""
        before_play = self.before_play

        async def and_stop(version: int) -> None:
            self.trainer.stopping = version + 1 >= updates
            await before_play(version)

        self.before_play = and_stop
        self.trainer.stopping = self.learner.saved().step >= updates
        await self.trainer.run()
        self.directory.unlock()

    def evaluated(self) -> int:
        return self.pool.pool.matches.record("average", "fixed-random").games

    def copies(self) -> list[str]:
        return [one.uid for one in self.pool.pool.opponents() if one.kind == "checkpoint"]


def game(index: int, version: int = 0, steps: int = 2, error: str | None = None) -> FinishedGame:
    if error is not None:
        return FinishedGame(
            index, [], Rollout(episode_type="kuhn", id=f"train-{index:08d}", meta={"error": error}), error
        )
    reward = 1.0 if index % 3 else -1.0
    acted = [
        Step("player_0", [{"role": "user", "content": f"{index}/{place}"}], [], [1, 2], [3], [-0.5])
        for place in range(steps)
    ]
    for step in acted:
        step.policy_version = version
    trajectory = Trajectory(
        0, "kuhn", reward, acted, {0: reward, 1: -reward}, rollout_id=f"train-{index:08d}"
    )
    return FinishedGame(index, [trajectory])
