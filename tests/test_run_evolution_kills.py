"""A league that is killed at one of 32 moments around a replacement ends as one that was left alone."""

import inspect
import os
import shutil
import signal

import pytest

from evolution_runs import PLAYERS, STEPS, given_adapters
from game_runs import configure, metrics_of, resumed, run
from kill_resume import accounts_balance, differences, fingerprint
from league_runs import learner_of, same
from sparring.collection.metrics_log import MetricsLog
from sparring.collection.pool import PoolService
from sparring.learn.learner import Learner
from sparring.population.evolution import replaced
from sparring.run.evaluations import Evaluations
from sparring.run.game_source import GameSource
from sparring.run.local_learners import LocalLearners
from sparring.run.serving import EmbeddedServing

pytestmark = pytest.mark.slow

MOMENTS = [
    (LocalLearners, "update", 2),
    (EmbeddedServing, "publish", 3),
    (PoolService, "players_due", 2),
    (PoolService, "rivals", 2),
    (EmbeddedServing, "publish_results", 2),
    (Evaluations, "rewards", 1),
    (Evaluations, "rewards", 2),
    (Evaluations, "rewards", 3),
    (PoolService, "freeze_players", 2),
    (LocalLearners, "start_again", 1),
    (Learner, "start_again", 1),
    (EmbeddedServing, "publish", 4),
    (PoolService, "publish", 3),
    (GameSource, "log", 2),
    (MetricsLog, "flush", 2),
    (LocalLearners, "keep", 3),
]
"""Methods, and the number of the call that belongs to the update; one is killed before it and one after."""


def deadly(owner, name, number, when):
    """Return the method of a class, in whose call of this number the process dies."""
    method, calls = getattr(owner, name), [0]

    def die(now):
        if calls[0] == number and now == when:
            os.kill(os.getpid(), signal.SIGKILL)

    if inspect.iscoroutinefunction(method):

        async def acts(self, *arguments, **options):
            calls[0] += 1
            die("before")
            returned = await method(self, *arguments, **options)
            die("after")
            return returned

        return acts

    def acts_at_once(self, *arguments, **options):
        calls[0] += 1
        die("before")
        returned = method(self, *arguments, **options)
        die("after")
        return returned

    return acts_at_once


def run_and_kill(config, path, moment, when):
    """Train in a copy of this process that kills itself."""
    child = os.fork()
    if not child:
        setattr(moment[0], moment[1], deadly(*moment, when))
        try:
            run(config, path)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it did not come to this call"


@pytest.fixture(scope="module")
def config(model, tmp_path_factory):
    return configure(model, **given_adapters(model, tmp_path_factory.mktemp("given")))


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run(config, path)
    assert replaced(metrics_of(path)[1])
    return path


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda one: f"{one[0].__name__}.{one[1]}-{one[2]}")
def test_a_league_that_is_killed_around_a_replacement_ends_as_one_left_alone(
    config, whole, moment, when, tmp_path
):
    path = tmp_path / "run"
    run_and_kill(config, path, moment, when)
    resumed(path)
    assert differences(fingerprint(whole), fingerprint(path)) == []
    assert accounts_balance(path)
    assert (whole / "standings.jsonl").read_bytes() == (path / "standings.jsonl").read_bytes()
    for player in PLAYERS:
        once, again = (learner_of(one, STEPS, player) for one in (whole, path))
        assert once.keys() == again.keys()
        assert same(once, again)
    shutil.rmtree(path)
