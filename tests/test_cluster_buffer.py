"""The buffer of a cluster stores every game once and keeps every batch until it is learned, despite kills."""

import asyncio
import base64
import contextlib
import json
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster_overlaps import game
from file_limits import nearly_full_disk
from sparring.collection.buffer import BufferService, Demand, FinishedGame, PackedGames
from sparring.collection.buffers import EpisodeBuffer, StepBuffer
from sparring.collection.rollout_log import RolloutLog
from sparring.collection.serialization import PackedRecords
from sparring.collection.transforms import ComposeFinalRewardTransforms, RoleAdvantageByEnvFormatter
from sparring.core import InputError, Rollout, SparringError, TrainingRecord

LOOP = asyncio.new_event_loop()


def service(directory=None, kind: type = StepBuffer, **options) -> BufferService:
    baseline = ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter(tau=0.1)])
    place = None if directory is None else str(directory)
    return BufferService(kind(1000, None, baseline, seed=3), directory=place, **options)


def draw(buffer: BufferService, update: int, demand: Demand):
    return LOOP.run_until_complete(buffer.draw(update, demand, wait=0.0))


def test_a_game_that_is_sent_twice_is_stored_once():
    buffer = service()
    assert buffer.add_games([game(0), game(1)])
    buffer.add_games([game(1), game(2)])
    assert buffer.counts()["added"] == 6
    assert buffer.games() == 3


def test_a_batch_is_the_same_until_it_is_learned():
    buffer = service()
    buffer.add_games([game(index) for index in range(4)])
    first = draw(buffer, 1, Demand(batch_size=3, games=4))
    buffer.add_games([game(4)])
    assert draw(buffer, 1, Demand(batch_size=3, games=4)) == first
    buffer.learned_batch(1)
    assert draw(buffer, 2, Demand(batch_size=3, games=4)) is None
    assert draw(buffer, 2, Demand(batch_size=3, entries=3)).steps != first.steps


def test_a_journal_whose_packed_games_are_damaged_is_an_error_of_every_call_that_names_it(tmp_path):
    service(tmp_path).add_games([game(0), game(1)])
    (entries,) = tmp_path.glob("entries-*.jsonl")
    whole = json.loads(entries.read_bytes())
    packed = base64.b64decode(whole["games"])
    damaged = bytes([*packed[:-9], packed[-9] ^ 1, *packed[-8:]])
    entries.write_text(json.dumps(whole | {"games": base64.b64encode(damaged).decode()}) + "\n")
    buffer = service(tmp_path)
    for call in (buffer.check, buffer.size):
        with pytest.raises(InputError, match=rf"^run directory: {tmp_path} is damaged \("):
            call()


@pytest.mark.parametrize("killed", [False, True])
def test_a_learner_that_lost_an_update_gets_a_new_batch_whose_games_are_consumed(tmp_path, killed):
    buffer = service(tmp_path)
    for update in (1, 2):
        buffer.add_games([game(2 * update), game(2 * update + 1)])
        draw(buffer, update, Demand(games=2))
        buffer.learned_batch(update)
    before = buffer.learned_batch(1)
    buffer.add_games([game(6), game(7)])
    drawn = draw(buffer, 2, Demand(games=2))
    if killed:
        buffer = service(tmp_path)
    assert draw(buffer, 2, Demand(games=2)) == drawn
    assert buffer.learned_batch(2) == before + 2
    assert draw(buffer, 2, Demand(games=2)) is None


def test_a_batch_that_no_lost_version_played_stays_when_the_learner_goes_back(tmp_path):
    """The learner was killed after it had saved update 2 and before the buffer knew of it."""
    buffer = service(tmp_path)
    for update in (1, 2):
        buffer.add_games([game(2 * update), game(2 * update + 1)])
        drawn = draw(buffer, update, Demand(games=2))
        if update == 1:
            buffer.learned_batch(1)
    counts = buffer.counts()
    assert buffer.forget_after(1) == 2
    assert draw(service(tmp_path), 2, Demand(games=2)) == drawn
    assert buffer.counts() == counts


def test_the_age_of_a_step_is_counted_by_its_policy_also_after_a_kill(tmp_path):
    """A policy without steps in an update is a version behind the run from then on."""
    demand = Demand(games=1, versions={"default": 0})
    buffer = service(tmp_path, max_staleness=0)
    buffer.add_games([game(0, 0)])
    drawn = draw(buffer, 2, demand)
    assert (len(drawn.steps), drawn.dropped) == (2, 0)
    again = service(tmp_path, max_staleness=0)
    assert draw(again, 2, demand) == drawn


def test_in_order_the_batch_does_not_depend_on_which_game_ended_first():
    def rewards(order: list[int]) -> list[float]:
        buffer = service(in_order=True)
        buffer.add_games([game(index) for index in order])
        return [step.reward for step in draw(buffer, 1, Demand(games=6)).steps]

    assert rewards([0, 1, 2, 3, 4, 5]) == rewards([5, 2, 0, 4, 1, 3])


def test_games_that_are_too_old_are_dropped_and_count_as_consumed_and_are_logged(tmp_path):
    buffer = service(max_staleness=1, rollouts=str(tmp_path))
    broken = FinishedGame(9, [], Rollout(episode_type="kuhn", id="train-00000009"), error="no such move")
    buffer.add_games([game(0, version=0), game(1, version=0), broken])
    drawn = draw(buffer, 3, Demand(games=2))
    assert (drawn.steps, drawn.dropped, drawn.games) == ([], 4, 3)
    late = FinishedGame(8, [], Rollout(episode_type="kuhn", id="train-00000008"), error="no such move")
    buffer.add_games([game(2, version=2), game(3, version=1), late])
    drawn = draw(buffer, 3, Demand(games=2))
    assert [one.id for one in RolloutLog(tmp_path).read(3)] == ["train-00000008", "train-00000009"]
    assert sorted(step.policy_version for step in drawn.steps) == [1, 1, 2, 2]
    assert buffer.counts()["dropped_stale"] == 4


def test_a_run_whose_games_fail_ends_with_the_reason_of_the_last_failure():
    buffer = service()
    buffer.add_games([game(0), game(1, error="no such move"), game(2, error="no such move")])
    with pytest.raises(SparringError, match=r"2 of 3 games failed; the last: no such move"):
        draw(buffer, 1, Demand(games=3, failed_share=0.5))


def test_a_few_evaluation_games_that_fail_do_not_end_a_run_whose_games_are_played():
    buffer = service()
    failed = [FinishedGame(index, [], error="no such move", kind="eval") for index in range(2)]
    buffer.add_games([*failed, game(0), game(1)])
    assert draw(buffer, 1, Demand(games=2, failed_share=0.5)).steps


def test_games_without_a_trainable_step_end_the_run():
    buffer = service()
    buffer.add_games([FinishedGame(0, [])])
    with pytest.raises(SparringError, match="no step of this update's games"):
        draw(buffer, 1, Demand(games=1))


def test_games_that_failed_before_a_draw_do_not_count_against_those_after_it():
    buffer, half = service(), Demand(games=2, failed_share=0.5)
    for update in (1, 2, 3):
        first = 2 * update
        buffer.add_games([game(first), game(first + 1, error="no such move")])
        assert draw(buffer, update, half).steps
        buffer.learned_batch(update)


def test_a_run_that_ended_because_of_its_games_can_be_resumed(tmp_path):
    """Games that failed or gave no step are consumed, so others may be played in their place."""
    buffer = service(tmp_path)
    buffer.add_games([game(index, error="no such move") for index in range(3)])
    with pytest.raises(SparringError, match="3 of 3"):
        draw(buffer, 1, Demand(games=3, failed_share=0.5))
    buffer = service(tmp_path)
    assert buffer.learned_batch(0) == 3
    buffer.add_games([FinishedGame(3, [])])
    with pytest.raises(SparringError, match="no step"):
        draw(buffer, 1, Demand(games=1))
    buffer = service(tmp_path)
    assert buffer.learned_batch(0) == 4
    buffer.add_games([game(4)])
    assert len(draw(buffer, 1, Demand(games=1, failed_share=0.5)).steps) == 2
    assert buffer.learned_batch(0) == 4
    assert buffer.learned_batch(1) == 5


def test_two_waiting_learners_get_the_same_batch():
    """A killed learner's request may still be waiting when the next learner makes one."""

    async def scenario():
        buffer = service()
        waiting = [asyncio.create_task(buffer.draw(1, Demand(batch_size=2, games=2), 60)) for _ in range(2)]
        await asyncio.sleep(0)
        buffer.add_games([game(0), game(1)])
        return await asyncio.gather(*waiting)

    first, second = LOOP.run_until_complete(scenario())
    assert first == second


def test_logged_games_are_written_with_their_update(tmp_path):
    buffer = service(rollouts=str(tmp_path / "rollouts"))
    shown = FinishedGame(1, game(1).trajectories, Rollout(episode_type="kuhn", id="train-00000001"))
    buffer.add_games([game(2, error="it broke"), shown, game(0)])
    draw(buffer, 1, Demand(games=3))
    log = RolloutLog(tmp_path / "rollouts").read(1)
    assert [rollout.error for rollout in log] == [None, "it broke"]


def test_a_call_that_waits_for_a_batch_fails_if_none_will_come():
    async def scenario():
        buffer = service()
        waiting = asyncio.create_task(buffer.draw(1, Demand(games=1), wait=60))
        await asyncio.sleep(0)
        buffer.fail("an engine is lost")
        return await waiting

    with pytest.raises(SparringError, match="an engine is lost"):
        LOOP.run_until_complete(scenario())


def test_games_that_arrive_pickled_together_are_in_the_journal_once(tmp_path):
    buffer = service(tmp_path)
    for first in (0, 1):
        buffer.add_games(pickle.loads(pickle.dumps(PackedGames([game(first), game(first + 1)]))))
    again = service(tmp_path)
    assert again.games() == buffer.games() == 3
    assert again.state.state_dict() == buffer.state.state_dict()


@pytest.mark.parametrize("learned", [False, True])
def test_info_that_json_does_not_have_is_saved_as_its_text(tmp_path, learned):
    buffer = service(tmp_path)
    odd = game(0)
    odd.trajectories[0].steps[0].info |= {"board": {(0, 1): "x"}, "piece": complex(1, 2)}
    buffer.add_games([odd])
    if learned:
        buffer.learned_batch(1)
    (first, _) = draw(service(tmp_path), 2, Demand(games=1)).steps
    assert first.info["piece"] == "(1+2j)"
    assert list(first.info["board"].values()) == ["x"]


@pytest.mark.parametrize("kind", [StepBuffer, EpisodeBuffer])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_large_snapshot_is_written_beside_the_service_and_restores_it(tmp_path, kind, in_order):
    buffer = service(tmp_path, kind, in_order=in_order)
    buffer.add_games([game(index) for index in range(400)])
    assert len(draw(buffer, 1, Demand(batch_size=100, games=400)).steps) >= 100
    buffer.add_games([game(index) for index in range(400, 800)])
    buffer.learned_batch(1)  # begins the snapshot
    buffer.add_games([game(index) for index in range(800, 900)])
    drawn = draw(buffer, 2, Demand(batch_size=150, games=100))
    while not any(tmp_path.glob("snapshot-*.json")):
        pass
    again = service(tmp_path, kind, in_order=in_order)
    assert draw(again, 2, Demand(games=1)) == drawn
    assert again.counts() == buffer.counts()
    assert again.games() == 900


def test_a_batch_is_sent_as_msgpack_in_which_numbers_of_other_libraries_stay_numbers(tmp_path):
    buffer = service(tmp_path)
    odd = game(0)
    odd.trajectories[0].steps[0].info |= {"moves": np.int64(3), "score": np.float32(0.5)}
    buffer.add_games([odd])
    drawn = draw(buffer, 1, Demand(games=1))
    drawn.steps[0].reward = np.float32(0.25)
    packed = pickle.dumps(drawn)
    assert b"Step" not in packed  # no class but that of the batch is pickled
    sent = pickle.loads(packed)
    assert type(sent.steps[0].reward) is float
    assert sent.steps[0].reward == 0.25
    assert sent.steps[0].info["moves"] == 3
    assert sent.steps[0].info["score"] == 0.5


def test_records_for_a_learner_are_sent_as_msgpack_and_are_the_same_there():
    record = TrainingRecord(
        role_id="player_0",
        rollout_id="train-1",
        prompt_token_ids=[1, 2],
        completion_token_ids=[3],
        logprobs=[-0.5],
        reward=1.0,
        advantage=0.25,
        alternatives=[[4, 5]],
        policy_version=7,
        meta={"pid": 0},
    )
    sent = pickle.dumps(PackedRecords({"default": [record]}))
    assert pickle.loads(sent) == {"default": [record]}
    assert b"TrainingRecord" not in sent


CALLS = st.lists(st.sampled_from(["add", "add", "add", "draw", "learned", "again"]), max_size=30)


@given(
    calls=CALLS,
    seed=st.integers(0, 1000),
    kills=st.sets(st.integers(0, 30), max_size=5),
    kind=st.sampled_from([StepBuffer, EpisodeBuffer]),
    in_order=st.booleans(),
    torn=st.booleans(),
)
def test_a_killed_buffer_is_restored(tmp_path_factory, calls, seed, kills, kind, in_order, torn):
    def run(kills: set[int]) -> tuple:
        directory = tmp_path_factory.mktemp("buffer")
        options = {"kind": kind, "in_order": in_order, "max_staleness": 2}
        buffer = service(directory, **options)
        rng = random.Random(seed)
        index, update, drawn, to_learn = 0, 1, [], False
        for place, call in enumerate(calls):
            if call == "add":
                buffer.add_games([game(index + i, version=update - 1) for i in range(rng.randrange(1, 4))])
                index = buffer.games()
            elif call == "again" and index:
                buffer.add_games([game(rng.randrange(index))])
            elif call == "draw":
                with contextlib.suppress(SparringError):  # a clear leaves nothing
                    batch = draw(buffer, update, Demand(batch_size=rng.randrange(1, 6), games=2))
                    drawn.append(None if batch is None else batch.steps)
                    to_learn = batch is not None and bool(batch.steps)
            elif call == "learned" and to_learn:
                buffer.learned_batch(update)
                update, to_learn = update + 1, False
            if place in kills:
                if torn:
                    entries = max(directory.glob("entries-*.jsonl"), default=None)
                    if entries is not None:
                        with entries.open("ab") as file:
                            file.write(b'["add_games",[{"ind')
                buffer = service(directory, **options)
        return drawn, buffer.counts(), buffer.games(), buffer.state.state_dict()["buffer"]["transforms"]

    assert run(kills) == run(set())


ROOM = st.none() | st.integers(0, 60)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["add", "draw", "learned"]), ROOM), max_size=12),
    in_order=st.booleans(),
)
@example(calls=[("add", 20), ("add", None)], in_order=False)
def test_a_disk_that_fills_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path_factory, calls, in_order):
    directory = tmp_path_factory.mktemp("buffer")
    buffer = service(directory, in_order=in_order)
    update = 1
    for place, (call, room) in enumerate(calls):
        with nearly_full_disk(directory, room), contextlib.suppress(OSError, SparringError):
            if call == "add":
                buffer.add_games([game(2 * place), game(2 * place + 1)])
            elif call == "draw":
                draw(buffer, update, Demand(batch_size=2, games=2))
            else:
                buffer.learned_batch(update)
                update += 1
        again = service(directory, in_order=in_order)
        assert again.state.state_dict() == buffer.state.state_dict()
        assert draw(again, update, Demand()) == draw(buffer, update, Demand())


def test_a_reward_that_is_not_a_number_is_rejected_and_not_stored(tmp_path):
    buffer = service(tmp_path)
    broken = game(0)
    broken.trajectories[0].final_reward = math.nan
    with pytest.raises(SparringError, match="nan"):
        buffer.add_games([broken])
    assert service(tmp_path).games() == 0
