"""The collector plays real Kuhn poker with mock answers: nothing is lost, nothing is counted twice."""

import asyncio
import json

import pytest

from collectors import DICE, FlakyClient, Playing, answer
from live_server import engine_over
from sparring.collection.buffer_state import Demand
from sparring.collection.collector import Collector
from sparring.core import InputError, MockInferenceClient, SparringError
from sparring.learn.policy import TRAINED
from sparring.population import SamplingRule
from sparring.run.progress import account_lines
from tiny_models import tiny_policy


async def test_lockstep_takes_games_in_by_job_whatever_finishes_first():
    few, many = (Playing(FlakyClient(), games=40, concurrency=most) for most in (2, 50))
    first, second = await few.collect(), await many.collect()
    assert [one.rollout.id for one in first] == [f"train-{index:08d}" for index in range(40)]
    assert [one.rollout.extras for one in first] == [one.rollout.extras for one in second]
    assert few.pool.state_dict() == many.pool.state_dict()
    assert await few.acts() == await many.acts()


async def test_a_failed_game_is_tried_again_and_leaves_no_trace():
    smooth = Playing(FlakyClient())
    bumpy = Playing(FlakyClient(fails=lambda call: call % 10 == 3), retries=20)
    await smooth.collect()
    await bumpy.collect()
    assert bumpy.accounts["retried"] > 0
    assert bumpy.accounts["failed"] == 0
    assert await smooth.acts() == await bumpy.acts()


async def test_games_that_keep_failing_cost_themselves_only():
    playing = Playing(FlakyClient(fails=lambda call: call % 4 == 0), games=60, retries=0)
    played = await playing.collect()
    accounts = playing.accounts
    assert 0 < accounts["failed"] < 60
    assert accounts["started"] == 60 == accounts["finished"] + accounts["failed"]
    reasons = {one.rollout.error.split(" in ")[0] for one in played if one.rollout.error}
    assert reasons == {"FlakyClient.complete failed: ConnectionError('the line went dead')"}
    trained = {rollout_id for rollout_id, *_ in await playing.acts()}
    assert trained == {one.rollout.id for one in played if one.rollout.error is None}


@pytest.mark.parametrize("mode", ["mirror", "meta-nash"])
async def test_too_many_failures_of_any_kind_stop_the_run_with_their_reason(mode):
    fails = {"mirror": lambda options: True, "meta-nash": lambda options: options["model"] != "default"}[mode]

    class Failing(MockInferenceClient):
        async def complete(self, messages, *args, **options):
            if fails(options):
                raise ConnectionError("the line went dead")
            return await super().complete(messages, *args, **options)

    rule = SamplingRule(payoff_games=2, mirror_share=1.0)
    playing = Playing(Failing(answer), games=8, retries=1, mode=mode, fixed=("other",), rule=rule)
    await playing.collect()
    games = 8 if mode == "mirror" else 2
    with pytest.raises(SparringError, match=rf"{games} of {games} games failed; the last: .*went dead"):
        await playing.ingest.draw(1, Demand(games=0, failed_share=0.5))


async def test_an_error_in_the_users_input_cancels_the_other_games():
    class WrongClient(MockInferenceClient):
        ended = 0

        async def complete(self, messages, *args, **options):
            self.calls += 1
            if self.calls == 4:
                raise InputError("model", "there is no such model", "Name another")
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1

    client = WrongClient(answer)
    with pytest.raises(InputError, match="there is no such model"):
        await Playing(client, concurrency=8).collect()
    assert client.ended == client.calls - 1 > 6


def stored(playing):
    return playing.ingest.state.buffer.size()


async def test_a_stream_keeps_its_games_in_flight_between_calls():
    playing = Playing(FlakyClient(), concurrency=8, in_lockstep=False)
    await playing.collect_until(lambda: stored(playing) >= 10)
    assert 0 < playing.service.accounts()["in_flight"] < 8
    before = playing.accounts["started"]
    await playing.collect_until(lambda: stored(playing) >= 40)
    await playing.collector.drain()
    assert playing.accounts["started"] > before
    assert playing.service.accounts()["in_flight"] == 0
    ids = [rollout_id for rollout_id, *_ in await playing.acts()]
    assert len(set(ids)) == playing.accounts["finished"]


async def test_games_an_opponents_invalid_move_decided_can_be_left_out():
    async def only_opponents_fail(messages, *args, **options):
        text = "mumble" if options["model"] == "other" else answer(messages, options["seed"])
        return await MockInferenceClient([text]).complete(messages, *args, **options)

    client = MockInferenceClient(answer)
    client.complete = only_opponents_fail
    kept = Playing(client, mode="fixed", fixed=["other"])
    left_out = Playing(client, mode="fixed", fixed=["other"], filter_opponent_invalid=True)
    await kept.collect()
    await left_out.collect()
    assert kept.accounts["filtered"] == 0
    assert left_out.accounts["filtered"] > 0
    assert left_out.ingest.size() < kept.ingest.size()


async def test_games_that_a_move_made_raise_are_finished_lost_and_counted_by_kind():
    playing = Playing(MockInferenceClient([f"[bid: {'9' * 5000}, 2]"]), games=3, env=DICE)
    played = await playing.collect()
    assert [one.rollout.error for one in played] == [None] * 3
    assert playing.accounts["raised ValueError"] == 3
    assert (playing.accounts["finished"], playing.accounts["failed"]) == (3, 0)
    last = [one.rollout.steps[-1] for one in played]
    assert [step.reward for step in last] == [-1.0] * 3
    assert account_lines(playing.service.accounts())[-1].endswith(": 3 ValueError")


async def test_a_game_whose_prompt_outgrows_the_context_fails_once_and_is_counted_by_its_reason():
    engine = engine_over(tiny_policy())
    engine.publish("default", TRAINED, 0)
    playing = Playing(engine, games=3, evaluations=1, fixed=("random",))
    played = await playing.collect()
    assert all("exceed the context of 256" in one.rollout.error for one in played)
    assert (playing.accounts["failed"], playing.accounts["eval_failed"]) == (3, 1)
    assert playing.accounts["retried"] == 0
    assert playing.accounts["failed ContextError"] == 4
    lines = account_lines(playing.service.accounts())
    assert "failed, by type of error: 4 ContextError" in lines


async def test_against_an_opponent_one_seat_is_trained_and_both_are_rated():
    collector = Playing(MockInferenceClient(answer), games=40, mode="fixed", fixed=["random"])
    played = await collector.collect()
    seats = [one.job.spec.trained_pids for one in played]
    assert {tuple(seat) for seat in seats} == {(0,), (1,)}
    assert {step.pid for one in played for step in one.rollout.steps} == {0, 1}
    ratings = {opponent.uid: opponent for opponent in collector.pool.opponents()}
    assert ratings["fixed-random"].games == ratings["default"].games == 40
    assert ratings["ckpt-0"].games == 0


async def test_the_policy_meets_its_own_frozen_copy_and_each_is_rated():
    asked = set()

    async def watched(messages, *args, **options):
        asked.add(options["model"])
        text = answer(messages, options["seed"])
        return await MockInferenceClient([text]).complete(messages, *args, **options)

    client = MockInferenceClient(answer)
    client.complete = watched
    collector = Playing(client, games=30, mode="random")
    played = await collector.collect()
    assert {frozenset(one.job.uids) for one in played} == {frozenset({"default", "ckpt-0"})}
    assert {(one.job.meta.ckpt_uid, one.job.meta.opponent_uid) for one in played} == {("default", "ckpt-0")}
    assert {one.job.uids[one.job.meta.player_id] for one in played} == {"default"}
    assert {one.job.meta.player_id for one in played} == {0, 1}
    assert asked == {"default", "base"}, "a checkpoint without a path is the untrained model"
    ratings = {opponent.uid: opponent.rating for opponent in collector.pool.opponents()}
    assert ratings["default"] != ratings["ckpt-0"]
    assert collector.pool.matches.record("default", "ckpt-0").games == 30


async def test_evaluation_games_rotate_seats_and_train_no_seat():
    collector = Playing(MockInferenceClient(answer), games=0, evaluations=6, fixed=["random"])
    played = await collector.collect()
    assert [one.job.meta.player_id for one in played] == [0, 1, 0, 1, 0, 1]
    assert collector.ingest.size() == 0
    assert (collector.accounts["eval_finished"], collector.accounts["started"]) == (6, 0)


async def test_games_go_on_where_a_checkpoint_left_them_and_none_is_lost():
    whole = Playing(FlakyClient(), concurrency=8, in_lockstep=False)
    await whole.collect_until(lambda: stored(whole) >= 10)
    saved = json.loads(json.dumps(whole.service.state.whole_state()))
    resumed = Playing(FlakyClient(), concurrency=8, in_lockstep=False)
    resumed.service.state.load_state_dict(saved)
    resumed.service.register(Collector.NAME, resumed.settings)
    await resumed.collect_until(lambda: stored(resumed) >= 40)
    await resumed.collector.drain()
    accounts = resumed.accounts
    assert accounts["finished"] == accounts["started"] > whole.accounts["started"]
    assert resumed.service.accounts()["replayed"] == whole.service.accounts()["in_flight"] > 0
    learned = {rollout_id for one in (whole, resumed) for rollout_id, *_ in await one.acts()}
    assert learned == {f"train-{index:08d}" for index in range(accounts["finished"])}
