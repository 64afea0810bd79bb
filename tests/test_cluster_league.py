"""A league on Ray does what one in one process does, also if it is stopped in the middle and resumed.

By default, test_cluster_seats compares a run on Ray with one in one process, and test_cluster_league_kills
resumes a league from any of its stages without Ray.
"""

import json
from pathlib import Path

import pytest
import torch

from game_runs import configure, metrics_of, quiet
from kill_resume import accounts_balance
from league_runs import LEAGUE, copy_of, games, learner_of, same
from program_runs import adapter
from sparring.cluster.run import resume, train
from sparring.collection import read_metrics
from sparring.core import SparringError
from sparring.learn.checkpoints import load_adapter
from sparring.run.game_source import GameFeed
from sparring.run.single_process import train as train_locally

pytestmark = pytest.mark.slow

PLAYERS = ("default", "attacker", "finder")
STEPS, GAMES = 3, 24
SETTINGS = LEAGUE | {
    "learning__steps": str(STEPS),
    "learning__learning_rate": "0.003",
    "collection__games_per_step": str(GAMES),
    "evaluation__every": "0",
}


@pytest.fixture(scope="module")
def here(model, tmp_path_factory):
    """A run in one process; its exploiters are frozen after update 2."""
    path = tmp_path_factory.mktemp("here") / "run"
    train_locally(configure(model, **SETTINGS), path, quiet())
    return path


@pytest.fixture(scope="module", params=["left alone", "resumed"])
def there(request, model, tmp_path_factory, cluster):
    """A run on Ray, left alone or stopped when an exploiter had started again, and resumed."""
    path, publish = tmp_path_factory.mktemp("there") / "run", GameFeed.publish

    async def fail(self, saved):
        if saved.step == 2:
            raise SparringError("stopped by the test")
        return await publish(self, saved)

    with pytest.MonkeyPatch.context() as patch:
        config = configure(model, run__runtime="ray", ray__address=cluster, **SETTINGS)
        if request.param == "left alone":
            train(config, path, quiet())
            return path
        patch.setattr(GameFeed, "publish", fail)
        with pytest.raises(SparringError, match="stopped by the test"):
            train(config, path, quiet())
        patch.setattr(GameFeed, "publish", publish)
        resume(path, quiet())
    return path


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def members(run: Path, step: int) -> dict[str, dict]:
    """Return the members of the pool in a checkpoint."""
    state = json.loads((run / "checkpoints" / f"step-{step:06d}" / "state.json").read_text())
    return {one["uid"]: one for one in state["source"]["pool"]["models"]}


def test_the_same_players_meet_in_every_game(here, there):
    met = [[game.meta["uids"] for game in games(run)] for run in (here, there)]
    assert len(met[0]) == STEPS * GAMES
    assert met[0] == met[1]
    assert {"attacker-ckpt-2", "finder-ckpt-2", "ckpt-2"} < {uid for uids in met[1] for uid in uids}


def test_who_beats_whom_is_logged_as_in_one_process(here, there):
    assert len(read_metrics(here / "standings.jsonl")) == STEPS
    assert (here / "standings.jsonl").read_bytes() == (there / "standings.jsonl").read_bytes()


@pytest.mark.parametrize("player", PLAYERS)
def test_every_player_learns_the_same(here, there, player):
    for step in range(STEPS + 1):
        assert close(adapter(here, step, player), adapter(there, step, player)), step
        assert close(learner_of(here, step, player), learner_of(there, step, player)), step
    assert not same(adapter(there, 1, player), adapter(there, 0, player))


def test_a_main_exploiter_that_was_frozen_starts_again_with_an_empty_optimizer(there):
    assert same(adapter(there, 2, "attacker"), adapter(there, 0, "attacker"))
    assert not any(name.startswith("optimizer") for name in learner_of(there, 2, "attacker"))
    assert any(name.startswith("optimizer") for name in learner_of(there, 3, "attacker"))
    assert any(name.startswith("optimizer") for name in learner_of(there, 2, "default"))


def test_copies_are_what_the_players_had_become(here, there):
    known = members(there, 3)
    assert known.keys() == members(here, 2).keys()
    for uid in ("attacker-ckpt-2", "finder-ckpt-2", "ckpt-2"):
        assert close(copy_of(here, uid), load_adapter(there / known[uid]["path_or_name"])[0]), uid


def test_no_game_counts_twice(here, there):
    def league(run):
        return [
            {name: value for name, value in line.items() if name.startswith("league/")}
            for line in metrics_of(run)
        ]

    assert league(here) == league(there)
    last = metrics_of(there)[-1]
    assert sum(value for name, value in last.items() if "/games/" in name) == STEPS * GAMES
    assert last["accounts/started"] == last["accounts/finished"] == STEPS * GAMES
    assert accounts_balance(there)
