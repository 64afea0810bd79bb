"""A program's episodes, played by several processes of a cluster: each process, and who asks all of them.

A collector has no state to save: after a kill its episodes are sent again, here or elsewhere, with what it
must know to play them.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from sparring.cluster.calls import HEARTBEAT_SECONDS, RETRY_SECONDS, error_of
from sparring.cluster.engines.client import EngineClient
from sparring.core import Arena, EpisodeRequest, GenerateResult
from sparring.core.adapters import AdapterRef
from sparring.core.current_episode import count_started, episode_counts
from sparring.core.episode_runner import EpisodeRunner
from sparring.core.garbage_collection import infrequent_garbage_collection
from sparring.core.own_code import called, own_code


def collector_name(number: int) -> str:
    """Return the name of a run's collector, of games or of a program."""
    return f"Collector-{number}"


@dataclass(frozen=True)
class Setting:
    """What every collector must know.

    Attributes:
        number: higher for a newer one.
        adapters: the adapters that are served, by name.
        arena: the state of the program's arena.
    """

    number: int
    adapters: Mapping[str, AdapterRef]
    arena: dict[str, Any]


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode's result, and how many episodes were started for it."""

    result: GenerateResult
    started: int


class ProgramCollector:
    """See the module.

    Args:
        name: the collector's name in the run.
        client: the client of the engines; the arena's client.
        tracker: a handle, or ``None``.

    Attributes:
        known: number of the newest setting that it follows.
    """

    def __init__(self, name: str, arena: Arena, client: EngineClient, tracker: Any) -> None:
        self.name = name
        self.arena = arena
        self.client = client
        self.tracker = tracker
        self.known = -1
        self._in_flight = 0
        self._starting: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def follow(self, setting: Setting) -> None:
        """Play with these adapters and this state from now on, unless newer ones are known."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        if setting.number > self.known:
            self.known = setting.number
            self.client.adapters = dict(setting.adapters)
            with own_code("the program's load_state_dict failed"):
                self.arena.load_state_dict(setting.arena)

    async def _start(self) -> None:
        await called(self.arena.startup, "the program's startup")

    async def play(self, request: EpisodeRequest) -> PlayedEpisode:
        """Play an episode to its end; one that fails is a result as well.

        Raises:
            SparringError: no episode can be played: an engine is lost, or the program's input is wrong.
        """
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        counts = Counter[str]()
        episode_counts.set(counts)
        with self._counted():
            # The runner's own: a program's override has had the request in the process of the command.
            (result,) = await EpisodeRunner.generate_rollouts(self.arena, [request])
        if self.client.fatal is not None:
            raise self.client.fatal
        return PlayedEpisode(result, counts["started"])

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _beat(self) -> None:
        """Report how many episodes are in flight; Python's garbage collector runs only once between beats."""
        while True:
            if self.tracker is not None:
                self.tracker.heartbeat.remote(self.name, {"in_flight": self._in_flight})
            with infrequent_garbage_collection():
                await asyncio.sleep(HEARTBEAT_SECONDS)


class ProgramCollectors:
    """Sends each outermost episode of an arena to the least loaded collector.

    Everything that outlasts an episode stays with the arena of this process: it makes the requests and turns
    the results into records. Collectors get its state, stores included, with each batch of requests, and the
    adapters whenever they change. The episodes of a lost collector go to the others: a request has its seed.

    Args:
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
                raise error_of(collector_name(number), error) from error
            except RayError:
                self._lose(number)
            else:
                count_started(played.started)
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
