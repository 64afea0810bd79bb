"""Collectors of a program: what is sent to them, and what they run of the program's own code."""

import asyncio
from functools import partial
from pathlib import Path

from sparring.cluster.actor_classes import ProgramCollectorActor, restarting
from sparring.cluster.connect import connected
from sparring.cluster.elsewhere import CommandHost
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.program_collectors import ProgramCollector, ProgramCollectors
from sparring.cluster.run_actors import build_program_collector
from sparring.config import Config
from sparring.config.loading import load_config
from sparring.config.run import RaySettings
from sparring.core import EpisodeRequest
from sparring.run.programs import build_program

SOURCE = """
from dataclasses import dataclass

from sparring.core import Arena, Episode, EpisodeRequest, EpisodeState, Role, Rubric


@dataclass(frozen=True)
class Topic:
    text: str


class Wait(Episode):
    episode_type = "wait"
    rubric = Rubric([lambda rollout, arena: {"waiter": float(len(rollout.artifact.text))}])

    async def rollout(self, arena, artifact, state=None):
        return EpisodeState()


class Twice(Arena):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.add_role(Role("waiter"))
        self.add_episode("wait", Wait())

    def get_batch(self):
        return [EpisodeRequest("wait", Topic("moon"))]

    async def generate_rollouts(self, requests, concurrency=None):
        return await super().generate_rollouts([one for one in requests for _ in range(2)], concurrency)
"""


def configured(directory: Path) -> Config:
    """Return the configuration of a program that calls no model, whose artifacts are of its own class."""
    program, file = directory / "twice.py", directory / "program.toml"
    program.write_text(SOURCE)
    file.write_text(f'[program]\ntype = "python"\npath = "{program}:Twice"\n')
    return load_config(str(file), {})


def test_a_collector_that_has_not_built_its_program_yet_can_be_sent_objects_of_its_classes(tmp_path, cluster):
    config = configured(tmp_path)
    arena = build_program(config)

    async def play(collector: object) -> list[float]:
        arena.elsewhere = ProgramCollectors(arena, EngineClient([]), [collector])
        _, results = await arena.play_step()
        return [result.rewards["waiter"] for result in results]

    with connected(RaySettings(address=cluster), "collectors"):
        build = partial(build_program_collector, config, 0, [], None, CommandHost(None, None))
        collector = restarting(ProgramCollectorActor, max_task_retries=0).remote(build)
        assert asyncio.run(play(collector)) == [4.0, 4.0]


async def test_a_collector_plays_a_request_once_although_the_program_asks_for_more_of_each(tmp_path):
    arena, client = build_program(configured(tmp_path)), EngineClient([])
    (artifact,) = [request.artifact for request in arena.get_batch()]
    played = await ProgramCollector("Collector-0", arena, client, None).play(EpisodeRequest("wait", artifact))
    assert played.started == 1
    assert played.result.rewards == {"waiter": 4.0}
