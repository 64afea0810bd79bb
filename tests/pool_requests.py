"""Requests to a pool and their answers."""

import asyncio

from sparring.collection.games_in_flight import GameResult, PlaySettings
from sparring.collection.pool import PoolService
from sparring.collection.pool_state import Jobs
from sparring.collection.results import EnvSpec
from sparring.core.adapters import AdapterRef, Weights

KUHN = EnvSpec("kuhn", "kuhn_poker", 2)


LOOP = asyncio.new_event_loop()


PLAY = PlaySettings((KUHN,), (1.0,), (), 0, 1.0, 4, games_per_step=4, max_staleness=1)


def weights(step: int) -> Weights:
    return Weights(step, {"default": AdapterRef("default", step, f"v{step}")})


def ask(service: PoolService, number: int, training: int = 0, evaluation: int = 0, who: str = "c") -> Jobs:
    return LOOP.run_until_complete(service.next_jobs(who, number, training, evaluation, wait=0.0))


def won(job) -> GameResult:
    return GameResult(job.name, "finished", 0, [1.0, -1.0], ["[check]", "[bet]"])
