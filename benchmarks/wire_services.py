"""How many games a second the single actors of a run on Ray stand on one core: the pool and the buffer.

    python benchmarks/wire_services.py [--per-message 1 8 64] [--ray]

CPU seconds of the service with its journal, and of unpacking and packing its messages, by games a message;
the games are Kuhn poker with two steps of 370 tokens. ``--ray`` adds what an empty call costs the actor
that answers it, on a cluster of this machine.
"""

import argparse
import asyncio
import pickle
import tempfile
from collections.abc import Callable
from time import process_time
from typing import Any

from measuring import print_table
from sparring.collection.buffer import BufferService
from sparring.collection.buffer_state import Demand, FinishedGame, PackedGames
from sparring.collection.buffers import StepBuffer
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.pool import PoolService
from sparring.collection.results import EnvSpec, GameResult
from sparring.core import Step, Trajectory
from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template

GAMES = 4096
BATCH = 1024
TOKENS = 370
SETTINGS = PlaySettings((EnvSpec("kuhn", "kuhn_poker", 2),), (1.0,), (), 0, 1.0, 4, None, 1)
PROMPT = get_template("fewshot-chat").messages(make_game("kuhn_poker", 2, seed=0), 0)


def arrived(value: Any) -> Any:
    """Return a copy of a value as it arrives."""
    return pickle.loads(pickle.dumps(value, protocol=5))


def game(index: int) -> FinishedGame:
    """Return a game of two seats with one step each."""
    sides = []
    for pid in (0, 1):
        notes = {"legal": True, "format": True, "finish_reason": "stop", "legal_answers": ["check", "bet"]}
        answer = [{"role": "assistant", "content": "check"}]
        ids = [1000 + (number * 7919) % 40_000 for number in range(TOKENS)]
        step = Step(f"player_{pid}", PROMPT, answer, ids, [3741, 2], [-0.7 - index / 1e4, -0.001], info=notes)
        name = f"train-{index:08d}"
        sides.append(Trajectory(pid, "kuhn_poker", 1.0, [step], {0: 1.0, 1: -1.0}, {}, rollout_id=name))
    return FinishedGame(index, sides)


async def pool(per_message: int) -> float:
    """Return the CPU seconds of a game in the pool, which hands it out and is told how it ended."""
    with tempfile.TemporaryDirectory() as directory:
        service = PoolService("mirror", 1, directory=directory)
        service.add_checkpoint(None, 0)
        service.register("Collector-0", SETTINGS)
        jobs = (await service.next_jobs("Collector-0", 1, BATCH, 0)).jobs
        begun = process_time()
        for number in range(2, 2 + GAMES // per_message):
            ended, jobs = jobs[:per_message], jobs[per_message:]
            service.finish(
                arrived([GameResult(job.name, "finished", 0, [1.0, -1.0], ["check"] * 2) for job in ended])
            )
            jobs += arrived(await service.next_jobs("Collector-0", number, per_message, 0)).jobs
        return (process_time() - begun) / GAMES


async def buffer(per_message: int) -> float:
    """Return the CPU seconds of a game in the buffer, which keeps it and hands out its steps in a batch."""
    with tempfile.TemporaryDirectory() as directory:
        service = BufferService(StepBuffer(100_000), in_order=True, directory=directory)
        games = [game(index) for index in range(GAMES)]
        messages = [
            pickle.dumps(PackedGames(games[first : first + per_message]))
            for first in range(0, GAMES, per_message)
        ]
        begun = process_time()
        for number, message in enumerate(messages, 1):
            service.add_games(pickle.loads(message))
            update, rest = divmod(number * per_message, BATCH)
            if not rest:
                pickle.dumps(await service.draw(update, Demand(games=BATCH)))
                service.learned_batch(update)
        return (process_time() - begun) / GAMES


def empty_call() -> float:
    """Return the CPU seconds that an empty call of Ray costs the process that answers it."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=40)

    @ray.remote(num_cpus=0)
    class Empty:
        async def call(self) -> None: ...

        async def cpu(self) -> float:
            return process_time()

    actor = Empty.remote()
    ray.get([actor.call.remote() for _ in range(200)])
    before, count = ray.get(actor.cpu.remote()), 5000
    for _ in range(count // 10):
        ray.get([actor.call.remote() for _ in range(10)])
    seconds: float = (ray.get(actor.cpu.remote()) - before) / count
    ray.shutdown()
    return seconds


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--per-message", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    services: dict[str, Callable[[int], Any]] = {"pool": pool, "buffer": buffer}
    rows = []
    for count in given.per_message:
        seconds = [asyncio.run(service(count)) for service in services.values()]
        rows.append([str(count), *(f"{1e6 * one:,.0f} us, {1 / one:,.0f}" for one in seconds)])
    names = [f"{name}: a game, games a second" for name in services]
    print_table(["games a message", *names], rows)
    if given.ray:
        print(f"an empty call: {1e6 * empty_call():,.0f} us")


if __name__ == "__main__":
    main()
