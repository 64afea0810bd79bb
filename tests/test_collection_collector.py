"""The collector plays real Kuhn poker with mock answers: nothing is lost, nothing is counted twice."""

import asyncio
import json

import pytest

from live_server import engine_over
from selfplay.collection.accounts import failure_lines, raised_lines
from selfplay.collection.collector import Collector
from selfplay.collection.scheduler import EnvSpec, GameScheduler
from selfplay.core import Arena, InputError, MockInferenceClient, Role, SelfplayError
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.templates import get_template
from selfplay.learning.policy import TRAINED
from selfplay.population import ModelPool, UniformRandomEnvSampler
from selfplay.record import Tracker
from selfplay.replay import StepBuffer
from tiny_models import tiny_policy

KUHN = EnvSpec("kuhn", "kuhn_poker", 2)
DICE = EnvSpec("dice", "LiarsDice-v0-train", 2)


def answer(messages, seed):
    """A legal move, drawn by the seed."""
    legal = ("fold", "call") if "fold" in messages[-1]["content"] else ("check", "bet")
    return legal[seed % 2]


class FlakyClient(MockInferenceClient):
    """Answers after a time that depends on the seed, and fails every so often."""

    def __init__(self, fails=lambda call: False, responses=answer):
        super().__init__(responses)
        self.fails = fails

    async def complete(self, messages, *args, **options):
        for _ in range(options["seed"] % 7):
            await asyncio.sleep(0)
        if self.fails(self.calls):
            self.calls += 1
            raise ConnectionError("the line went dead")
        return await super().complete(messages, *args, **options)


def make_collector(client, *, mode="mirror", fixed=(), retries=2, env=KUHN, rule=None, **options):
    pool = ModelPool(mode, 4, rule=rule)
    pool.add_policy()
    pool.add_checkpoint(None, 0)
    for name in fixed:
        pool.add_fixed(name, kind="script" if name == "random" else "fixed")
    evaluation = [(KUHN, f"fixed-{name}") for name in fixed]
    environments = UniformRandomEnvSampler([env])
    scheduler = GameScheduler(
        pool, environments, evaluation=evaluation, seed=5, temperature=1.0, max_tokens=4
    )
    arena = Arena(client, retries=retries)
    arena.add_episode("kuhn", GameEpisode("kuhn_poker", 2, get_template("fewshot-chat")))
    arena.add_episode("dice", GameEpisode("LiarsDice-v0-train", 2, get_template("fewshot-chat")))
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}"))
    buffer = StepBuffer(100_000)
    options = {"concurrency": 16} | options
    return Collector(arena, scheduler, buffer, pool, Tracker("test"), **options)


def acts(collector):
    steps = collector.buffer.get_batch(collector.buffer.size())
    return [(step.info["rollout_id"], step.pid, step.act, step.reward) for step in steps]


async def test_lockstep_takes_games_in_by_job_whatever_finishes_first():
    few, many = make_collector(FlakyClient(), concurrency=2), make_collector(FlakyClient(), concurrency=50)
    first, second = await few.collect(40), await many.collect(40)
    assert [one.rollout.id for one in first] == [f"train-{index:08d}" for index in range(40)]
    assert [one.rollout.extras for one in first] == [one.rollout.extras for one in second]
    assert acts(few) == acts(many)


async def test_a_failed_game_is_tried_again_and_leaves_no_trace():
    smooth = make_collector(FlakyClient())
    bumpy = make_collector(FlakyClient(fails=lambda call: call % 10 == 3), retries=20)
    await smooth.collect(30)
    await bumpy.collect(30)
    assert bumpy.accounts.retried > 0
    assert bumpy.accounts.failed == 0
    assert acts(smooth) == acts(bumpy)


async def test_games_that_keep_failing_cost_themselves_only():
    collector = make_collector(
        FlakyClient(fails=lambda call: call % 4 == 0), retries=0, max_failed_fraction=1
    )
    played = await collector.collect(60)
    accounts = collector.accounts
    assert 0 < accounts.failed < 60
    assert accounts.started == 60 == accounts.finished + accounts.failed
    reasons = {one.rollout.error.split(" in ")[0] for one in played if one.rollout.error}
    assert reasons == {"FlakyClient.complete failed: ConnectionError('the line went dead')"}
    trained = {rollout_id for rollout_id, *_ in acts(collector)}
    assert trained == {one.rollout.id for one in played if one.rollout.error is None}


async def test_too_many_failures_stop_the_run_with_their_reason():
    collector = make_collector(FlakyClient(fails=lambda call: True), retries=1)
    played = await collector.collect(8)
    with pytest.raises(SelfplayError, match=r"8 of 8 games failed; the last: .*the line went dead"):
        collector.stop_if_broken(played)


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
        await make_collector(client, concurrency=8).collect(20)
    assert client.ended == client.calls - 1 > 6


async def test_a_stream_keeps_its_games_in_flight_between_calls():
    collector = make_collector(FlakyClient(), concurrency=8)
    await collector.collect_until(lambda: collector.buffer.size() >= 10)
    assert 0 < collector.accounts.in_flight < 8
    before = collector.accounts.started
    await collector.collect_until(lambda: collector.buffer.size() >= 40)
    await collector.drain()
    assert collector.accounts.started > before
    assert collector.accounts.in_flight == 0
    ids = [rollout_id for rollout_id, *_ in acts(collector)]
    assert len(set(ids)) == collector.accounts.finished


async def test_games_an_opponents_invalid_move_decided_can_be_left_out():
    async def only_opponents_fail(messages, *args, **options):
        text = "mumble" if options["model"] == "other" else answer(messages, options["seed"])
        return await MockInferenceClient([text]).complete(messages, *args, **options)

    client = MockInferenceClient(answer)
    client.complete = only_opponents_fail
    kept = make_collector(client, mode="fixed", fixed=["other"])
    left_out = make_collector(client, mode="fixed", fixed=["other"], filter_opponent_invalid=True)
    await kept.collect(20)
    await left_out.collect(20)
    assert kept.accounts.filtered == 0
    assert kept.buffer.size() > 0
    assert left_out.accounts.filtered > 0
    assert left_out.buffer.size() < kept.buffer.size()


async def test_games_that_a_move_made_raise_are_finished_lost_and_counted_by_kind():
    collector = make_collector(MockInferenceClient([f"[bid: {'9' * 5000}, 2]"]), env=DICE)
    played = await collector.collect(3)
    assert [one.rollout.error for one in played] == [None] * 3
    assert collector.accounts.raised == {"ValueError": 3}
    assert collector.accounts.figures()["raised ValueError"] == 3
    assert (collector.accounts.finished, collector.accounts.failed) == (3, 0)
    last = [one.rollout.steps[-1] for one in played]
    assert [step.reward for step in last] == [-1.0] * 3
    assert raised_lines(collector.accounts.figures())[0].endswith(": 3 ValueError")
    resumed = make_collector(MockInferenceClient(answer))
    resumed.restore_accounts(json.loads(json.dumps(collector.accounts.to_dict())))
    assert resumed.accounts.raised == {"ValueError": 3}


async def test_a_game_whose_prompt_outgrows_the_context_fails_once_and_is_counted_by_its_reason():
    engine = engine_over(tiny_policy())
    engine.publish("default", TRAINED, 0)
    collector = make_collector(engine, fixed=("random",), max_failed_fraction=1)
    played = await collector.collect(3, 1)
    assert all("exceed the context of 256" in one.rollout.error for one in played)
    assert (collector.accounts.failed, collector.accounts.eval_failed) == (3, 1)
    assert collector.accounts.retried == 0
    figures = collector.accounts.figures()
    assert figures["failed ContextError"] == 4
    assert failure_lines(figures) == ["failed, by type of error: 4 ContextError"]
    resumed = make_collector(engine)
    resumed.restore_accounts(json.loads(json.dumps(collector.accounts.to_dict())))
    assert resumed.accounts.figures()["failed ContextError"] == 4


async def test_against_an_opponent_one_seat_is_trained_and_both_are_rated():
    collector = make_collector(MockInferenceClient(answer), mode="fixed", fixed=["random"])
    played = await collector.collect(40)
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
    collector = make_collector(client, mode="random")
    played = await collector.collect(30)
    assert {frozenset(one.job.uids) for one in played} == {frozenset({"default", "ckpt-0"})}
    assert {(one.job.meta.ckpt_uid, one.job.meta.opponent_uid) for one in played} == {("default", "ckpt-0")}
    assert {one.job.uids[one.job.meta.player_id] for one in played} == {"default"}
    assert {one.job.meta.player_id for one in played} == {0, 1}
    assert asked == {"default", "base"}, "a checkpoint without a path is the untrained model"
    ratings = {opponent.uid: opponent.rating for opponent in collector.pool.opponents()}
    assert ratings["default"] != ratings["ckpt-0"]
    assert collector.pool.matches.record("default", "ckpt-0").games == 30


async def test_evaluation_games_rotate_seats_and_train_no_seat():
    collector = make_collector(MockInferenceClient(answer), fixed=["random"])
    played = await collector.collect(0, eval_games=6)
    assert [one.job.meta.player_id for one in played] == [0, 1, 0, 1, 0, 1]
    assert collector.buffer.size() == 0
    assert (collector.accounts.eval_finished, collector.accounts.started) == (6, 0)


async def test_jobs_go_on_where_a_checkpoint_left_them():
    whole = make_collector(MockInferenceClient(answer))
    await whole.collect(10)
    second_half = await whole.collect(10)
    resumed = make_collector(MockInferenceClient(answer))
    resumed.scheduler.load_state_dict({"next_train": 10, "next_eval": 0})
    assert [one.rollout.extras for one in await resumed.collect(10)] == [
        one.rollout.extras for one in second_half
    ]


async def test_games_in_flight_at_a_checkpoint_never_started():
    collector = make_collector(FlakyClient(), concurrency=8)
    await collector.collect_until(lambda: collector.buffer.size() >= 10)
    resumed = make_collector(FlakyClient())
    resumed.restore_accounts(collector.accounts.to_dict())
    assert resumed.accounts.in_flight == 0
    assert resumed.accounts.finished == collector.accounts.finished
    await collector.drain()
