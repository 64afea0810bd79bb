"""EngineService: an engine that many clients ask at a time, in batches.

A call for every answer would cost a cluster more than a small model's answer. So a client hands over what it
wants to know in one call, and fetches in another whatever is answered by then.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from selfplay.core import Messages, ModelResponse, SelfplayError
from selfplay.core.errors import reason_of
from selfplay.runtime.ray.engine_host import AdapterRef, EngineHost

REPORT_SECONDS = 5.0
FORGET_SECONDS = 60.0
"""A client that has not asked for its answers for so long is gone."""


@dataclass(frozen=True)
class Request:
    """A question. With ``completions`` it is for their log-probabilities, without for an answer."""

    number: int
    adapter: AdapterRef
    messages: Messages
    temperature: float = 1.0
    max_tokens: int | None = None
    return_tokens: bool = True
    seed: int | None = None
    completions: list[str] | None = None


class Requests(list[Request]):
    """Questions that travel between processes as msgpack: Ray's own way looks at every object by itself."""

    def __reduce__(self) -> tuple[Callable[[bytes], "Requests"], tuple[bytes]]:
        """How to pack and unpack them."""
        return _unpacked_requests, (msgspec.msgpack.encode(list(self)),)


def _unpacked_requests(packed: bytes) -> Requests:
    return Requests(_REQUESTS.decode(packed))


_REQUESTS = msgspec.msgpack.Decoder(list[Request])


@dataclass(frozen=True)
class Answer:
    """What came of a question: a response, scores, or an error."""

    number: int
    response: ModelResponse | None = None
    scores: list[float] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Answers:
    """``incarnation`` is another if what the client asked before is forgotten: the engine was killed, say."""

    incarnation: int
    answers: list[Answer] = field(default_factory=list)

    def __reduce__(self) -> tuple[Callable[..., "Answers"], tuple[int, bytes, list[Answer]]]:
        """Errors travel as Ray sends them, everything else as msgpack; see :class:`Requests`."""
        good = [(one.number, one.response, one.scores) for one in self.answers if one.error is None]
        bad = [one for one in self.answers if one.error is not None]
        return _unpacked_answers, (self.incarnation, msgspec.msgpack.encode(good), bad)


def _unpacked_answers(incarnation: int, packed: bytes, bad: list[Answer]) -> Answers:
    return Answers(incarnation, [*(Answer(*one) for one in _GOOD_ANSWERS.decode(packed)), *bad])


_GOOD_ANSWERS = msgspec.msgpack.Decoder(list[tuple[int, ModelResponse | None, list[float] | None]])


@dataclass
class _Client:
    incarnation: int = field(default_factory=lambda: secrets.randbits(62))
    answers: list[Answer] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    last_seen: float = field(default_factory=lambda: _now())


class EngineService:
    """See the module.

    Args:
        host: answers; started by :meth:`start`.
        name: for the tracker.
        tracker: a handle; gets the load every few seconds.
        gpu_ids: for the tracker.
        temperature: at which :meth:`submit_prompt` draws.
    """

    def __init__(
        self,
        host: EngineHost,
        name: str = "engine",
        tracker: Any = None,
        gpu_ids: list[int] | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.host = host
        self.name = name
        self.tracker = tracker
        self.gpu_ids = gpu_ids or []
        self.temperature = temperature
        self._clients: dict[str, _Client] = {}
        self._reporting: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model; again does nothing.

        Raises:
            SelfplayError: it does not start.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self.host.start())
            self._reporting = asyncio.create_task(self._report())
        await asyncio.shield(self._starting)

    async def submit(self, client: str, requests: list[Request]) -> int:
        """Begin with these questions; returns the client's incarnation."""
        known = self._clients.setdefault(client, _Client())
        known.last_seen = _now()
        for request in requests:
            task = asyncio.create_task(self._answer(known, request))
            known.tasks.add(task)
            task.add_done_callback(known.tasks.discard)
        return known.incarnation

    async def poll(self, client: str, wait: float = 1.0) -> Answers:
        """What has been answered since the last time; waits for something for up to ``wait`` seconds."""
        known = self._clients.setdefault(client, _Client())
        known.last_seen = _now()
        if not known.answers:
            known.some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(known.some.wait(), wait)
        answers, known.answers = known.answers, []
        return Answers(known.incarnation, answers)

    async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
        """Answer a prompt as it stands, without chat markup; see seed 000."""
        await self.start()
        response = await self.host.complete(
            AdapterRef(lora_path or "base", 0, lora_path),
            [{"role": "text", "content": prompt}],
            self.temperature,
            None,
            False,
            None,
        )
        return response.text

    def load(self) -> dict[str, float]:
        """The engine's figures now."""
        return self.host.stats()

    async def _answer(self, client: _Client, request: Request) -> None:
        try:
            if self._starting is None or not self._starting.done():
                await self.start()
            if request.completions is not None:
                scores = await self.host.score(request.adapter, request.messages, request.completions)
                answer = Answer(request.number, scores=scores)
            else:
                response = await self._complete(request)
                answer = Answer(request.number, response)
        except SelfplayError as error:
            answer = Answer(request.number, error=error)
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it
            answer = Answer(request.number, error=SelfplayError(f"{self.name} failed: {reason_of(error)}"))
        client.answers.append(answer)
        client.some.set()

    def _complete(self, request: Request) -> Coroutine[Any, Any, ModelResponse]:
        return self.host.complete(
            request.adapter,
            request.messages,
            request.temperature,
            request.max_tokens,
            request.return_tokens,
            request.seed,
        )

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._forget_clients()
            if self.tracker is not None:
                stats = self.host.stats()
                self.tracker.log_inference.remote(self.name, self.gpu_ids, stats)
                self.tracker.heartbeat.remote(self.name, stats)

    def _forget_clients(self) -> None:
        for name, client in list(self._clients.items()):
            if _now() - client.last_seen > FORGET_SECONDS:
                for task in client.tasks:
                    task.cancel()
                del self._clients[name]


def _now() -> float:
    return asyncio.get_running_loop().time()
