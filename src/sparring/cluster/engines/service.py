"""EngineService: an engine that serves many clients at a time, in batches.

A Ray call for every answer would cost more than a small model's answer. So a client submits its requests in
one call, and fetches in another the answers that are ready by then.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sparring.cluster.engines.conversations import (
    KeptConversations,
    SentRequest,
    request_of,
    sent_requests,
    without_known,
)
from sparring.collection.serialization import packed, unpacked
from sparring.core import ModelResponse, SparringError, TransientError
from sparring.core.adapters import AdapterRef
from sparring.core.errors import reason_of
from sparring.engine.adapters import Delivery
from sparring.engine.answering import ModelFacts
from sparring.engine.hosts import EmbeddedHost, EngineHost

REPORT_SECONDS = 5.0
FORGET_SECONDS = 60.0
"""Seconds without a request or a poll after which a client is forgotten."""


@dataclass(frozen=True)
class EngineAnswer:
    """The result of a request: a response, scores, or an error.

    The response is without the first ``known`` ids of its prompt, and the engine keeps the conversation under
    ``key``; see ``conversations.py``.
    """

    number: int
    response: ModelResponse | None = None
    scores: list[float] | None = None
    known: int = 0
    key: int | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Receipt:
    """What an engine says of requests: its incarnation for their client, and the numbers of those whose
    conversation it does not know."""

    incarnation: int
    unknown: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Answers:
    """Answers to one poll.

    ``incarnation`` changes if the client's earlier requests are forgotten, for example after a kill.
    ``of_others`` counts the requests of other clients that are in progress.
    """

    incarnation: int
    answers: list[EngineAnswer] = field(default_factory=list)
    of_others: int = 0

    def __reduce__(self) -> tuple[Callable[..., "Answers"], tuple[int, bytes, list[EngineAnswer], int]]:
        """Serialise errors as Ray does, everything else packed: Ray's own way inspects every object."""
        good = [
            (one.number, one.response, one.scores, one.known, one.key)
            for one in self.answers
            if one.error is None
        ]
        bad = [one for one in self.answers if one.error is not None]
        return _unpacked_answers, (self.incarnation, packed(good), bad, self.of_others)


def _unpacked_answers(incarnation: int, content: bytes, bad: list[EngineAnswer], of_others: int) -> Answers:
    good = (EngineAnswer(*one) for one in unpacked(content, _GOOD_ANSWERS))
    return Answers(incarnation, [*good, *bad], of_others)


_GOOD_ANSWERS = msgspec.msgpack.Decoder(
    list[tuple[int, ModelResponse | None, list[float] | None, int, int | None]]
)


@dataclass
class _Client:
    """The ``requests`` of a client, by number, until their ``answers`` are fetched."""

    incarnation: int = field(default_factory=lambda: secrets.randbits(62))
    requests: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    answers: list[EngineAnswer] = field(default_factory=list)
    some: asyncio.Event = field(default_factory=asyncio.Event)
    last_seen: float = field(default_factory=lambda: _now())

    @property
    def in_progress(self) -> int:
        return len(self.requests) - len(self.answers)


class EngineService:
    """See the module.

    Args:
        host: the engine; :meth:`start` starts it.
        name: the engine's name in the tracker.
        tracker: a handle; it receives the load every few seconds.
    """

    def __init__(
        self,
        host: EngineHost[Any],
        name: str = "engine",
        tracker: Any = None,
        gpu_ids: list[int] | None = None,
    ) -> None:
        self.host = host
        self.name = name
        self.tracker = tracker
        self.gpu_ids = gpu_ids or []
        self._conversations = KeptConversations()
        self._clients: dict[str, _Client] = {}
        self._reporting: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model. Further calls do nothing, unless the first failed; then they try again.

        Raises:
            SparringError: the engine cannot start.
        """
        starting = self._starting
        if starting is None or (starting.done() and starting.exception() is not None):
            starting = self._starting = asyncio.create_task(self.host.start())
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())
        await asyncio.shield(starting)

    async def submit(self, client: str, requests: bytes) -> Receipt:
        """Start answering these packed requests, except known ones and those that must be sent whole."""
        known = self._known(client)
        unknown = []
        for sent in sent_requests(requests):
            number = sent.number
            if number in known.requests:
                continue
            if sent.key is None or self._conversations.has(sent.key):
                prompt = self._conversations.prompt(sent)
                known.requests[number] = asyncio.create_task(self._answer(known, sent, prompt))
            else:
                unknown.append(number)
        return Receipt(known.incarnation, unknown)

    async def poll(self, client: str, wait: float = 1.0) -> Answers:
        """Return the answers since the last poll; wait up to ``wait`` seconds for the first.

        Raises:
            SparringError: the engine cannot start.
        """
        await self.start()
        known = self._known(client)
        if not known.answers:
            known.some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(known.some.wait(), wait)
        answers, known.answers = known.answers, []
        for answer in answers:
            del known.requests[answer.number]
        of_others = sum(one.in_progress for one in self._clients.values() if one is not known)
        return Answers(known.incarnation, answers, of_others)

    async def facts(self) -> ModelFacts:
        """See :meth:`EmbeddedHost.facts`; the engine starts first."""
        await self.start()
        assert isinstance(self.host, EmbeddedHost)
        return self.host.facts()

    async def hold(self, adapter: AdapterRef) -> Delivery:
        """See :meth:`EngineHost.hold`; the engine starts first."""
        await self.start()
        return await self.host.hold(adapter)

    def check(self) -> None:
        """Return: an engine that cannot start says so where it is asked to."""

    def load(self) -> dict[str, float]:
        """Return the engine's current figures."""
        return self.host.stats()

    def _known(self, client: str) -> _Client:
        known = self._clients.setdefault(client, _Client())
        known.last_seen = _now()
        return known

    async def _answer(self, client: _Client, sent: SentRequest, prompt: bytes) -> None:
        try:
            if self._starting is None or not self._starting.done():
                await self.start()
            request = request_of(sent, prompt)
            if request.completions is not None:
                scores = await self.host.score(request.adapter, request.call.messages, request.completions)
                answer = EngineAnswer(sent.number, scores=scores)
            else:
                response = await self.host.complete(request)
                key = self._conversations.keep(prompt, response) if sent.goes_on else None
                response, left_out = without_known(response, sent)
                answer = EngineAnswer(sent.number, response, known=left_out, key=key)
        except SparringError as error:
            answer = EngineAnswer(sent.number, error=error)
        except Exception as error:  # noqa: BLE001 - the client must receive it
            answer = EngineAnswer(
                sent.number, error=TransientError(f"{self.name} failed: {reason_of(error)}")
            )
        client.answers.append(answer)
        client.some.set()

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
                for task in client.requests.values():
                    task.cancel()
                del self._clients[name]


def _now() -> float:
    return asyncio.get_running_loop().time()
