"""Play and learning at the same time, with a simulated engine and learner on virtual time; no Ray."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_overlaps import Cluster, answer, run_on_virtual_time
from ray_simulation import (
    RestartingHandle,
    SimulatedHost,
)
from sparring.cluster.engines.service import EngineService
from sparring.collection.buffers import EpisodeBuffer, StepBuffer


class UnevenHost(SimulatedHost):
    """Needs a different time for every call."""

    async def complete(self, request):
        await asyncio.sleep((request.call.seed or 0) % 7)
        return await super().complete(request)


def test_games_that_begin_together_and_end_one_after_the_other_are_all_learned(tmp_path):
    cluster = Cluster(tmp_path, games=6, staleness=0, move_seconds=0.1, learn_seconds=0.5)
    cluster.engine = RestartingHandle(lambda: EngineService(UnevenHost(0.1, answer)))
    cluster.collectors = [cluster._collector("Collector-0")]
    run_on_virtual_time(asyncio.wait_for(cluster.run(3), 1000.0))
    cluster.check(3)


SECONDS = st.floats(0.001, 20.0)


@settings(max_examples=6, deadline=None)
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


@settings(max_examples=4, deadline=None)
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
