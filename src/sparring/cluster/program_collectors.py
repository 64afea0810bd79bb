"""ProgramCollectors: a program's episodes, played by several processes of a cluster."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.link import RETRY_SECONDS
from sparring.cluster.services.program_collector import PlayedEpisode, Setting
from sparring.core import Arena, EpisodeRequest, GenerateResult


class ProgramCollectors:
    """Sends each outermost episode of an arena to the least loaded collector.

    Everything that outlasts an episode stays with the arena of this process: it makes the requests and turns
    the results into records. Collectors get its state, stores included, with each batch of requests, and the
    adapters whenever they change. The episodes of a lost collector go to the others: a request has its seed.

    Args:
        arena: the program in this process.
        client: the client of this process, which knows what is served.
        collectors: handles of :class:`ProgramCollectorActor`.
    """

    def __init__(self, arena: Arena, client: EngineClient, collectors: Sequence[Any]) -> None:
        self.arena = arena
        self.client = client
        self.collectors = list(collectors)
        self._load = [0] * len(self.collectors)
        self._away: dict[int, asyncio.Task[None]] = {}
        self._came_back = asyncio.Event()
        self._setting: Setting | None = None
        self._shared: Any = None

    async def prepare(self) -> None:
        """Let the next episodes begin with the arena's state and the adapters of now."""
        self._share(self.arena.state_dict())

    async def follow(self) -> None:
        """Let episodes in flight go on with the adapters of now."""
        if self._setting is None:
            return
        self._share(self._setting.arena)
        for number, collector in enumerate(self.collectors):
            if number not in self._away:
                collector.follow.remote(self._setting.number, [self._shared])

    async def play(self, request: EpisodeRequest) -> GenerateResult:
        """Play an episode.

        Raises:
            SparringError: it cannot be played.
        """
        while True:
            number = await self._least_loaded()
            self._load[number] += 1
            try:
                played = await self._play_at(number, request)
            except (RayTaskError, ActorDiedError) as error:
                raise error_of(f"Collector-{number}", error) from error
            except RayError:
                self._lose(number)
            else:
                self.arena.count_started(played.started)
                return played.result
            finally:
                self._load[number] -= 1

    async def _play_at(self, number: int, request: EpisodeRequest) -> PlayedEpisode:
        assert self._setting is not None
        playing = self.collectors[number].play.remote(request, self._setting.number, [self._shared])
        played: PlayedEpisode = await playing
        return played

    def close(self) -> None:
        """Wait no more for collectors that are away."""
        for task in self._away.values():
            task.cancel()

    def _share(self, state: dict[str, Any]) -> None:
        number = 0 if self._setting is None else self._setting.number + 1
        self._setting = Setting(number, dict(self.client.adapters), state)
        self._shared = ray.put(self._setting)

    async def _least_loaded(self) -> int:
        while len(self._away) == len(self.collectors):
            self._came_back.clear()
            await self._came_back.wait()
        present = [number for number in range(len(self.collectors)) if number not in self._away]
        return min(present, key=lambda number: self._load[number])

    def _lose(self, number: int) -> None:
        if number not in self._away:
            self._away[number] = asyncio.create_task(self._wait_for(number))

    async def _wait_for(self, number: int) -> None:
        """Wait until a collector answers again. The run's health check ends a run if that takes too long."""
        while True:
            try:
                await self.collectors[number].check.remote()
                break
            except RayError:
                await asyncio.sleep(RETRY_SECONDS)
        del self._away[number]
        self._came_back.set()
