"""Frozen copies of a program's policies on a cluster: none is lost with a kill, and their files stay."""

import functools
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from program_files import write_program
from sparring.cluster.actor_classes import Hosted
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.remote import ClusterServing, RemoteLearners
from sparring.cluster.tracker import TrackerService
from sparring.collection.local_handle import LocalHandle
from sparring.config import Config
from sparring.config.loading import load_config
from sparring.core import MockInferenceClient
from sparring.run import assembly
from sparring.run.adapter_versions import KEPT_VERSIONS
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.play_source import PlaySource
from sparring.run.program_source import ProgramSource
from sparring.run.programs import build_program
from sparring.run.run_directory import RunDirectory
from sparring.run.trainer import Trainer
from text_and_rewards import Api, BestTexts

POLICIES = ["hider", "seeker"]


def configured(directory: Path, **population: object) -> Config:
    """Return the configuration of a program whose roles meet copies."""
    file = directory / "program.toml"
    file.write_text(f'[program]\ntype = "python"\npath = "{write_program(directory)}:HideAndSeek"\n')
    settings = {"learning.algorithm.regulariser": "none", "run.save_every": "100"}
    return load_config(str(file), settings | {f"population.{k}": str(v) for k, v in population.items()})


class SavedWithUpdates(BestTexts):
    """Learners that save the run's state with each update, as in an actor."""

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(directory, POLICIES)
        self.last: dict = {}

    async def saved(self):
        return Saved(self.step, dict.fromkeys(self.policies, self.step), {}, state=self.last)

    async def update(self, step, batch, state):
        self.last = json.loads(json.dumps(await state()))
        return await super().update(step, batch, state)


class Copying(Api):
    async def freeze(self, uid, policy):
        return f"versions/{uid}"


class Killed(Exception):
    """The command was killed."""


class Watched(ProgramSource):
    """Notes the pool with which each update is played, and may be killed before it is."""

    killed_after = -1

    def watch(self, pools: dict[int, list[str]]) -> None:
        self.pools = pools

    async def play(self, saved, progress):
        self.pools[saved.step] = [one.uid for one in self.pool.opponents()]
        if saved.step == self.killed_after:
            raise Killed
        return await super().play(saved, progress)


async def test_a_run_killed_after_the_line_of_an_update_keeps_the_copies_of_that_update(tmp_path):
    config = configured(tmp_path, sample_mode="random", add_every=1)
    directory = RunDirectory.create(tmp_path / "run")
    learners = SavedWithUpdates(directory)

    def start(pools: dict[int, list[str]]) -> Trainer:
        tracker = TrackerService("run", directory=str(directory.path))
        metrics = RunMetrics(LocalHandle(tracker))
        client = MockInferenceClient(lambda messages, seed: "a")
        serving, program = Copying({one: one for one in POLICIES}), build_program(config)
        source = Watched(config, directory, metrics, program, client, serving, learners, 8)
        source.watch(pools)
        return Trainer(config, directory, source, learners, metrics, Console(file=io.StringIO()))

    before, after = dict[int, list[str]](), dict[int, list[str]]()
    killed = start(before)
    killed.source.killed_after = 2
    with pytest.raises(Killed):
        await killed.run()
    resumed = start(after)
    resumed.source.killed_after = 3
    with pytest.raises(Killed):
        await resumed.run()
    assert after[2] == before[2]
    assert after[3] == [*before[2], "hider-ckpt-3", "seeker-ckpt-3"]


class Versions:
    """The adapters that a learner writes into a run and deletes."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.there: list[str] = []

    def write(self, step: int) -> None:
        self.there.append(str(self.run / f"versions/{step:06d}"))

    def results(self) -> dict[str, str | None]:
        return {"default": self.there[-1]}

    def tidy(self, paths_in_use: list[str]) -> None:
        newest = self.there[-KEPT_VERSIONS:]
        self.there = [path for path in self.there if path in newest or path in paths_in_use]


class Opponents(PlaySource):
    async def rewards(self, player, league):
        raise AssertionError("there is no league")


@pytest.mark.parametrize(
    "population",
    [
        {"sample_mode": "random", "max_active_lora": 2, "add_every": 10},
        {"sample_mode": "lagged", "lag_range": "[4, 6]", "max_active_lora": 4, "add_every": 10},
        {"sample_mode": "lagged", "lag_range": "[6, 8]", "max_active_lora": 4, "add_every": 1},
    ],
    ids=lambda one: f"{one['sample_mode']}-{one['add_every']}",
)
async def test_files_stay_that_a_later_update_or_a_resume_from_the_last_two_needs(tmp_path, population):
    config = configured(tmp_path, **population)
    service = assembly.build_pool(config, ["default"])
    pool, directory = service.pool, RunDirectory.create(tmp_path / "run")
    versions = Versions(tmp_path / "run")
    learners = RemoteLearners(LocalHandle(Hosted(lambda: versions)), functools.partial(Path, "nowhere"))
    client = EngineClient([])
    serving = ClusterServing(client, {"default": "average"}, learners, tmp_path / "run")
    policies = ["default"]
    handle = LocalHandle(service)
    opponents = Opponents(
        config, directory, RunMetrics(None), serving, handle, policies, policies, client, 1, learners
    )
    await opponents.add_members()
    needed: list[set[str]] = []
    for step in range(1, 100):
        versions.write(step)
        active = set(pool.active_checkpoints())
        names = {one.path_or_name for one in pool.opponents() if one.uid in active} - {None}
        assert not any(Path(name).is_absolute() for name in names), "the run may be moved"
        needed.append({str(tmp_path / "run" / name) for name in names})
        await serving.publish(Saved(step, {"default": step}, {"default": versions.there[-1]}))
        assert needed[-1] | needed[max(0, step - 2)] <= {*versions.there}, step
        if await opponents.add_copies(step):
            await opponents.serve_copies()
        assert not await opponents.missing_copies(step)
    assert len(versions.there) < 60
