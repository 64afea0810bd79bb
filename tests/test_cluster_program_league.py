"""A league of a program whose learners save every update, as on a cluster, is killed between any two stages.

There is no Ray: the services are called directly. Everything is killed at once: a copy of the run's directory
from that moment takes its place.
"""

import asyncio
import functools
import inspect
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from matrices import first_of
from program_leagues import league_of
from program_runs import uids_of
from ray_simulation import SimulatedHost
from sparring.cluster.actor_classes import Hosted
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.service import EngineService
from sparring.cluster.learner import LearnerService
from sparring.cluster.learner_group import LearnerGroup, learners_from_config
from sparring.cluster.remote import ClusterServing, RemoteLearners
from sparring.cluster.tracker import TrackerService
from sparring.collection import read_metrics
from sparring.collection.local_handle import LocalHandle
from sparring.config import Config
from sparring.run import assembly
from sparring.run.metrics import RunMetrics
from sparring.run.program_source import ProgramSource
from sparring.run.programs import build_program, trained_policies
from sparring.run.run_directory import RunDirectory
from sparring.run.trainer import Trainer

KILLED_AT = 2
"""The update after which exploiters are frozen for the first time."""
PLACES = ["start_again", "freeze_players", "players_due", "update"]


def answer(messages: list[dict[str, str]], seed: int | None) -> str:
    return "abcdefgh"[(seed or 0) % 8]


class Services:
    """The services of one start of a run, in this process."""

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self.directory = RunDirectory(path) if path.exists() else RunDirectory.create(path)
        if self.directory.epoch is None:
            self.directory.lock()
        epoch, program = self.directory.epoch, build_program(config)
        policies = trained_policies(config, program)
        build = functools.partial(learners_from_config, config, policies)
        self.learner = LearnerService(
            LearnerGroup(build, 1, cpus=0, gpus=0, timeout_seconds=10),
            path,
            "tiny",
            may_start_again=config.league.exploiters,
            epoch=epoch,
        )
        learners = RemoteLearners(LocalHandle(Hosted(lambda: self.learner)), self.directory.checkpoint)
        engine = LocalHandle(EngineService(SimulatedHost(0.0, answer)))
        client = EngineClient([engine], policies, adapters_only=True)
        results = {policy: assembly.evaluated_uid(config, policy) for policy in policies}
        serving = ClusterServing(client, results, learners, path)
        metrics = RunMetrics(LocalHandle(TrackerService("run", directory=str(path), epoch=epoch)))
        self.source = ProgramSource(config, self.directory, metrics, program, client, serving, learners, 8)
        console = Console(file=io.StringIO(), width=300)
        self.trainer = Trainer(config, self.directory, self.source, learners, metrics, console)

    def ended(self) -> dict[str, Any]:
        """Return what must not depend on kills."""
        lines = read_metrics(self.directory.path / "metrics.jsonl")
        return {
            "pool": self.source.service.state.whole_state(),
            "metrics": [{k: v for k, v in line.items() if k.startswith("league/")} for line in lines],
            "uids": uids_of(self.directory.path),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        learners = self.learner.learners.items()
        return {f"{name}/{key}": one for name, by in learners for key, one in by.tensors().items()}


def copy_after(run: Services, place: str, copies: Path) -> None:
    """Copy the run's directory when a method of a service returns in the stage of ``KILLED_AT``."""
    service = run.learner if place in ("update", "start_again") else run.source.service
    method = getattr(service, place)

    async def copying(*arguments: Any) -> Any:
        returned = method(*arguments)
        returned = await returned if inspect.isawaitable(returned) else returned
        if run.learner.saved().step == KILLED_AT and not (copies / place).exists():
            shutil.copytree(run.directory.path, copies / place)
        return returned

    setattr(service, place, copying)


@pytest.fixture(scope="module")
def config(model, tmp_path_factory) -> Config:
    more = {"learning__max_mismatch": "100", "learning__average_decay": "0.9", "learning__steps": "3"}
    return league_of("own", model, tmp_path_factory.mktemp("program"), **more)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that is left alone, what it ended with, and copies of its directory from the moments of kills."""
    directory = tmp_path_factory.mktemp("league")
    run = Services(config, directory / "run")
    for place in PLACES:
        copy_after(run, place, directory / "copies")
    asyncio.run(run.trainer.run())
    return run, run.ended(), directory / "copies"


def test_copies_are_what_exploiters_had_become_before_they_began_again(whole):
    run = whole[0]
    copies = {one.uid: one.path_or_name for one in run.source.pool.opponents() if one.kind == "checkpoint"}
    assert copies["attacker-ckpt-2"] == "averages/attacker/000002"
    assert len(run.ended()["metrics"]) == 3


@pytest.mark.parametrize("place", first_of(PLACES))
def test_a_league_that_was_killed_goes_on_as_if_it_had_not_been(config, whole, place):
    run, expected, copies = whole
    tensors, path = run.tensors(), run.directory.path
    shutil.rmtree(path)
    shutil.copytree(copies / place, path)
    again = Services(config, path)
    assert again.learner.saved().step == KILLED_AT
    asyncio.run(again.trainer.run())
    assert again.ended() == expected
    assert again.tensors().keys() == tensors.keys()
    assert all(torch.equal(one, tensors[name]) for name, one in again.tensors().items())
