"""EngineClient: sends requests to the engines of a cluster in batches, and resends them after a kill."""

import asyncio
import itertools
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from selfplay.cluster.engines.api_models import api_client, is_adapter, is_api_model
from selfplay.cluster.engines.host import AdapterRef
from selfplay.cluster.engines.service import FORGET_SECONDS, Answer, Request, Requests
from selfplay.core import InferenceClient, InputError, Messages, ModelResponse, SelfplayError
from selfplay.core.context import current_episode
from selfplay.inference.delivery import DeliveryError

QUIET_ROUNDS = 3
SHARES, SMALLEST_SHARE, MANY = 4, 16, 256
"""Fewer than ``MANY`` requests are sent in shares, because sending everything at once would make engine and
games wait for each other in turn. More requests than that are sent all at once, which costs least."""
RETRY_SECONDS = 0.5
UNHEARD = -1
"""A value that is no engine's incarnation."""


@dataclass(eq=False)
class _Engine:
    """The state of one engine.

    ``waiting`` requests are still to be sent (``some`` is set), ``pending`` ones are not answered yet
    (``asked`` is set). Nothing is sent before the engine's incarnation is ``known``: a kill would go
    unnoticed. ``heard`` is the event loop's time of the last answer.
    """

    name: str
    handle: Any
    waiting: list[Request] = field(default_factory=list)
    pending: dict[int, Request] = field(default_factory=dict)
    incarnation: int | None = None
    heard: float = 0.0
    task: "asyncio.Task[None] | None" = None
    some: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    known: asyncio.Event = field(default_factory=asyncio.Event)


class EngineClient(InferenceClient):
    """See the module. All calls of one game go to the same engine, which has cached its prompts.

    ``policy`` answers calls for ``default``, also in games that began under another version; ``adapters``
    maps other names to adapters; a name that is not among them is a model behind an API or an adapter's
    directory (see ``api_models``). ``fatal`` is set by an error that no further call can survive.

    Args:
        engines: handles of :class:`EngineService`.
        patience: seconds without any answer to pending requests after which an engine is given up.
        calls_per_engine: maximum requests in progress at one engine; further ones wait here. ``None`` for no
            limit.
        adapters_only: reject names that are not among ``adapters``, including ``default``.
    """

    def __init__(
        self,
        engines: list[Any],
        *,
        patience: float = 300.0,
        calls_per_engine: int | None = None,
        adapters_only: bool = False,
    ) -> None:
        self.name = uuid.uuid4().hex
        self._api_clients: dict[str, InferenceClient] = {}
        self.patience = patience
        self.calls_per_engine = calls_per_engine
        self.adapters_only = adapters_only
        self.policy = AdapterRef("default", 0, None)
        self.adapters: dict[str, AdapterRef] = {"base": AdapterRef("base", 0, None)}
        self.fatal: SelfplayError | None = None
        self._engines = [_Engine(f"Engine-{number}", handle) for number, handle in enumerate(engines)]
        self._numbers = itertools.count()
        self._futures: dict[int, asyncio.Future[Answer]] = {}

    def follow(self, policy: AdapterRef) -> None:
        """Use these weights from now on, unless newer ones are known."""
        if policy.version >= self.policy.version:
            self.policy = policy

    async def get_policy_version(self) -> int:
        """Return the version that answers now."""
        return self.policy.version

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
    ) -> ModelResponse:
        """Answer ``messages``; see :class:`InferenceClient`.

        Raises:
            SelfplayError: the engine's error, or that the engine is lost.
        """
        if not (model is None or model in self.adapters or self.adapters_only) and is_api_model(model):
            # A prompt without chat markup becomes a user's message to an API.
            messages = [{**one, "role": "user"} if one["role"] == "text" else one for one in messages]
            return await self._api_client(model).complete(
                messages, temperature, max_tokens, return_tokens, seed=seed
            )
        number = next(self._numbers)
        adapter = self._adapter(model)
        request = Request(number, adapter, messages, temperature, max_tokens, return_tokens, seed)
        answer = await self._ask(request)
        assert answer.response is not None
        return answer.response

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each completion; see :class:`InferenceClient`."""
        request = Request(next(self._numbers), self._adapter(model), messages, completions=completions)
        answer = await self._ask(request)
        assert answer.scores is not None
        return answer.scores

    async def close(self) -> None:
        """Stop sending requests."""
        tasks = [engine.task for engine in self._engines if engine.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _adapter(self, model: str | None) -> AdapterRef:
        if self.adapters_only and (model or "default") not in self.adapters:
            names = ", ".join(self.adapters)
            raise InputError("model", f"the engine does not serve {model or 'default'}", f"It serves {names}")
        if model is None or model == "default":
            return self.policy
        if model not in self.adapters:
            if not is_adapter(model):
                raise SelfplayError(f"there is no adapter for the model {model}")
            self.adapters[model] = AdapterRef(model, 0, str(Path(model).absolute()))
        return self.adapters[model]

    def _api_client(self, model: str) -> InferenceClient:
        if model not in self._api_clients:
            self._api_clients[model] = api_client(model)
        return self._api_clients[model]

    async def _ask(self, request: Request) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._futures[request.number] = future
        engine = self._engine_for_this_game(request.number)
        engine.waiting.append(request)
        engine.some.set()
        if engine.task is None:
            engine.task = asyncio.create_task(self._serve(engine))
            engine.task.add_done_callback(self._tell_failure)
        try:
            answer = await future
        finally:
            del self._futures[request.number]
        if answer.error is not None:
            if isinstance(answer.error, DeliveryError):
                self.fatal = answer.error
            raise answer.error
        return answer

    def _tell_failure(self, task: "asyncio.Task[None]") -> None:
        """Fail all pending requests if serving an engine broke."""
        if task.cancelled() or task.exception() is None:
            return
        self.fatal = SelfplayError(f"a request to an engine failed: {task.exception()!r}")
        for future in self._futures.values():
            if not future.done():
                future.set_exception(self.fatal)

    def _engine_for_this_game(self, number: int) -> _Engine:
        episode = current_episode.get()
        game = number if episode is None else hash(episode.rollout_id)
        return self._engines[game % len(self._engines)]

    async def _serve(self, engine: _Engine) -> None:
        """Send requests and fetch answers for as long as the client lives."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(engine, tasks))
            tasks.create_task(self._fetch(engine))

    async def _send(self, engine: _Engine, tasks: asyncio.TaskGroup) -> None:
        while True:
            await engine.some.wait()
            await self._let_others_ask(engine)
            engine.some.clear()
            requests = self._that_fit(engine)
            if not requests:
                continue
            if not engine.pending and self._silence(engine) > FORGET_SECONDS / 2:
                engine.incarnation = None  # it may have forgotten this client, and answer with another
                engine.known.clear()
            engine.pending |= {request.number: request for request in requests}
            engine.asked.set()
            await engine.known.wait()
            tasks.create_task(self._hand_over(engine, requests))

    def _that_fit(self, engine: _Engine) -> list[Request]:
        """Remove and return the waiting requests that the engine may have now."""
        if self.calls_per_engine is None:
            room = len(engine.waiting)
        else:
            room = max(0, self.calls_per_engine - len(engine.pending))
        requests, engine.waiting = engine.waiting[:room], engine.waiting[room:]
        return requests

    async def _hand_over(self, engine: _Engine, requests: list[Request]) -> None:
        try:
            await engine.handle.submit.remote(self.name, Requests(requests))
        except RayError:
            await asyncio.sleep(RETRY_SECONDS)
            engine.waiting += [one for one in requests if engine.pending.pop(one.number, None)]
            engine.some.set()

    def _silence(self, engine: _Engine) -> float:
        """Seconds since the engine last answered."""
        return asyncio.get_running_loop().time() - engine.heard

    def _share(self) -> int:
        """How many requests, or answers, are passed on together."""
        asked = len(self._futures)
        return max(SMALLEST_SHARE, asked // SHARES) if asked < MANY else asked

    async def _let_others_ask(self, engine: _Engine) -> None:
        """Wait until there are enough requests, or some rounds of the event loop brought no new one."""
        quiet, before = 0, len(engine.waiting)
        while quiet < QUIET_ROUNDS and len(engine.waiting) < self._share():
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(engine.waiting) == before else 0
            before = len(engine.waiting)

    async def _fetch(self, engine: _Engine) -> None:
        loop = asyncio.get_running_loop()
        engine.heard = loop.time()
        while True:
            if not engine.pending:
                engine.asked.clear()
                await engine.asked.wait()
                engine.heard = loop.time()
            wait = 1.0 if engine.known.is_set() else 0.0
            try:
                answers = await asyncio.wait_for(engine.handle.poll.remote(self.name, wait), self.patience)
            except RayTaskError as error:
                self._give_up(engine, SelfplayError(f"{engine.name} failed: {error.cause}"))
                continue
            except (RayError, TimeoutError):
                if engine.incarnation is not None:
                    engine.incarnation = UNHEARD  # answers that the engine takes for fetched may be lost
                if self._silence(engine) > self.patience:
                    self._give_up(engine, self._lost(engine))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            engine.heard = loop.time()
            self._meet(engine, answers.incarnation)
            share = self._share()
            for number, answer in enumerate(answers.answers, start=1):
                self._take(engine, answer)
                if number % share == 0:
                    await asyncio.sleep(0)  # these games move before the others get answers

    def _meet(self, engine: _Engine, incarnation: int) -> None:
        """Resend pending requests if another incarnation answers, which never received them."""
        if engine.incarnation not in (None, incarnation):
            engine.waiting = [*engine.pending.values(), *engine.waiting]
            engine.pending = {}
            engine.some.set()
        engine.incarnation = incarnation
        engine.known.set()

    def _take(self, engine: _Engine, answer: Answer) -> None:
        engine.pending.pop(answer.number, None)
        if engine.waiting:
            engine.some.set()
        future = self._futures.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _give_up(self, engine: _Engine, error: SelfplayError) -> None:
        self.fatal = error
        for number in list(engine.pending):
            self._take(engine, Answer(number, error=error))

    def _lost(self, engine: _Engine) -> SelfplayError:
        return SelfplayError(f"{engine.name} has not answered for {self.patience:g} s")
