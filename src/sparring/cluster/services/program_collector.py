"""ProgramCollector: plays the episodes of a program that the process of the command asks for.

It has no state to save: after a kill, its episodes are sent again, here or elsewhere, with what it must know
to play them.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparring.cluster.engines.client import EngineClient
from sparring.core import Arena, EpisodeRequest, GenerateResult
from sparring.core.adapters import AdapterRef
from sparring.core.current_episode import episode_counts
from sparring.core.episode_runner import EpisodeRunner
from sparring.core.garbage_collection import infrequent_garbage_collection
from sparring.core.own_code import called, own_code

HEARTBEAT_SECONDS = 2.0


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
        arena: the program.
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
