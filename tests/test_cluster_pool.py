"""The pool of a cluster starts every game once and ends it once, despite kills."""

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from file_limits import nearly_full_disk
from pool_requests import KUHN, LOOP, PLAY, ask, weights, won
from sparring.collection.games_in_flight import GameResult
from sparring.collection.pool import PoolService
from sparring.collection.pool_state import Jobs
from sparring.collection.results import EnvSpec
from sparring.core import InputError, SparringError
from sparring.core.adapters import AdapterRef, Weights

TTT = EnvSpec("ttt", "tic_tac_toe", 2)
WEIGHED = replace(PLAY, environments=(KUHN, TTT), weights=(1.0, 2.0), curriculum=True)


def pool(directory=None, mode: str = "mirror") -> PoolService:
    service = PoolService(mode, 2, directory=None if directory is None else str(directory))
    service.add_checkpoint(None, 0)
    service.add_fixed("random", kind="script", active=False)
    return service


def test_no_more_games_start_than_can_be_trained_on_in_time():
    service = pool()
    service.register("c", PLAY)
    assert len(ask(service, 1, 100).jobs) == 8
    assert ask(service, 2, 100).jobs == []
    service.publish(weights(1), consumed=4)
    assert len(ask(service, 3, 100).jobs) == 4


def test_a_repeated_request_gets_the_same_answer():
    service = pool()
    service.register("c", PLAY)
    first = ask(service, 1, 3)
    assert ask(service, 1, 3) == first
    assert service.accounts()["started"] == 3


def test_the_games_of_a_restarted_collector_are_handed_out_again():
    service = pool()
    service.register("c", PLAY)
    service.register("d", PLAY)
    had = ask(service, 1, 3, who="c").jobs
    ask(service, 1, 2, who="d")
    service.finish([won(had[0])])
    assert service.register("c", PLAY) == 2
    again = ask(service, 1, 2, who="d").jobs  # d's first request, answered as before
    assert [job.name for job in again] == ["train-00000003", "train-00000004"]
    assert ask(service, 2, 2, who="d").jobs == had[1:]
    assert service.accounts()["replayed"] == 2
    assert service.accounts()["started"] == 5


def test_a_game_ends_once():
    service = pool()
    service.register("c", replace(PLAY, evaluation=((KUHN, "fixed-random"),), eval_games_per_step=2))
    (job,) = ask(service, 1, 0, 1).jobs
    service.finish([won(job), won(job)])
    service.finish([won(job)])
    assert service.accounts()["eval_finished"] == 1
    assert service.pool.matches.record("default", "fixed-random").games == 1


def test_a_failed_game_is_counted_by_its_reason_also_after_a_kill(tmp_path):
    service = pool(tmp_path)
    service.register("c", PLAY)
    (job,) = ask(service, 1, 1).jobs
    service.finish([GameResult(job.name, "failed", failure="ContextError")])
    for one in (service, pool(tmp_path)):
        assert one.accounts()["failed"] == one.accounts()["failed ContextError"] == 1


@given(seed=st.integers(0, 1 << 20), cap=st.integers(1, 5), collectors=st.integers(1, 3))
def test_the_evaluation_games_of_a_checkpoint_never_exceed_their_limit(seed, cap, collectors):
    rng = random.Random(seed)
    service = pool()
    play = replace(
        PLAY,
        games_per_step=None,
        evaluation=((KUHN, "fixed-random"), (TTT, "fixed-random")),
        max_eval_games_per_ckpt=cap,
    )
    names = [f"c{number}" for number in range(collectors)]
    for name in names:
        service.register(name, play)
    games: dict[tuple[str, str], int] = {}
    lived_long = []
    for number in range(1, 40):
        jobs = ask(service, number, 0, rng.randrange(1, 8), who=rng.choice(names)).jobs
        for job in jobs:
            assert set(job.uids) == {service.current_uid(), "fixed-random"}
            key = (job.meta.ckpt_uid, job.meta.env_id)
            games[key] = games.get(key, 0) + 1
        if not jobs:
            lived_long.append(service.current_uid())
            service.add_checkpoint(f"v{number}", number)
    assert max(games.values(), default=0) <= cap
    for uid in lived_long:
        assert games[uid, "kuhn_poker"] == games[uid, "tic_tac_toe"] == cap


CALL = st.tuples(
    st.sampled_from(["ask", "finish", "publish", "checkpoint", "register", "go back"]),
    st.integers(0, 99),
)
CALLS = st.lists(CALL, max_size=40)


@given(
    calls=CALLS,
    kills=st.sets(st.integers(0, 40), max_size=6),
    mode=st.sampled_from(["mirror", "random", "meta-nash"]),
    play=st.sampled_from([PLAY, WEIGHED]),
)
def test_a_killed_pool_is_restored(tmp_path_factory, calls, kills, mode, play):
    def run(kills: set[int]) -> dict:
        directory = tmp_path_factory.mktemp("pool")
        service = pool(directory, mode)
        service.register("c", play)
        jobs, number, version = [], 0, 0
        for place, (call, value) in enumerate(calls):
            if call == "ask":
                number += 1
                jobs += ask(service, number, value % 5).jobs
            elif call == "finish" and jobs:
                service.finish([won(jobs.pop(value % len(jobs)))])
            elif call == "publish":
                version += 1
                service.publish(weights(version), 4 * version)
            elif call == "checkpoint":
                service.add_checkpoint(f"v{place}", place + 1)
            elif call == "register":
                service.register("c", play)
                number, jobs = 0, []
            elif call == "go back":
                service.forget_after(value)
            if place in kills:
                service = PoolService(mode, 2, directory=str(directory))
        return {
            "state": service.state.state_dict() | {"pool": service.pool.state_dict()},
            "games": service.accounts(),
        }

    assert run(kills) == run(set())


@given(calls=st.lists(st.tuples(CALL, st.none() | st.integers(0, 60)), max_size=12))
@example(calls=[(("ask", 2), 20), (("ask", 2), None)])
def test_a_disk_that_fills_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path_factory, calls):
    directory = tmp_path_factory.mktemp("pool")
    service = pool(directory, "random")
    service.register("c", PLAY)
    jobs = []
    for number, ((call, value), room) in enumerate(calls, 1):
        with nearly_full_disk(directory, room), contextlib.suppress(OSError):
            if call == "ask":
                jobs += ask(service, number, value % 5).jobs
            elif call == "finish" and jobs:
                service.finish([won(jobs[value % len(jobs)])])
            elif call == "publish":
                service.publish(weights(number), 4 * number)
            elif call == "checkpoint":
                service.add_checkpoint(f"v{number}", number)
            elif call == "register":
                service.register("c", PLAY)
            elif call == "go back":
                service.forget_after(value)
        assert (
            PoolService("random", 2, directory=str(directory)).state.state_dict()
            == service.state.state_dict()
        )


def test_the_pool_returns_to_older_weights_with_the_learner(tmp_path):
    service = pool(tmp_path)
    service.publish(weights(1), consumed=4)
    service.publish(weights(2), consumed=8)
    service.publish(weights(1), consumed=4)
    assert (service.weights, service.ledger.consumed) == (weights(1), 8)
    assert pool(tmp_path).weights == service.weights


@pytest.mark.parametrize("killed", [False, True])
def test_every_policy_has_its_own_weights_and_meets_copies_of_the_other(tmp_path, killed):
    both, sides = ("first", "second"), EnvSpec("kuhn", "kuhn_poker", 2, policies=("first", "second"))
    service = PoolService("random", 2, policies=both, directory=str(tmp_path))
    for policy in both:
        service.add_checkpoint(None, 0, policy)
        service.add_checkpoint(f"{policy}-v1", 1, policy)
    newest = Weights(2, {policy: AdapterRef(policy, 2, f"{policy}-v2") for policy in both})
    service.publish(newest)
    service.register("c", replace(PLAY, environments=(sides,)))
    if killed:
        service = PoolService("random", 2, policies=both, directory=str(tmp_path))
    answer = ask(service, 1, 8)
    assert answer.weights == newest
    for job in answer.jobs:
        (trained,) = job.spec.trained_pids
        assert job.uids[trained] == both[trained]
        assert job.uids[1 - trained].startswith(f"{both[1 - trained]}-ckpt-")
    copies = {uid for job in answer.jobs for uid in job.uids} & {"first-ckpt-1", "second-ckpt-1"}
    assert copies
    for uid in copies:
        assert answer.adapters[uid] == AdapterRef(uid, 1, f"{uid.partition('-')[0]}-v1")
    assert set(service.paths_in_use()) == {f"{policy}-v{version}" for policy in both for version in (1, 2)}


def test_evaluation_games_beside_training_are_played_by_trained_policies_in_turn():
    sides = EnvSpec("kuhn", "kuhn_poker(players=3)", 3, policies=("first", "fixed-teacher", "second"))
    service = PoolService("random", 2, policies=("first", "second"))
    for name in ("teacher", "rival"):
        service.add_fixed(name)
    service.register("c", replace(PLAY, environments=(sides,), evaluation=((sides, "fixed-rival"),)))
    uids = [job.uids for job in ask(service, 1, evaluation=4).jobs]
    assert uids == [("first", "fixed-rival", "fixed-rival"), ("fixed-rival", "fixed-rival", "second")] * 2


@pytest.mark.parametrize("killed", [False, True])
def test_games_against_a_checkpoint_that_is_lost_get_another_opponent(tmp_path, killed):
    service = pool(tmp_path, "random")
    for version in (1, 2):
        service.add_checkpoint(f"v{version}", version)
    service.register("c", PLAY)
    had = ask(service, 1, 8).jobs
    service.finish([won(job) for job in had[:2]])
    service.publish(weights(2))
    assert service.latest_step() == 2
    service.forget_after(1)
    service.publish(weights(1))
    if killed:
        service = PoolService("random", 2, directory=str(tmp_path))
    assert service.latest_step() == 1
    assert service.register("c", PLAY) == 6
    again = ask(service, 1, 8)
    assert any("ckpt-2" in job.uids for job in had[2:])
    assert [job.name for job in again.jobs] == [job.name for job in had[2:]]
    for new, old in zip(again.jobs, had[2:], strict=True):
        assert new == old or "ckpt-2" in old.uids
        assert "ckpt-2" not in new.uids
        assert new.uids.index("default") == old.uids.index("default")
        assert new.spec.seed == old.spec.seed
    assert "ckpt-2" not in again.adapters
    service.finish([won(job) for job in again.jobs])
    assert service.accounts()["finished"] == 8
    service.add_checkpoint("v2", 2)
    (copy,) = [one for one in service.pool.opponents() if one.uid == "ckpt-2"]
    assert copy.games == 0


def test_unregistered_collectors_and_unknown_opponents_are_rejected():
    service = pool()
    with pytest.raises(SparringError, match="not registered"):
        ask(service, 1, 1)
    with pytest.raises(InputError, match="fixed-nobody is not in the pool"):
        service.register("c", replace(PLAY, evaluation=((KUHN, "fixed-nobody"),)))
    service.register("c", PLAY)
    with pytest.raises(InputError, match="another collector has other settings"):
        service.register("d", replace(PLAY, seed=1))


def test_a_request_that_is_repeated_while_it_waits_gets_one_answer():
    """Ray repeats a call if a connection breaks, and the collector hears only one of the answers."""

    async def scenario() -> None:
        service = pool()
        service.register("c", PLAY)
        await service.next_jobs("c", 1, 8, 0)
        calls = [asyncio.create_task(service.next_jobs("c", 2, 1, 0, wait=60)) for _ in range(2)]
        await asyncio.sleep(0)
        service.publish(weights(1), consumed=4)
        first, second = await asyncio.gather(*calls)
        assert first == second
        assert len(first.jobs) == 1

    LOOP.run_until_complete(scenario())


@pytest.mark.parametrize("is_restarted", [False, True], ids=["cut off", "cut off, and the pool was killed"])
def test_a_collector_that_another_has_replaced_gets_no_games(tmp_path, is_restarted):
    """It may only have been cut off; games given to it would be lost, and their update would never end."""

    async def scenario() -> None:
        service = pool(tmp_path)
        service.register("c", PLAY, "cut off")
        had = await service.next_jobs("c", 1, 8, 0, incarnation="cut off")
        waiting = asyncio.create_task(service.next_jobs("c", 2, 1, 0, wait=60, incarnation="cut off"))
        await asyncio.sleep(0)
        assert service.register("c", PLAY, "new") == 8
        service = pool(tmp_path) if is_restarted else service
        for late in (2, 1, 3):
            answer = await service.next_jobs("c", late, 8, 0, incarnation="cut off")
            assert (answer.jobs, answer.stopped) == ([], True)
        assert (await waiting).stopped
        assert (await service.next_jobs("c", 1, 8, 0, incarnation="new")).jobs == had.jobs

    LOOP.run_until_complete(scenario())


def test_new_weights_and_the_end_of_play_wake_waiting_collectors():
    async def scenario() -> None:
        service = pool()
        service.register("c", PLAY)
        await service.next_jobs("c", 1, 8, 0)
        waiting = asyncio.create_task(service.next_jobs("c", 2, 1, 0, wait=60))
        hearing = asyncio.create_task(service.newest(0, wait=60))
        await asyncio.sleep(0)
        service.publish(weights(1), consumed=4)
        assert (await hearing).weights == weights(1)
        assert len((await waiting).jobs) == 1
        ending = asyncio.create_task(service.newest(1, wait=60))
        await asyncio.sleep(0)
        service.stop()
        assert (await ending).stopped

    LOOP.run_until_complete(scenario())


def test_a_collector_that_waits_for_evaluation_games_is_woken_when_it_can_take_training_games():
    """Otherwise a collector whose checkpoint has played its evaluation games would be idle for a while."""

    async def scenario() -> None:
        service = pool()
        service.register("c", replace(PLAY, games_per_step=None))
        service.register("d", replace(PLAY, games_per_step=None))
        mine = (await service.next_jobs("c", 1, 2, 1)).jobs
        others = (await service.next_jobs("d", 1, 1, 0)).jobs
        waiting = asyncio.create_task(service.next_jobs("c", 2, 0, 1, wait=60))
        await asyncio.sleep(0)
        service.finish([won(others[0])])
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        service.finish([won(mine[0])])
        assert (await waiting).jobs == []
        assert len((await service.next_jobs("c", 3, 1, 1)).jobs) == 1

    LOOP.run_until_complete(scenario())


@pytest.mark.parametrize(("mode", "in_use"), [("mirror", {"v3", "v4"}), ("random", {"v1", "v3", "v4"})])
def test_adapters_that_may_still_be_requested_are_in_use(mode, in_use):
    """Games in flight keep the checkpoint that they play against; other retired ones are not requested."""
    service = pool(mode=mode)
    service.register("c", PLAY)
    service.add_checkpoint("v1", 1)
    service.publish(weights(1))
    assert any("ckpt-1" in job.uids for job in ask(service, 1, 8).jobs) == (mode == "random")
    for version in (2, 3, 4):
        service.add_checkpoint(f"v{version}", version)
    service.publish(weights(4))
    assert set(service.paths_in_use()) == in_use


def test_the_end_of_play_survives_a_kill_until_the_run_is_resumed(tmp_path):
    service = pool(tmp_path)
    service.register("c", PLAY)
    service.stop()
    service = PoolService("mirror", 2, directory=str(tmp_path))
    assert ask(service, 1, 3) == Jobs([], service.weights, stopped=True)
    service.resume()
    service = PoolService("mirror", 2, directory=str(tmp_path))
    assert len(ask(service, 1, 3).jobs) == 3


def test_a_rejected_call_is_not_repeated_after_a_kill(tmp_path):
    service = pool(tmp_path)
    with pytest.raises(InputError, match="already in the pool"):
        service.add_checkpoint("another", 0)
    assert PoolService("mirror", 2, directory=str(tmp_path)).current_uid() == "ckpt-0"


def test_in_lockstep_draws_do_not_depend_on_which_game_ended_first():
    def drawn(order: int) -> list:
        service = pool(mode="ts-dist")
        for version in (1, 2):
            service.add_checkpoint(f"v{version}", version)
        service.register("c", replace(PLAY, max_staleness=0, games_per_step=6))
        seen = []
        for update in range(1, 4):
            jobs = ask(service, 2 * update, 4).jobs
            service.finish([won(job) for job in jobs[::order]])
            rest = ask(service, 2 * update + 1, 4).jobs
            service.finish([won(job) for job in rest[::order]])
            assert LOOP.run_until_complete(service.settled(0.0))
            service.add_checkpoint(f"w{update}", 2 + update)
            service.publish(weights(update), 6 * update)
            seen += [job.uids for job in jobs + rest]
        return [*seen, service.pool.state_dict()["models"]]

    assert drawn(1) == drawn(-1)


def test_in_lockstep_the_weights_of_environments_do_not_depend_on_which_game_ended_first(tmp_path):
    def open_result(job):
        """Kuhn poker is won from either seat in turn, tic-tac-toe always drawn."""
        won = (-1.0) ** job.meta.index if job.spec.env_id == "kuhn_poker" else 0.0
        return GameResult(job.name, "finished", 0, [won, -won], [])

    def drawn(order: int, *, curriculum: bool = True, killed: bool = False) -> list[int]:
        """How many games of Kuhn poker each update has."""
        directory = tmp_path / f"{order}-{curriculum}-{killed}"
        service, counts = pool(directory), []
        play = replace(WEIGHED, max_staleness=0, games_per_step=60, curriculum=curriculum)
        service.register("c", play)
        for update in range(1, 6):
            jobs = ask(service, update, 60).jobs
            for job in jobs[::order]:
                service.finish([open_result(job)])
            if killed:
                service = PoolService("mirror", 2, directory=str(directory))
            service.publish(weights(update), 60 * update)
            counts.append(sum(job.spec.env_id == "kuhn_poker" for job in jobs))
        return counts

    followed = drawn(1)
    assert followed == drawn(-1) == drawn(1, killed=True)
    assert max(followed[1:]) > 50
    assert followed[0] == drawn(1, curriculum=False)[0] < 30
    assert max(drawn(1, curriculum=False)) < 35


def test_the_games_of_a_match_and_those_that_a_longer_one_adds_are_rated_once(tmp_path, monkeypatch):
    monkeypatch.setattr("sparring.collection.pool.SNAPSHOT_EVERY", 1)
    game = ("ckpt-0", "fixed-random", 1.0, "kuhn_poker")
    service = pool(tmp_path)
    for _ in range(2):
        service.push_match(1, 4, [game] * 4)
        service.push_match(1, 24, [game] * 20)
        service.publish(weights(1))
        service = PoolService("mirror", 2, directory=str(tmp_path))
    assert service.pool.matches.record("ckpt-0", "fixed-random").games == 24
    service.forget_after(0)
    service.push_match(1, 3, [game])
    assert service.pool.matches.record("ckpt-0", "fixed-random").games == 25


def test_a_journal_with_an_entry_of_no_known_kind_makes_every_call_fail_with_the_file(tmp_path):
    pool(tmp_path)
    (entries,) = tmp_path.glob("entries-*.jsonl")
    with entries.open("a") as file:
        file.write('{"type": "Promote", "uid": "ckpt-0"}\n')
    service = PoolService("mirror", 2, directory=str(tmp_path))
    for call in (service.check, service.stop, service.accounts):
        with pytest.raises(InputError, match=f"{entries.name} is damaged"):
            call()
