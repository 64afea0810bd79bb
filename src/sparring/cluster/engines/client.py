"""EngineClient: the calls of a process to all engines of a cluster, which may come and go."""

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from ray.exceptions import RayError

from sparring.cluster.engines.conversations import Asking, Talks
from sparring.cluster.engines.link import EngineLink
from sparring.cluster.engines.service import EngineAnswer
from sparring.core import InferenceClient, InputError, Messages, ModelResponse, SparringError
from sparring.core.adapters import BASE, TRAINED, AdapterRef, Weights
from sparring.core.current_episode import EpisodeContext, current_episode
from sparring.engine.adapters import DeliveryError
from sparring.engine.answering import Engine, EngineCall
from sparring.engine.api_models import api_client, as_chat, is_adapter, is_api_model
from sparring.engine.hosts import EngineRequest

JOIN_SECONDS = 2.0
"""Seconds that the first calls wait for engines, so that not all of them go to the first that answers."""
LOOK_SECONDS = 1.0
SEEDS = 1 << 64
"""The engines know seeds below this number; larger ones wrap around."""
OVERLOAD, SLACK = 2, 32
"""A game moves when its engine has more than ``OVERLOAD`` times the requests of another, and ``SLACK``."""


@dataclass(eq=False)
class _Asked:
    """A request that is not answered yet, and the game that it is for."""

    asking: Asking
    future: "asyncio.Future[EngineAnswer]"
    game: EpisodeContext | None

    @property
    def key(self) -> int:
        """A number that is the same for all requests of a game."""
        name = str(self.asking.request.number) if self.game is None else self.game.rollout_id
        return crc32(name.encode())


class EngineClient(Engine):
    """See the module.

    A game begins at the less loaded of two engines, which its id determines. All its calls go to that engine,
    which has cached its prompts, unless the engine is lost or clearly overloaded. The requests of a lost
    engine go to the others: a request carries its seed and its adapter, so its answer is the same anywhere.
    :class:`EngineLink` draws the states of an engine.

    ::

                     ┌── no engine is present ──► queue ── an engine came ──┐
        a call ──────┤                                                      ├──► EngineLink ──► its answer
                     └── the game's engine ─────────────────────────────────┘        │
                             ▲                                                       │
                             └───────────────── the engine left ─────────────────────┘

    ``adapters`` maps names to adapters; those of the policies follow the newest weights, also in games that
    began under others. A name that is not among them is a model behind an API or an adapter's directory (see
    ``api_models``). ``step`` is the update whose weights answer. ``fatal`` is set by an error that no further
    call can survive.

    Args:
        engines: handles of :class:`EngineService`.
        policies: the policies, which are untrained at first.
        frozen: further adapters, by name.
        patience: seconds without any engine after which calls fail.
        calls_per_engine: maximum requests in progress at one engine; further ones wait here. ``None`` for no
            limit.
        adapters_only: reject names that are not among ``adapters``.
        wrong_adapter_ends: whether an adapter that is not the one that was written ends all further calls,
            as a run must; otherwise only the calls that name it fail.
    """

    def __init__(
        self,
        engines: list[Any],
        policies: Sequence[str] = (TRAINED,),
        *,
        frozen: Mapping[str, AdapterRef] | None = None,
        patience: float = 300.0,
        calls_per_engine: int | None = None,
        adapters_only: bool = False,
        wrong_adapter_ends: bool = True,
    ) -> None:
        self.name = uuid.uuid4().hex
        self._api_clients: dict[str, InferenceClient] = {}
        self.patience = patience
        self.adapters_only = adapters_only
        self.wrong_adapter_ends = wrong_adapter_ends
        untrained = Weights.untrained(policies)
        self.step = untrained.step
        self.adapters = {BASE: AdapterRef(BASE, 0, None), **untrained.adapters, **(frozen or {})}
        self.fatal: SparringError | None = None
        self._links = [
            EngineLink(
                f"Engine-{number}",
                handle,
                self.name,
                calls_per_engine,
                came=self._came,
                left=self._left,
                answered=self._take,
            )
            for number, handle in enumerate(engines)
        ]
        self._present: list[EngineLink] = []
        self._joined = False
        self._homes: WeakKeyDictionary[EpisodeContext, EngineLink] = WeakKeyDictionary()
        self._talks = Talks()
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._queue: list[_Asked] = []
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, weights: Weights) -> None:
        """Use these weights from now on, unless newer ones are known."""
        if weights.step >= self.step:
            self.step = weights.step
            self.adapters |= weights.adapters

    async def get_policy_version(self) -> int:
        """Return the newest version that answers now."""
        return max((adapter.version for adapter in self.adapters.values()), default=0)

    async def answer(self, call: EngineCall) -> ModelResponse:
        """Answer a call; a model behind an API has none of the ``options`` but the sampling.

        Raises:
            SparringError: the engine's error, or that the engine is lost.
        """
        model = call.model
        if not (model is None or model in self.adapters or self.adapters_only) and is_api_model(model):
            messages, client = as_chat(call.messages), self._api_client(model)
            if call.given is not None:
                return await client.give(messages, call.given, call.temperature)
            return await client.complete(
                messages,
                call.temperature,
                call.max_tokens,
                call.return_tokens,
                seed=call.seed,
                stop=call.stop,
                max_reasoning=call.max_reasoning,
                sampling=call.options.shaping.sampling,
                reasoning=call.reasoning,
            )
        seed = None if call.seed is None else call.seed % SEEDS
        request = EngineRequest(next(self._numbers), self._adapter(model), replace(call, seed=seed))
        answer = await self._ask(request)
        assert answer.response is not None
        return answer.response

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each completion; see :class:`InferenceClient`."""
        request = EngineRequest(next(self._numbers), self._adapter(model), EngineCall(messages), completions)
        answer = await self._ask(request)
        assert answer.scores is not None
        return answer.scores

    async def loads(self) -> dict[str, dict[str, float]]:
        """Return the load of each engine that answers, by name; see :meth:`EngineHost.stats`."""
        loads = await asyncio.gather(*map(_load_of, self._links))
        return {link.name: load for link, load in zip(self._links, loads, strict=True) if load is not None}

    async def close(self) -> None:
        """Stop sending requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _adapter(self, model: str | None) -> AdapterRef:
        model = model or TRAINED
        if model not in self.adapters:
            if self.adapters_only:
                names = ", ".join(self.adapters)
                raise InputError("model", f"the engine does not serve {model}", f"It serves {names}")
            if not is_adapter(model):
                raise SparringError(f"there is no adapter for the model {model}")
            self.adapters[model] = AdapterRef(model, 0, str(Path(model).absolute()))
        return self.adapters[model]

    def _api_client(self, model: str) -> InferenceClient:
        if model not in self._api_clients:
            self._api_clients[model] = api_client(model)
        return self._api_clients[model]

    async def _ask(self, request: EngineRequest) -> EngineAnswer:
        if self.fatal is not None:
            raise self.fatal
        if not self._tasks:
            self._start()
        future: asyncio.Future[EngineAnswer] = asyncio.get_running_loop().create_future()
        game = current_episode.get()
        asking = self._talks.asking(request, game)
        asked = self._asked[request.number] = _Asked(asking, future, game)
        self._route(asked)
        try:
            answer = await future
        finally:
            del self._asked[request.number]
        if answer.error is not None:
            if self.wrong_adapter_ends and isinstance(answer.error, DeliveryError):
                self.fatal = answer.error
            raise answer.error
        return answer

    def _start(self) -> None:
        self._tasks = [asyncio.create_task(link.serve()) for link in self._links]
        self._tasks.append(asyncio.create_task(self._watch()))
        for task in self._tasks:
            task.add_done_callback(self._tell_failure)

    def _tell_failure(self, task: "asyncio.Task[None]") -> None:
        """Fail all pending requests if serving an engine broke."""
        if not task.cancelled() and task.exception() is not None:
            self._fail(SparringError(f"a request to an engine failed: {task.exception()!r}"))

    def _fail(self, error: SparringError) -> None:
        self.fatal = error
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_exception(error)

    # Engines come and go

    async def _watch(self) -> None:
        """Begin after ``JOIN_SECONDS`` with the engines that are there; fail when none is left."""
        await asyncio.sleep(JOIN_SECONDS)
        self._join()
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._present or not self._asked:
                last = loop.time()
                continue
            problems = [link.problem for link in self._links if link.problem is not None]
            if problems and len(problems) == len(self._links):
                self._fail(problems[0])
            elif loop.time() - last > self.patience:
                self._fail(problems[0] if problems else self._lost())

    def _join(self) -> None:
        self._joined = True
        self._route_queue()

    def _came(self, link: EngineLink) -> None:
        self._present.append(link)
        if self._joined:
            self._route_queue()
        elif len(self._present) == len(self._links):
            self._join()

    def _left(self, link: EngineLink, requests: list[Asking]) -> None:
        if link in self._present:
            self._present.remove(link)
        for asking in requests:
            if asking.request.number in self._asked:
                self._route(self._asked[asking.request.number])

    def _lost(self) -> SparringError:
        who = f"none of the {len(self._links)} engines has" if len(self._links) > 1 else "Engine-0 has not"
        return SparringError(f"{who} answered for {self.patience:g} s")

    # Which engine answers

    def _route(self, asked: _Asked) -> None:
        if self._joined and self._present:
            self._engine_for(asked).add(asked.asking)
        else:
            self._queue.append(asked)

    def _route_queue(self) -> None:
        queue, self._queue = self._queue, []
        for asked in queue:
            if not asked.future.done():
                self._route(asked)

    def _engine_for(self, asked: _Asked) -> EngineLink:
        other = self._less_loaded_of_two(asked.key)
        if asked.game is None:
            return other
        home = self._homes.get(asked.game)
        if home is None or not home.present or home.load > OVERLOAD * other.load + SLACK:
            home = self._homes[asked.game] = other
        return home

    def _less_loaded_of_two(self, key: int) -> EngineLink:
        """Return one of two engines; choosing among two by load is nearly as even as among all.

        (M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.)
        """
        count = len(self._present)
        if count == 1:
            return self._present[0]
        key, first = divmod(key, count)
        second = (first + 1 + key % (count - 1)) % count
        one, other = self._present[first], self._present[second]
        return one if one.load <= other.load else other

    def _take(self, link: EngineLink, answer: EngineAnswer) -> None:
        asked = self._asked.get(answer.number)
        if asked is not None and not asked.future.done():
            if answer.response is not None:
                whole = asked.asking.whole(answer.response, answer.known, link, answer.key)
                answer = replace(answer, response=whole)
            asked.future.set_result(answer)


async def _load_of(link: EngineLink) -> dict[str, float] | None:
    """Return an engine's load, or ``None`` if it does not answer."""
    try:
        load: dict[str, float] = await asyncio.wait_for(link.handle.load.remote(), LOOK_SECONDS)
    except (RayError, TimeoutError):
        return None
    return load
