"""A league on a cluster that is killed between any two of its stages ends as one left alone; no Ray.

Everything is killed at once: a copy of the run's directory from that moment takes its place, and a new start
of the run continues from it.
"""

import asyncio
import functools
import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster_overlaps import Services, answer
from game_runs import configure
from league_runs import LEAGUE
from matrices import first_of
from ray_simulation import SimulatedHost
from sparring.cluster.collector import CollectorService
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.service import EngineService
from sparring.cluster.learner import LearnerService
from sparring.cluster.learner_group import LearnerGroup, learners_from_config
from sparring.collection import read_metrics
from sparring.collection.journal import Journal
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.config import Config
from sparring.run import assembly

STEPS = 4
KILLED_AT = 2
"""The update after which exploiters are frozen for the first time."""
PLACES = ["update", "start_again", "publish", "players_due", "freeze_players", "finish"]


class LeagueServices(Services):
    """The services of one start of a league, with real games of players that do not think."""

    def __init__(self, config: Config, path: Path) -> None:
        super().__init__(config, path)
        self.before_play = self._play_is_elsewhere

    async def _play_is_elsewhere(self, version: int) -> None:
        pass

    def new_pool(self, directory: str) -> PoolService:
        build = functools.partial(assembly.build_league, self.config)
        mode, policies, epoch = self.config.sample_mode, self.config.policies, self.directory.epoch
        return PoolService(
            mode, 2, policies=policies, seed=5, build_league=build, directory=directory, epoch=epoch
        )

    def new_collector(self) -> CollectorService:
        engine = LocalHandle(EngineService(SimulatedHost(0.0, answer)))
        episodes = {
            assembly.env_spec(self.config, env).key: assembly.build_episode(env, env.temperature)
            for env in self.config.envs
        }
        return CollectorService(
            "Collector-0",
            EngineClient([engine], self.config.policies),
            LocalHandle(self.buffer),
            LocalHandle(self.pool),
            None,
            assembly.play_settings(self.config),
            episodes,
        )

    def new_learner(self) -> LearnerService:
        build = functools.partial(learners_from_config, self.config, self.config.policies)
        group = LearnerGroup(build, 1, cpus=0, gpus=0, timeout_seconds=10)
        return LearnerService(
            group,
            self.directory.path,
            "tiny",
            may_start_again=self.config.league.exploiters,
            epoch=self.directory.epoch,
        )

    def ended(self) -> dict[str, Any]:
        """Return what must not depend on kills."""
        lines = read_metrics(self.directory.path / "metrics.jsonl")
        accounts = self.pool.accounts()
        return {
            "pool": self.pool.pool.state_dict(),
            "league": self.pool.state.league.state_dict(),
            "accounts": {name: value for name, value in accounts.items() if name != "replayed"},
            "steps": self.buffer.counts(),
            "metrics": [{k: v for k, v in line.items() if k.startswith("league/")} for line in lines],
            "weights": self.pool.weights,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        learners = self.learner.learners.items()
        return {f"{name}/{key}": one for name, by in learners for key, one in by.tensors().items()}


def copy_while_written(directory: Path, copy: Path) -> None:
    """Copy a directory in which a thread of the learner may write; begin again if a file went meanwhile."""
    for attempt in range(10):
        try:
            shutil.copytree(directory, copy)
            return
        except shutil.Error:
            if attempt == 9:
                raise
            shutil.rmtree(copy)


def copy_after(run: LeagueServices, place: str, copies: Path) -> None:
    """Copy the run's directory when a method of a service returns in the stage of ``KILLED_AT``."""
    service = run.learner if place in ("update", "start_again") else run.pool
    method = getattr(service, place)

    async def copying(*arguments: Any) -> Any:
        returned = method(*arguments)
        returned = await returned if inspect.isawaitable(returned) else returned
        played = place != "finish" or run.pool.weights.step == KILLED_AT
        if run.learner.saved().step == KILLED_AT and played and not (copies / place).exists():
            copy_while_written(run.directory.path, copies / place)
        return returned

    setattr(service, place, copying)


@pytest.fixture(scope="module")
def config(model) -> Config:
    more = {"learning__steps": str(STEPS), "learning__max_mismatch": "100", "run__save_every": "1"}
    return configure(model, **LEAGUE | more)


@pytest.fixture(scope="module", params=first_of(["entries", "snapshots"]))
def whole(request, config, tmp_path_factory):
    """A run that is left alone, what it ended with, and copies of its directory from the moments of kills.

    The parameter is what journals consist of; test_cluster_pool_league restores a league from a snapshot.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "is_long", lambda self, entries: request.param == "snapshots")
        directory = tmp_path_factory.mktemp("league")
        run = LeagueServices(config, directory / "run")
        for place in PLACES:
            copy_after(run, place, directory / "copies")
        asyncio.run(run.train(STEPS))
        yield run, run.ended(), directory / "copies"


@pytest.mark.slow  # test_cluster_program_league kills by default
@pytest.mark.parametrize("place", first_of(PLACES, 2))
async def test_a_league_that_was_killed_goes_on_as_if_it_had_not_been(config, whole, place):
    run, expected, copies = whole
    tensors, path = run.tensors(), run.directory.path
    shutil.rmtree(path)
    shutil.copytree(copies / place, path)
    again = LeagueServices(config, path)
    assert again.learner.saved().step == KILLED_AT
    await again.train(STEPS)
    assert again.ended() == expected
    lines = read_metrics(path / "metrics.jsonl")
    assert all(line["time/games_per_second"] > 0 for line in lines), "it knows what was played before"
    assert again.tensors().keys() == tensors.keys()
    assert all(torch.equal(one, tensors[name]) for name, one in again.tensors().items())


@pytest.mark.slow  # as above
def test_the_exploiters_were_frozen_and_started_again(whole):
    run = whole[0]
    copies = {one.uid: one for one in run.pool.pool.opponents() if one.kind == "checkpoint"}
    assert copies.keys() == {
        "ckpt-0",
        *(f"{player}-ckpt-{step}" for player in ("attacker", "finder") for step in (2, 4)),
        *("ckpt-2", "ckpt-4"),
    }
    assert run.learner.learners["attacker"].age == 0
    assert run.pool.weights.adapters["attacker"].path is None, "it is the base model again"
    assert run.pool.weights.adapters["attacker"].version == STEPS
    assert copies["attacker-ckpt-4"].path_or_name == "averages/attacker/000004"
