"""An engine and a learner that only take time, for tests and benchmarks of what runs around them."""

import asyncio
import heapq
import inspect
from collections.abc import Callable
from typing import Any

from sparring.core import Messages, ModelResponse
from sparring.core.adapters import TRAINED, AdapterRef
from sparring.engine.hosts import EngineRequest
from sparring.run.learners import Saved, UpdateBatch


class SimulatedHost:
    """Answers ``[check]`` after ``delay`` seconds, with tokens and the asked version."""

    def __init__(
        self, delay: float = 0.0, answer: Callable[[Messages, int | None], str] | None = None
    ) -> None:
        self.delay = delay
        self.answer = answer or (lambda messages, seed: "[check]")
        self.calls = 0
        self.busy = 0

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to stop."""

    async def complete(self, request: EngineRequest) -> ModelResponse:
        """Answer without a model."""
        self.calls += 1
        self.busy += 1
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.busy -= 1
        text = self.answer(request.call.messages, request.call.seed)
        return ModelResponse(
            text,
            [{"role": "assistant", "content": text}],
            prompt_token_ids=[1, 2, 3],
            completion_token_ids=[*text.encode(), 0],
            completion_logprobs=[-0.5] * (len(text) + 1),
            policy_version=request.adapter.version,
        )

    async def score(self, adapter: AdapterRef, messages: Messages, completions: list[str]) -> list[float]:
        """All are as likely."""
        return [-1.0] * len(completions)

    def stats(self) -> dict[str, float]:
        """Requests under way."""
        return {"running": float(self.busy), "queued": 0.0, "tok_s": 0.0, "idle_share": float(not self.busy)}


class SimulatedLearner:
    """Learns nothing in ``seconds``. ``trained`` holds the rollout ids and versions of each update."""

    def __init__(self, seconds: Callable[[], float] | float = 0.0) -> None:
        self.seconds = seconds
        self.trained: list[list[tuple[str, int]]] = []
        self.state: dict[str, Any] = {}

    def saved(self) -> Saved:
        """What was saved last."""
        step = len(self.trained)
        return Saved(
            step=step,
            versions={TRAINED: step},
            adapters={TRAINED: f"version-{step}" if step else None},
            figures={"learner/records": float(len(self.trained[-1]))} if step else {},
            trained_records=sum(map(len, self.trained)),
            state=self.state,
        )

    async def update(self, step: int, batch: UpdateBatch, state: dict[str, Any]) -> Saved:
        """Take time, and be one version more."""
        if step == len(self.trained) + 1:
            records = (await batch.records(self._encode_answer))[TRAINED]
            await asyncio.sleep(self.seconds() if callable(self.seconds) else self.seconds)
            self.trained.append([(record.rollout_id, record.policy_version) for record in records])
            self.state = state
        return self.saved()

    async def results(self) -> dict[str, str | None]:
        """The same adapters."""
        return self.saved().adapters

    async def tidy(self, paths_in_use: list[str]) -> None:
        """Nothing to delete."""

    def restarted(self) -> "SimulatedLearner":
        """The learner after a kill: what was made and not saved is lost."""
        again = SimulatedLearner(self.seconds)
        again.trained, again.state = [*self.trained], self.state
        return again

    def _encode_answer(self, prompt: Messages, text: str) -> list[int]:
        return [*text.encode(), 0]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def block(self, seconds: float) -> None:
        """Let time pass in which nothing else runs, as during a long computation."""
        self._now += seconds

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


class RestartingHandle:
    """A service that :meth:`kill` replaces by one that takes up its state; calls under way are repeated.

    So Ray treats an actor with ``max_restarts`` and ``max_task_retries``.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build
        self.service = build()
        self.kills = 0
        self._attempts: set[asyncio.Task[Any]] = set()

    def kill(self) -> None:
        """Lose the service and every answer that is on its way."""
        self.kills += 1
        self.service = self.build()
        for attempt in self._attempts:
            attempt.cancel()

    def __getattr__(self, name: str) -> "_RestartingMethod":
        return _RestartingMethod(self, name)


class _RestartingMethod:
    def __init__(self, handle: RestartingHandle, name: str) -> None:
        self.handle = handle
        self.name = name

    def remote(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(self._call(args, kwargs))

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        while True:
            attempt = asyncio.create_task(self._attempt(args, kwargs))
            self.handle._attempts.add(attempt)
            kills = self.handle.kills
            try:
                return await attempt
            except asyncio.CancelledError:
                if kills == self.handle.kills or asyncio.current_task().cancelling():
                    attempt.cancel()
                    raise
            finally:
                self.handle._attempts.discard(attempt)

    async def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = getattr(self.handle.service, self.name)(*args, **kwargs)
        result = await result if inspect.isawaitable(result) else result
        await asyncio.sleep(0.001)  # the answer is on its way: a kill now loses it
        return result
