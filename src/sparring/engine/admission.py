"""Admission of requests within the limit on cached tokens: those whose context is there first.

A request is admitted when its prompt and its longest possible answer fit; what it has not drawn yet stays
reserved, so every admitted request ends. The next request of a conversation overtakes requests with unknown
prompts, at most ``MOST_OVERTAKEN`` times in a row, and its context is not dropped while it waits. Of other
contexts the latest are kept as long as there is space.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from sparring.core import EpisodeError
from sparring.core.client import MoreLogprobs
from sparring.core.reasoning import ReasoningTags
from sparring.engine.answering import PLAIN, AnswerOptions
from sparring.engine.tree_cache import ROOT, TreeCache

MOST_OVERTAKEN = 64
"""How often in a row the first of the other requests may be overtaken."""
SPARE_SHARE = 16
"""Contexts are dropped until another 1 / 16 of all tokens is free, because dropping few takes as long."""


@dataclass
class ServedModel:
    """An adapter under a name, its cache and its active requests; ``ended`` has the contexts of those that
    ended, with the number of the latest request in each."""

    adapter: str
    version: int
    cache: TreeCache = field(default_factory=TreeCache)
    active: list["Request"] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)

    def reserved(self) -> int:
        """Return the number of tokens that its active requests may still add to the cache."""
        return sum(request.to_come for request in self.active)

    def end_requests(self) -> None:
        """Move the contexts of active requests that are done to ``ended``."""
        self.ended |= {request.node: request.number for request in self.active if request.future.done()}
        self.active = [request for request in self.active if not request.future.done()]

    def keep(self, nodes: list[int]) -> None:
        """Drop all contexts except those that end at ``nodes``, which include those of active requests."""
        new_id = self.cache.prune(nodes)
        kept = set(nodes)
        self.ended = {new_id[node]: number for node, number in self.ended.items() if node in kept}
        for request in self.active:
            request.node = new_id[request.node]

    def forget_contexts(self) -> None:
        """Drop all contexts; those of active requests will be computed again."""
        self.ended.clear()
        self.cache.clear()
        for request in self.active:
            request.node = self.cache.insert(request.prompt + request.drawn)


@dataclass
class Request:
    """A call in progress, which ends at a stop token, a ``stop`` string or ``max_tokens``.

    ``forced`` tokens take the place of drawn ones, as long as there are some. If they are only ``scored``,
    they end where they end and do not count as generated. A thought of ``max_reasoning`` tokens is ended;
    ``closed`` is the range of the ids that did. ``node`` is its context; ``grown`` is set whenever a token is
    drawn, for a caller that streams; ``number`` is its place in the order of arrival.
    """

    model: ServedModel
    future: "asyncio.Future[None]"
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    version: int
    forced: list[int] | None = None
    scored: bool = False
    max_reasoning: int | None = None
    reasoning: ReasoningTags = "auto"
    closed: tuple[int, int] | None = None
    stop: tuple[str, ...] = ()
    stopped_text: str | None = None
    options: AnswerOptions = PLAIN
    grown: asyncio.Event | None = None
    node: int = -1
    number: int = -1
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    more: MoreLogprobs = field(default_factory=lambda: MoreLogprobs([], [], []))
    finish_reason: str = "length"

    @property
    def to_score(self) -> bool:
        """Whether the log-probabilities of the prompt are asked for and not there yet."""
        return (
            self.options is not PLAIN
            and self.options.prompt_logprobs
            and len(self.more.prompt) < len(self.prompt) - 1
        )

    @property
    def to_come(self) -> int:
        """Number of tokens that it may still add to the cache; the last drawn token is not computed."""
        return max(0, self.max_tokens - 1 - len(self.drawn))

    def fail(self, error: EpisodeError) -> None:
        """End with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


class Admission:
    """The queue of waiting requests. No request may need more than ``max_cached_tokens``, the limit of all
    caches together."""

    def __init__(self, max_cached_tokens: int) -> None:
        self.max_cached_tokens = max_cached_tokens
        self._known: deque[Request] = deque()
        self._others: deque[Request] = deque()
        self._overtaken = 0
        self._arrived = 0
        self._full = False

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._known) + len(self._others)

    def add(self, request: Request) -> None:
        """Put a request into the queue."""
        request.number = self._arrived
        self._arrived += 1
        _, matched = request.model.cache.find(request.prompt)
        (self._known if 2 * matched > len(request.prompt) else self._others).append(request)

    def room_was_made(self) -> None:
        """Note that a request has ended, so that waiting requests are considered again."""
        self._full = False

    def admit(self, models: Iterable[ServedModel]) -> None:
        """Make waiting requests active as long as the next of them fits; if one does not even after contexts
        are dropped, none is admitted until an active one has ended."""
        if self._full:
            return
        models = list(models)
        free = self._free(models)
        while self:
            queue = self._next_queue()
            request = queue[0]
            if request.future.done():
                queue.popleft()
                continue
            if not _fits(request, free):
                self._make_room(request, models)
                free = self._free(models)
                if not _fits(request, free):
                    self._full = True
                    return
            queue.popleft()
            self._overtaken = self._overtaken + 1 if queue is self._known and self._others else 0
            cache = request.model.cache
            before = len(cache)
            request.node = cache.insert(request.prompt)
            request.model.active.append(request)
            free -= len(cache) - before + request.to_come

    def fail(self, model: ServedModel, kind: type[EpisodeError], reason: str) -> None:
        """End all requests to ``model`` with an error of this kind, and empty its cache."""
        waiting = chain(self._known, self._others)
        for request in [*model.active, *(one for one in waiting if one.model is model)]:
            request.fail(kind(reason))
        model.active.clear()
        self._known = deque(one for one in self._known if one.model is not model)
        self._others = deque(one for one in self._others if one.model is not model)
        model.forget_contexts()  # an interrupted forward pass may have left slots unfilled
        self.room_was_made()

    def _next_queue(self) -> deque[Request]:
        if not self._others or (self._known and self._overtaken < MOST_OVERTAKEN):
            return self._known
        return self._others

    def _free(self, models: list[ServedModel]) -> int:
        taken = sum(len(model.cache) + model.reserved() for model in models)
        return self.max_cached_tokens - taken

    def _make_room(self, request: Request, models: list[ServedModel]) -> None:
        """Drop contexts for the next request, but none if it would not fit then either."""
        kept = _Kept(models)
        for model in models:
            for one in model.active:
                kept.add(model, one.node)
        if any(model.active for model in models):  # else nothing would ever make room
            for one in islice(self._known, MOST_OVERTAKEN):
                kept.add(one.model, one.model.cache.find(one.prompt)[0])
        node, matched = request.model.cache.find(request.prompt)
        kept.add(request.model, node)
        room = self.max_cached_tokens - sum(model.reserved() for model in models) - kept.tokens
        room -= len(request.prompt) - matched + request.to_come
        if room < 0:
            return
        room -= min(room, self.max_cached_tokens // SPARE_SHARE)
        most = kept.tokens + room
        ended = [
            (number, place, node)
            for place, model in enumerate(models)
            for node, number in model.ended.items()
        ]
        for _, place, node in sorted(ended, reverse=True):
            if not kept.add(models[place], node, most):
                break
        for model in models:
            model.keep(kept.nodes(model))


def _fits(request: Request, free: int) -> bool:
    most = len(request.prompt) + request.to_come
    return most <= free or most - request.model.cache.find(request.prompt)[1] <= free


class _Kept:
    """Contexts that are not dropped; ``tokens`` counts the tokens in them together."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.tokens = 0
        self._nodes = {id(model): list[int]() for model in models}
        self._marks = {id(model): np.zeros(len(model.cache), dtype=bool) for model in models}

    def add(self, model: ServedModel, node: int, most: int | None = None) -> bool:
        """Add a context if there are at most ``most`` tokens then; return whether it was added."""
        path, marked = model.cache.path(node), self._marks[id(model)]
        new = int((~marked[path]).sum())
        if most is not None and self.tokens + new > most:
            return False
        self.tokens += new
        marked[path] = True
        if node != ROOT:
            self._nodes[id(model)].append(node)
        return True

    def nodes(self, model: ServedModel) -> list[int]:
        return self._nodes[id(model)]
