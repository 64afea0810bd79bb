"""A run of games whose newest update is damaged continues from the previous one without a trace of it."""

import asyncio
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from cluster_overlaps import (
    GAMES,
    PLAY,
    Cluster,
    Services,
    run_on_virtual_time,
)
from game_runs import configure
from matrices import first_of
from sparring.cluster import games as cluster_games
from sparring.collection import read_metrics
from sparring.collection.buffer import Demand
from sparring.collection.buffers import EpisodeBuffer, StepBuffer
from sparring.collection.local_handle import LocalHandle
from sparring.config import Config
from sparring.core import SparringError
from sparring.run.game_source import BatchInBuffer


@pytest.fixture
def config(model) -> Config:
    return configure(
        model,
        learning__steps="4",
        learning__average_decay="0.5",
        learning__max_mismatch="100",
        collection__games_per_step=str(GAMES),
        population__sample_mode="random",
        population__add_every="1",
        evaluation__every="1",
        run__save_every="1",
        run__keep_best="made-up",
    )


def steps(directory: Path) -> list[int]:
    """Return the numbers of the entries in a directory, without those that were set aside."""
    return sorted({int(path.name.split(".")[0].split("-")[1]) for path in directory.glob("[a-z]*")})


async def three_updates(config: Config, path: Path) -> Services:
    run = Services(config, path)
    await run.train(3)
    run.pool.push_match(3, 1000, [("ckpt-3", "ckpt-2", 1.0, "kuhn_poker")])
    return run


async def test_no_copies_join_the_pool_in_a_mode_that_draws_none(config, tmp_path):
    mirror = config.population.model_copy(update={"sample_mode": "mirror"})
    run = Services(config.model_copy(update={"population": mirror}), tmp_path / "run")
    await run.train(2)
    assert run.copies() == []


def damage_update_3(path: Path) -> None:
    (path / "learner" / "000003" / "state.json").write_text("{")


async def resumed(config: Config, path: Path, updates: int = 0) -> Services:
    run = Services(config, path)
    await run.train(updates)
    return run


async def test_nothing_of_a_lost_update_remains(config, tmp_path):
    path = tmp_path / "run"
    await three_updates(config, path)
    stopped = Services(config, path)
    await stopped.play(3)
    await stopped.buffer.draw(4, Demand(games=GAMES))
    stopped.directory.unlock()
    damage_update_3(path)
    again = await resumed(config, path)
    assert "continuing from 000002" in again.said.getvalue()
    for kind in ("evaluation", "checkpoints"):
        assert steps(path / kind) == [0, 1, 2], kind
    assert steps(path / "best") == [1, 2]
    assert steps(path / "batches") == steps(path / "rollouts") == [1, 2]
    for name in ("metrics.jsonl", "standings.jsonl"):
        assert [line["step"] for line in read_metrics(path / name)] == [1, 2], name
    assert again.copies() == ["ckpt-0", "ckpt-1", "ckpt-2"]
    assert again.pool.current_uid() == "ckpt-2"
    assert again.pool.weights.adapters["default"].path == str(path / "versions" / "000002")
    assert again.pool.pool.matches.record("ckpt-2", "ckpt-3").games == 0


async def test_a_lost_update_is_made_again_as_if_for_the_first_time(config, tmp_path):
    path = tmp_path / "run"
    lost = await three_updates(config, path)
    lost_average = load_file(path / "averages" / "000003" / "adapter_model.safetensors")
    assert lost.evaluated() == 4
    damage_update_3(path)
    again = await resumed(config, path, updates=3)
    for kind in ("evaluation", "checkpoints"):
        assert steps(path / kind) == [0, 1, 2, 3], kind
    for kind in ("batches", "rollouts"):
        assert steps(path / kind) == [1, 2, 3], kind
    lines = read_metrics(path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[-1]["learner/samples_seen"] == lines[-1]["accounts/consumed"] * 2 - 4
    assert again.evaluated() == 5, "the new evaluation is rated too"
    (copy,) = [one for one in again.pool.pool.opponents() if one.uid == "ckpt-3"]
    assert (copy.games, copy.path_or_name) == (0, "averages/000003")
    average = load_file(path / "averages" / "000003" / "adapter_model.safetensors")
    assert any((average[name] != lost_average[name]).any() for name in average), "of other games"
    for place in ("best", "checkpoints"):
        found = load_file(path / place / "step-000003" / "adapter_model.safetensors")
        assert all(torch.equal(found[name], average[name]) for name in average), place


async def test_the_standings_of_an_update_are_logged_before_the_games_that_follow_it(config, tmp_path):
    run = Services(config, tmp_path / "run")

    async def play(version: int) -> None:
        await run.play(version)
        games = [("default", f"ckpt-{version}", 1.0, "kuhn_poker")] * (version + 1)
        run.pool.push_match(version, 1000, games)

    run.before_play = play
    await run.train(3)
    lines = read_metrics(tmp_path / "run" / "standings.jsonl")
    found = [[(*pair[:2], pair[-1]) for pair in line["pairs"] if pair[0] == "default"] for line in lines]
    assert found == [[("default", f"ckpt-{version}", version + 1)] for version in range(3)]
    evaluated = [pair[-1] for line in lines for pair in line["pairs"] if pair[0] == "average"]
    assert evaluated == [1, 2, 3], "an evaluation is in the line of the next update"


@pytest.mark.parametrize(
    "drawn", first_of([True, False]), ids=["the next batch is drawn", "its games are stored"]
)
async def test_a_run_that_lost_an_update_plays_its_games_again_within_the_pools_allowance(
    config, tmp_path, drawn
):
    async def by_the_pool(run: Services, updates: int) -> None:
        async def play(version: int) -> None:
            assert await run.play_what_may_start(version) == GAMES

        run.before_play = play
        await run.train(updates)

    path = tmp_path / "run"
    await by_the_pool(Services(config, path), 3)
    stopped = Services(config, path)
    assert await stopped.play_what_may_start(3) == GAMES
    if drawn:
        await stopped.buffer.draw(4, Demand(games=GAMES), wait=0.0)
    stopped.directory.unlock()
    damage_update_3(path)
    await resumed(config, path)
    again = Services(config, path)
    assert again.buffer.counts() == {
        "added": 8 * 2,
        "stored": 0,
        "evicted": 0,
        "dropped_stale": 0,
        "sampled": 6 * 2,
        "cleared": 2 * 2,
    }
    await by_the_pool(again, 4)
    lines = read_metrics(path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["overlap/staleness_0"] for line in lines] == [1.0, 1.0, 1.0, 1.0]
    assert again.pool.accounts()["consumed"] == again.buffer.games() == 12


@settings(max_examples=5, deadline=None)
@given(
    staleness=st.integers(0, 2),
    pause=st.floats(0.0, 1.5),
    kind=st.sampled_from([StepBuffer, EpisodeBuffer]),
)
def test_nothing_that_lost_weights_played_is_learned(tmp_path_factory, staleness, pause, kind):
    cluster = Cluster(
        tmp_path_factory.mktemp("run"),
        games=4,
        staleness=staleness,
        move_seconds=0.1,
        learn_seconds=0.3,
        buffer_kind=kind,
        mode="random",
    )

    async def lose_an_update() -> None:
        first = asyncio.create_task(cluster.run(7))
        while cluster.trainer.saved().step < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(pause)
        first.cancel()
        await asyncio.wait([first])
        await asyncio.sleep(1.0)
        cluster.trainer.trained.pop()
        kept = cluster.trainer.saved().step
        for service in (cluster.learner, cluster.buffer, cluster.pool):
            service.kill()
        ended = range(cluster.buffer.service.games()) if cluster.buffer.service.learned > kept else ()
        await cluster.buffer.forget_after.remote(kept)
        await cluster.pool.forget_after.remote(kept)
        consumed = await cluster.buffer.learned_batch.remote(kept)
        await cluster.pool.publish.remote(cluster.trainer.saved().weights(), consumed)
        for service in (cluster.learner, cluster.buffer, cluster.pool):
            service.kill()
        cluster.collectors = [cluster._collector("Collector-0")]
        async with asyncio.timeout(100):
            await cluster.run(7)
        trained = cluster.trainer.trained
        assert len(trained) == 7
        for version, update in enumerate(trained):
            assert all(0 <= version - acted <= staleness for _, acted in update)
        learned_since = {rollout for update in trained[kept:] for rollout, _ in update}
        assert not learned_since & {f"train-{index:08d}" for index in ended}
        counts = cluster.buffer.service.counts()
        assert counts["added"] == sum(counts.values()) - counts["added"]
        accounts = cluster.pool.service.accounts()
        assert accounts["finished"] == accounts["started"] == cluster.buffer.service.games()

    run_on_virtual_time(lose_an_update())


async def test_a_learner_that_loses_an_update_in_the_middle_of_a_run_ends_it(config, tmp_path):
    """Engines and games still use the lost update; only a new start is without them."""
    path = tmp_path / "run"
    run = await three_updates(config, path)
    damage_update_3(path)
    await run.play(3)
    await run.buffer.ready(4, Demand(games=GAMES))
    restarted = run.new_learner()
    with pytest.raises(SparringError, match="state of update 3 is lost; a resume continues from 2"):
        await restarted.update(4, BatchInBuffer(lambda: run.actors.buffer, 4), {})
    await resumed(config, path, updates=3)


class Failing:
    """A collector that cannot play."""

    async def collect(self, *workers: int) -> None:
        raise SparringError("the adapter is not the one that the learner wrote")


async def with_a_game_in_flight(config: Config, path: Path, *, updates: int) -> Services:
    """Return the next start of a run that was killed while a game of the next update was played."""
    await resumed(config, path, updates)
    killed = Services(config, path)
    killed.pool.resume()
    killed.pool.register("Collector-0", PLAY)
    await killed.pool.next_jobs("Collector-0", 1, 1, 0, wait=0.0)
    killed.directory.unlock()
    run = Services(config, path)
    assert run.pool.accounts()["in_flight"] == 1
    return run


async def test_a_resumed_run_whose_collector_fails_ends_although_its_games_never_do(config, tmp_path):
    run = await with_a_game_in_flight(config, tmp_path / "run", updates=2)
    run.actors.collectors[:] = [LocalHandle(Failing())]
    with pytest.raises(SparringError, match="the adapter is not the one"):
        await asyncio.wait_for(run.trainer.run(), 60)


async def test_a_run_waits_for_games_in_flight_only_as_long_as_for_a_batch(config, tmp_path):
    run = await with_a_game_in_flight(config, tmp_path / "run", updates=2)
    run.trainer.source.games.patience = 0.01
    with pytest.raises(SparringError, match=r"before update 2 have not ended in 0\.01 s"):
        await asyncio.wait_for(run.trainer.run(), 60)


async def test_a_run_that_has_all_its_updates_waits_for_no_games(config, tmp_path):
    run = await with_a_game_in_flight(config, tmp_path / "run", updates=2)
    learning = config.learning.model_copy(update={"steps": 2})
    run.directory.unlock()
    again = Services(config.model_copy(update={"learning": learning}), tmp_path / "run")
    await asyncio.wait_for(again.trainer.run(), 60)
    assert again.copies() == ["ckpt-0", "ckpt-1", "ckpt-2"]


async def test_a_run_ends_although_a_service_no_longer_answers(config, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_games, "HAND_ON_SECONDS", 0.01)
    run = Services(config, tmp_path / "run")
    monkeypatch.setattr(run.buffer, "stop", asyncio.Event().wait)
    await asyncio.wait_for(run.train(1), 60)
    assert run.learner.saved().step == 1
