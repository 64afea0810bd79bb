"""Engines that are killed, fall silent and come back, and games that ask them; on virtual time."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayActorError

from ray_simulation import SimulatedHost, VirtualTimeLoop
from sparring.cluster.engines.service import EngineService
from sparring.core import Messages
from sparring.core.current_episode import current_episode
from sparring.engine.hosts import EngineRequest


class KillableHandle:
    """An engine that Ray restarts and whose calls fail meanwhile (``max_task_retries=0``)."""

    def __init__(self, build: Callable[[], EngineService]) -> None:
        self.build = build
        self.service: EngineService | None = build()
        self.calls: dict[str, int] = {}
        self._attempts: set[asyncio.Task[Any]] = set()
        self._reachable = asyncio.Event()
        self._reachable.set()

    def kill(self) -> None:
        """Lose the service and the answers that are on their way."""
        self.service = None
        for attempt in self._attempts:
            attempt.cancel()

    def restart(self) -> None:
        """Come back without a memory."""
        self.service = self.build()

    def fall_silent(self) -> None:
        """Answer no call and raise no error, as when the machine's network is gone."""
        self._reachable.clear()

    def speak(self) -> None:
        """Answer again, also the calls that came meanwhile."""
        self._reachable.set()

    def __getattr__(self, name: str) -> Any:
        class Method:
            remote = staticmethod(lambda *args: asyncio.create_task(self._call(name, args)))

        return Method

    async def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.service is None:
            raise RayActorError
        attempt = asyncio.create_task(self._attempt(getattr(self.service, name), args))
        self._attempts.add(attempt)
        try:
            answer = await attempt
        except asyncio.CancelledError:
            raise RayActorError from None
        finally:
            self._attempts.discard(attempt)
        await self._reachable.wait()
        return answer

    async def _attempt(self, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = method(*args)
        return await result if inspect.isawaitable(result) else result


class RememberingHost(SimulatedHost):
    """Remembers the most requests that it had at once, and the prompts that it answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.most = 0
        self.prompts: list[str] = []

    async def complete(self, request: EngineRequest) -> Any:
        """Answer, and remember."""
        self.most = max(self.most, self.busy + 1)
        self.prompts.append(request.call.messages[0]["content"])
        return await super().complete(request)


def random_legal(messages: Messages, seed: int | None) -> str:
    """Return one of the legal moves that the prompt ends with; it depends on the request only."""
    legal = messages[-1]["content"].rpartition("Legal moves: ")[2].partition(".")[0].split(", ")
    return legal[(seed or 0) % len(legal)]


def run_on_virtual_time(work: Any) -> Any:
    """Run a coroutine to its end; return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def game_of_the_current_call() -> str:
    """Return the id of the game that is making a call."""
    episode = current_episode.get()
    assert episode is not None
    return episode.rollout_id
