"""Games between frozen members on a cluster: each is played once, before training goes on, despite kills."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from game_runs import configure, metrics_of, quiet
from pool_requests import PLAY, ask, weights, won
from seat_runs import games
from sparring.cluster.run import train
from sparring.collection.games_in_flight import GameResult
from sparring.collection.pool import PoolService
from sparring.population import SamplingRule
from sparring.run.single_process import train as train_locally

LOCKSTEP = replace(PLAY, max_staleness=0)
RULE = SamplingRule(payoff_games=2)


def open_pool(directory=None) -> PoolService:
    return PoolService("meta-nash", 3, rule=RULE, directory=None if directory is None else str(directory))


def pool(directory=None, copies=3) -> PoolService:
    service = open_pool(directory)
    for version in range(copies):
        service.add_checkpoint(f"v{version}" if version else None, version)
    service.register("c", LOCKSTEP)
    return service


def test_payoff_games_end_before_games_of_training_start():
    service = pool()
    first = ask(service, 1, 4).jobs
    rest = ask(service, 2, 4).jobs
    assert [job.name for job in first + rest] == [f"payoff-{number:08d}" for number in range(6)]
    assert ask(service, 3, 4).jobs == []
    service.finish([won(job) for job in first])
    assert ask(service, 4, 4).jobs == []
    assert service.accounts()["unplayed_pairs"] == 3, "they count when the last has ended"
    service.finish([won(job) for job in rest])
    assert [job.meta.type for job in ask(service, 5, 4).jobs] == ["train"] * 4
    accounts = service.accounts()
    assert (accounts["payoff_started"], accounts["payoff_finished"], accounts["started"]) == (6, 6, 4)
    assert accounts["unplayed_pairs"] == 0


def test_the_adapters_of_frozen_members_come_with_their_games():
    service = pool()
    answer = ask(service, 1, 6)
    assert {uid for job in answer.jobs for uid in job.uids} == {"ckpt-0", "ckpt-1", "ckpt-2"}
    assert answer.adapters.keys() == {"base", "ckpt-1", "ckpt-2"}


def test_a_game_that_an_invalid_move_ended_is_counted_for_who_made_it(tmp_path):
    service = pool(tmp_path, copies=2)
    for job in ask(service, 1, 2).jobs:
        seat = job.uids.index("ckpt-1")
        rewards = [1.0, 1.0]
        rewards[seat] = -1.0
        service.finish([GameResult(job.name, "finished", 0, rewards, ["[bet]"], invalid_seat=seat)])
    for one in (service, open_pool(tmp_path)):
        rows = one.pool.payoffs.table.rows()
        assert [(row["member"], row["invalid"]) for row in rows] == [
            ("ckpt-0", 0),
            ("ckpt-1", 1),
            ("ckpt-1", 1),
            ("ckpt-0", 0),
        ]


def test_a_checkpoint_has_the_payoffs_of_games_that_are_rated_later():
    service = pool(copies=1)
    jobs = ask(service, 1, 3).jobs
    service.finish([won(job) for job in jobs])
    assert {job.meta.type for job in jobs} == {"train"}
    for _ in range(2):
        payoffs = service.checkpoint_summary()["pool"]["played"]["payoffs"]
        assert sum(payoff["games"] for payoff in payoffs) == 3
        service.publish(weights(1))


def test_a_payoff_game_that_failed_is_not_played_again_and_holds_nothing_up():
    service = pool(copies=2)
    first, second = ask(service, 1, 4).jobs
    service.finish([GameResult(first.name, "failed", failure="ContextError")])
    service.finish([GameResult(second.name, "failed", failure="ContextError")])
    assert service.accounts()["payoff_failed"] == 2
    assert service.accounts()["unplayed_pairs"] == 1
    assert {job.meta.type for job in ask(service, 2, 4).jobs} == {"train"}


@pytest.mark.parametrize("killed", range(5))
def test_a_killed_pool_counts_no_payoff_game_twice_and_loses_none(tmp_path, killed):
    service, seen = pool(tmp_path), Counter()
    for number in range(1, 5):
        if number == killed:
            service = open_pool(tmp_path)
        jobs = ask(service, number, 2).jobs
        for job in jobs:
            seen[job.name] += 1
        service.finish([won(job) for job in jobs[:1]])
        service.finish([won(job) for job in jobs])
    assert list(seen.values()) == [1] * 8
    table = service.pool.payoffs.table
    assert [payoff.games for _, payoff in table.items()] == [1] * 6


def test_the_payoff_games_of_a_lost_collector_are_handed_out_again(tmp_path):
    service = pool(tmp_path)
    had = ask(service, 1, 6).jobs
    service.finish([won(job) for job in had[:2]])
    assert service.register("c", LOCKSTEP) == 4
    again = ask(service, 1, 6).jobs
    assert again == had[2:]
    service.finish([won(job) for job in again])
    assert service.accounts()["payoff_finished"] == 6


@pytest.mark.parametrize("killed", [False, True])
def test_the_payoffs_of_a_checkpoint_that_is_lost_are_forgotten(tmp_path, killed):
    service = pool(tmp_path, copies=2)
    service.finish([won(job) for job in ask(service, 1, 2).jobs])
    service.add_checkpoint("v2", 2)
    service.publish(weights(2))
    had = ask(service, 2, 3).jobs
    service.finish([won(job) for job in had[:1]])
    service.forget_after(1)
    if killed:
        service = open_pool(tmp_path)
    accounts = service.accounts()
    assert accounts["payoff_started"] == accounts["payoff_finished"] == 3
    assert service.register("c", LOCKSTEP) == 0
    assert [job.meta.type for job in ask(service, 1, 1).jobs] == ["train"]
    service.add_checkpoint("other/v2", 2)
    assert service.pool.payoffs.table.payoff("ckpt-2", "ckpt-0").games == 0
    names = [job.name for job in ask(service, 2, 4).jobs if job.is_payoff]
    assert names == [f"payoff-{number:08d}" for number in range(6, 10)]


def last_state(run):
    return max((run / "checkpoints").iterdir()) / "state.json"


SETTINGS = {
    "population__sample_mode": "meta-nash",
    "population__payoff_games": "6",
    "population__add_every": "1",
    "population__max_active_lora": "3",
    "population__mirror_share": "0.2",
    "learning__learning_rate": "0.05",
    "evaluation__every": "0",
    "tracking__games_logged": "1000",
}


@pytest.mark.slow  # test_cluster_seats shows it of copies and frozen adapters
def test_a_run_meets_the_same_opponents_on_ray_as_in_one_process(model, tmp_path, cluster):
    on_ray = {"run__runtime": "ray", "ray__collectors": "2", "ray__address": cluster}
    train_locally(configure(model, **SETTINGS), tmp_path / "here", quiet())
    train(configure(model, **SETTINGS | on_ray), tmp_path / "there", quiet())
    met = [[game.meta["uids"] for game in games(tmp_path / where)] for where in ("here", "there")]
    assert met[0] == met[1]
    assert len({uid for uids in met[0] for uid in uids}) > 2, "some copies are drawn"
    seated = [
        json.loads(last_state(tmp_path / where).read_text())["source"]["pool"]["played"]["payoffs"]
        for where in ("here", "there")
    ]
    assert [(one["seating"], one["games"]) for one in seated[0]] == [
        (one["seating"], one["games"]) for one in seated[1]
    ]
    here, there = metrics_of(tmp_path / "here"), metrics_of(tmp_path / "there")
    # 6 with ckpt-1, 12 with each later copy; those of the last are not needed any more.
    assert [line["accounts/payoff_finished"] for line in here] == [0, 6, 18, 30]
    assert there[-1]["accounts/payoff_finished"] == 30
    assert there[-1]["accounts/payoff_failed"] == 0
