"""EngineLink: the requests that one client has at one engine, and whether that engine answers."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError, RayError, RayTaskError

from sparring.cluster.calls import RETRY_SECONDS, error_of
from sparring.cluster.engines.conversations import Asking, packed_requests
from sparring.cluster.engines.service import Answers, EngineAnswer, Receipt
from sparring.core import SparringError

POLL_SECONDS = 2.0
"""Seconds after which an engine answers a poll even if it has no answers to requests."""
SILENCE_SECONDS = 30.0
"""Seconds more after which an engine counts as away. One that computes may be silent for several seconds."""
PROBLEM_SECONDS = 5.0
"""Seconds after which an engine that failed is polled again."""
QUIET_ROUNDS = 3
SHARES, SMALLEST_SHARE, MANY = 4, 16, 256
"""Fewer than ``MANY`` requests are sent in shares, because sending everything at once would make engine and
games wait for each other in turn. More requests than that are sent all at once, which costs least."""


class EngineLink:
    """See the module. An engine is away until it answers a poll, and there is always one poll under way.

    ::

                      it answers a poll: ``came``
              ┌──────┐ ────────────────────────────────────► ┌─────────┐
        ────► │ away │                                       │ present │
              └──────┘ ◄──────────────────────────────────── └─────────┘
                      a call fails, or a poll is not answered: ``left``,
                      with all requests that are waiting or sent

                ``add``            there is room             its answer is polled
        client ───────► waiting ──────────────────► sent ───────────────────────────► ``answered``
                           ▲                          │
                           └──────────────────────────┘
                         the engine has another incarnation: it was killed,
                         or has forgotten the client, or the conversation

    A request may reach an engine twice, and a request that went to another engine meanwhile may be answered
    twice. The engine ignores a request that it has, and the client an answer that it has.

    Args:
        name: the engine's name in errors.
        handle: a handle of an :class:`EngineService`.
        client: the client's name.
        limit: maximum requests that are sent and not answered; ``None`` for no limit.
        came: called when the engine has begun to answer.
        left: called with the requests that another engine should answer.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        client: str,
        limit: int | None,
        *,
        came: Callable[["EngineLink"], None],
        left: Callable[["EngineLink", list[Asking]], None],
        answered: Callable[["EngineLink", EngineAnswer], None],
    ) -> None:
        self.name = name
        self.handle = handle
        self.present = False
        self.problem: SparringError | None = None
        self._client = client
        self._limit = limit
        self._came, self._left, self._answered = came, left, answered
        self._waiting: deque[Asking] = deque()
        self._sent: dict[int, Asking] = {}
        self._of_others = 0
        self._incarnation: int | None = None
        self._some = asyncio.Event()

    @property
    def load(self) -> int:
        """Requests that this engine has or is about to get: of this client, and of others when last heard."""
        return self._of_others + len(self._waiting) + len(self._sent)

    def add(self, request: Asking) -> None:
        """Send a request as soon as there is room for it."""
        self._waiting.append(request)
        self._some.set()

    async def serve(self) -> None:
        """Send requests and fetch answers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(tasks))
            tasks.create_task(self._listen())

    async def _send(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._some.wait()
            await self._let_others_ask()
            self._some.clear()
            requests = self._that_fit()
            if requests:
                tasks.create_task(self._submit(requests))

    async def _let_others_ask(self) -> None:
        """Wait until there are enough requests, or some rounds of the event loop brought no new one."""
        quiet, before = 0, len(self._waiting)
        while quiet < QUIET_ROUNDS and len(self._waiting) < self._share():
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == before else 0
            before = len(self._waiting)

    def _share(self) -> int:
        """Return how many requests, or answers, are passed on together."""
        asked = len(self._waiting) + len(self._sent)
        return max(SMALLEST_SHARE, asked // SHARES) if asked < MANY else asked

    def _that_fit(self) -> list[Asking]:
        room = len(self._waiting) if self._limit is None else self._limit - len(self._sent)
        requests = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        self._sent |= {one.request.number: one for one in requests}
        return requests

    async def _submit(self, requests: list[Asking]) -> None:
        try:
            packed = packed_requests(requests, self)
            receipt: Receipt = await self.handle.submit.remote(self._client, packed)
        except (RayError, SparringError) as error:
            self._lose(error)
        else:
            self._send_whole(receipt.unknown)
            self._meet(receipt.incarnation)

    def _send_whole(self, numbers: list[int]) -> None:
        """Send requests again with their whole prompts, if they are not on their way once more."""
        for number in numbers:
            if (request := self._sent.pop(number, None)) is not None:
                request.unknown_to(self)
                self._waiting.append(request)
                self._some.set()

    async def _listen(self) -> None:
        while True:
            try:
                answers = await self._poll()
            except (RayError, SparringError) as error:
                self._lose(error)
                await asyncio.sleep(PROBLEM_SECONDS if self.problem else RETRY_SECONDS)
            else:
                await self._hear(answers)

    async def _poll(self) -> Answers:
        wait = POLL_SECONDS if self.present else 0.0
        polling = asyncio.ensure_future(self.handle.poll.remote(self._client, wait))
        try:
            done, _ = await asyncio.wait({polling}, timeout=wait + SILENCE_SECONDS)
            if not done:
                self._lose(None)
            answers: Answers = await polling
        finally:
            polling.cancel()
        return answers

    async def _hear(self, answers: Answers) -> None:
        self._meet(answers.incarnation)
        self._of_others = answers.of_others
        if not self.present:
            self.present, self.problem = True, None
            self._came(self)
        share = self._share()
        for number, answer in enumerate(answers.answers, start=1):
            self._sent.pop(answer.number, None)
            self._answered(self, answer)
            if number % share == 0:
                await asyncio.sleep(0)  # these games move before the others get answers
        if self._waiting:
            self._some.set()

    def _meet(self, incarnation: int) -> None:
        if self._incarnation not in (None, incarnation):
            self._waiting.extendleft(reversed(self._sent.values()))
            self._sent.clear()
            self._some.set()
        self._incarnation = incarnation

    def _lose(self, error: Exception | None) -> None:
        lasting = isinstance(error, RayTaskError | ActorDiedError | SparringError)
        self.problem = error_of(self.name, error) if error is not None and lasting else None
        self.present = False
        requests = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._left(self, requests)
