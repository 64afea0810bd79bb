"""The cases of cluster_growth.py, each in a process of its own, with the package of any commit.

    PYTHONPATH=SRC:TESTS python benchmarks/cluster_growth_cases.py CASE SIZE

It prints its figures as one line of JSON.
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import math
import pickle
import random
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from ray_simulation import SimulatedHost, VirtualTimeLoop
from sparring.collection.buffers import StepBuffer
from sparring.collection.results import EnvSpec
from sparring.config import load_config
from sparring.core import Messages, ModelResponse, Step, Trajectory
from sparring.engine.hosts import EngineRequest
from sparring.envs.game_episode import GameEpisode
from sparring.envs.generators import lend_generators_for_good
from sparring.envs.templates import get_template


def moved(name: str, *modules: str) -> Any:
    """Return a class or module from the first of these modules that the measured commit has."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"sparring.{module}"), name)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"this commit has no {name}")


calls_of_each_client = moved("calls_of_each_client", "cluster.engine_start", "runtime.ray.run_engines")
EngineClient = moved("EngineClient", "cluster.engines.client", "runtime.ray.engine_client")
EngineService = moved("EngineService", "cluster.engines.service", "runtime.ray.engine_service")
LocalHandle = moved("LocalHandle", "collection.local_handle", "runtime.ray.handles")
BATCHES = ("collection.buffer_state", "runtime.ray.buffer_service")
Demand, FinishedGame = moved("Demand", *BATCHES), moved("FinishedGame", *BATCHES)
PackedGames = moved("PackedGames", *BATCHES)
BufferService = moved("BufferService", "collection.buffer", "runtime.ray.buffer_service")
COLLECTOR = ("cluster.collector", "runtime.ray.collector_service")
CollectorService = moved("CollectorService", *COLLECTOR)
PlaySettings = moved("PlaySettings", "collection.games_in_flight", "runtime.ray.game_ledger")
PoolService = moved("PoolService", "collection.pool", "runtime.ray.pool_service")
GameResult = moved("GameResult", "collection.results", "runtime.ray.game_ledger")
Limits = moved("Limits", "collection.collector")
TakeIn = moved("TakeIn", "collection.results")

ENGINES, COLLECTORS = 64, 16
MEAN_SECONDS, SPREAD = 20.0, 0.8
"""Mean duration of a call on virtual time, and the deviation of its logarithm: answers have a long tail."""
KUHN = EnvSpec("kuhn", "kuhn_poker", 2)
SETTINGS = PlaySettings((KUHN,), (1.0,), (), 0, 1.0, 4, None, 1)
BATCH = 10
FINISHED = 20_000
STEP_TOKENS = 460
GAME_STEPS = 10


class Host(SimulatedHost):
    """An engine whose answers take as long as their seed says."""

    async def complete(self, request: EngineRequest) -> ModelResponse:
        """Answer."""
        mean_of_logarithm = math.log(MEAN_SECONDS) - SPREAD**2 / 2
        self.delay = random.Random(request.call.seed).lognormvariate(mean_of_logarithm, SPREAD)
        return await super().complete(request)


def random_legal(messages: Messages, seed: int | None) -> str:
    """Return one of the legal moves that the prompt ends with."""
    legal = messages[-1]["content"].rpartition("Legal moves: ")[2].partition(".")[0].split(", ")
    return legal[(seed or 0) % len(legal)]


async def play(games: int) -> dict[str, float]:
    """Play with simulated engines and sample how many calls each has."""
    lend_generators_for_good()
    config = load_config(
        "quickstart", {"run.runtime": "ray", "ray.engines": ENGINES, "ray.collectors": COLLECTORS}
    )
    options = {}
    if "calls_per_engine" in inspect.signature(EngineClient).parameters:  # older: all engines together
        calls_per_engine = moved("calls_per_engine", "cluster.engine_start")
        options = {"calls_per_engine": calls_per_engine(config)}
    hosts = [Host(0.0, random_legal) for _ in range(ENGINES)]
    engines = [LocalHandle(EngineService(host)) for host in hosts]
    pool, buffer = PoolService("mirror", 1), BufferService(StepBuffer(1000))
    pool.add_checkpoint(None, 0)
    episode = GameEpisode("kuhn_poker", 2, get_template("fewshot-chat"))
    collectors = [
        CollectorService(
            f"Collector-{number}",
            EngineClient(engines, **options),
            LocalHandle(buffer),
            LocalHandle(pool),
            None,
            SETTINGS,
            {"kuhn": episode},
            Limits(1e9, 2, calls_of_each_client(config)),
            TakeIn(shown=0, shown_per=1),
        )
        for number in range(COLLECTORS)
    ]
    started = perf_counter()
    playing = [
        asyncio.create_task(one.collect(games // COLLECTORS + (number < games % COLLECTORS)))
        for number, one in enumerate(collectors)
    ]
    await asyncio.sleep(MEAN_SECONDS)
    means, ratios = [], []
    for _ in range(8):
        await asyncio.sleep(MEAN_SECONDS / 4)
        busy = [host.busy for host in hosts]
        means.append(statistics.mean(busy))
        ratios.append(max(busy) / means[-1])
    accounts = pool.accounts()
    if accounts["failed"] or accounts["in_flight"] != games:
        raise SystemExit(f"not all games are in flight: {accounts}")
    for task in playing:
        task.cancel()
    await asyncio.gather(*playing, return_exceptions=True)
    return {
        "calls": statistics.mean(means),
        "busiest": statistics.mean(ratios),
        "seconds": perf_counter() - started,
    }


class Ticker:
    """Measures the longest time in which the event loop did not run."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> "Ticker":
        self._last = perf_counter()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            now = perf_counter()
            self.longest, self._last = max(self.longest, now - self._last), now
            await asyncio.sleep(0)


async def pool(games: int) -> dict[str, float]:
    """Finish games while others begin, until snapshots have been written."""
    with tempfile.TemporaryDirectory() as directory:
        service = PoolService("mirror", 1, directory=directory)
        service.add_checkpoint(None, 0)
        service.register("Collector-0", SETTINGS)
        jobs = (await service.next_jobs("Collector-0", 1, games, 0)).jobs
        sizes: dict[str, int] = {}
        async with Ticker() as ticker:
            await asyncio.sleep(0.1)
            ticker.longest = 0.0
            for number in range(2, 2 + FINISHED // BATCH):
                ended, jobs = jobs[:BATCH], jobs[BATCH:]
                service.finish([GameResult(job.name, "finished", 0, [1.0, -1.0], []) for job in ended])
                await asyncio.sleep(0)
                jobs += (await service.next_jobs("Collector-0", number, BATCH, 0)).jobs
                await asyncio.sleep(0)
                for path in Path(directory).glob("snapshot-*.json"):
                    with contextlib.suppress(FileNotFoundError):  # a newer one has replaced it
                        sizes[path.name] = path.stat().st_size
        if not sizes:
            raise SystemExit("no snapshot was written")
        return {
            "snapshot_mb": max(sizes.values()) / 1e6,
            "mb_per_1000_games": 1000 * sum(sizes.values()) / FINISHED / 1e6,
            "standstill_ms": 1000 * ticker.longest,
        }


async def buffer(steps: int) -> dict[str, float]:
    """Save a buffer in which many steps stay stored, and send a batch of it."""
    with tempfile.TemporaryDirectory() as directory:
        service = BufferService(StepBuffer(10 * steps), max_staleness=1, directory=directory)
        for first in range(0, 2 * steps // GAME_STEPS, 100):
            service.add_games(PackedGames([game(index) for index in range(first, first + 100)]))
        drawn = await service.draw(1, Demand(batch_size=steps, games=1))
        async with Ticker() as ticker:
            await asyncio.sleep(0.1)
            ticker.longest = 0.0
            service.learned_batch(1)
            while not any(Path(directory).glob("snapshot-*.json")):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        sent = sending_seconds(drawn)
        (snapshot,) = Path(directory).glob("snapshot-*.json")
        return {
            "snapshot_mb": snapshot.stat().st_size / 1e6,
            "standstill_ms": 1000 * ticker.longest,
            "us_per_step_sent": 1e6 * sent / steps,
        }


def sending_seconds(drawn: Any) -> float:
    """Return the seconds to serialise a batch and back, as Ray does."""
    started = perf_counter()
    pickle.loads(pickle.dumps(drawn, protocol=5))
    return perf_counter() - started


def game(index: int) -> Any:
    """Return a game of long prompts."""
    steps = [
        Step(
            "player_0",
            [{"role": "user", "content": "words " * STEP_TOKENS}],
            [{"role": "assistant", "content": "an answer"}],
            list(range(STEP_TOKENS)),
            list(range(16)),
            [-0.5] * 16,
        )
        for _ in range(GAME_STEPS)
    ]
    reward = 1.0 if index % 2 else -1.0
    trajectory = Trajectory(0, "kuhn", reward, steps, {0: reward, 1: -reward}, rollout_id=f"train-{index}")
    return FinishedGame(index, [trajectory])


CASES: dict[str, Callable[[int], Awaitable[dict[str, float]]]] = {
    "play": play,
    "pool": pool,
    "buffer": buffer,
}


def main() -> None:
    """Measure one case."""
    case, size = sys.argv[1], int(sys.argv[2])
    virtual = case == "play"
    with asyncio.Runner(loop_factory=VirtualTimeLoop if virtual else None) as runner:
        print(json.dumps(runner.run(CASES[case](size))))


if __name__ == "__main__":
    main()
