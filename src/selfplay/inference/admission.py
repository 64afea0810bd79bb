"""Admission of requests in the order of their arrival, within the limit on cached tokens.

A request is admitted when its prompt and its longest possible answer fit. The tokens that it has not drawn
yet stay reserved, so an admitted request always ends, and the next one is admitted eventually.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from selfplay.core import EpisodeError
from selfplay.inference.tree_cache import TreeCache


@dataclass
class ServedModel:
    """A served model: an adapter, its version, its cache and its active requests."""

    adapter: str
    version: int
    cache: TreeCache = field(default_factory=TreeCache)
    active: list["Request"] = field(default_factory=list)

    def reserved(self) -> int:
        """Return the number of tokens that its active requests may still add to the cache."""
        return sum(request.to_come for request in self.active)

    def keep_what_runs(self) -> None:
        """Drop all contexts except those of active requests."""
        new_id = self.cache.prune([request.node for request in self.active])
        for request in self.active:
            request.node = new_id[request.node]

    def forget_contexts(self) -> None:
        """Drop all contexts; those of active requests will be computed again."""
        self.cache.clear()
        for request in self.active:
            request.node = self.cache.insert(request.prompt + request.drawn)


@dataclass
class Request:
    """A call in progress. ``forced`` tokens are scored instead of drawn; ``node`` is the request's context.

    It also ends where a ``stop`` string appears in its text; ``stopped_text`` is then the text before that.
    ``grown`` is set whenever tokens have been drawn, for a caller that streams them.
    """

    model: ServedModel
    future: "asyncio.Future[None]"
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    version: int
    forced: list[int] | None = None
    stop: tuple[str, ...] = ()
    stopped_text: str | None = None
    grown: asyncio.Event | None = None
    node: int = -1
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "length"

    @property
    def to_come(self) -> int:
        """Number of tokens that it may still add to the cache; the last drawn token is not computed."""
        return self.max_tokens - 1 - len(self.drawn)


class Admission:
    """The queue of waiting requests; see the module.

    Args:
        max_cached_tokens: maximum number of tokens in all caches together, including those of active
            requests. No single request may need more.
    """

    def __init__(self, max_cached_tokens: int) -> None:
        self.max_cached_tokens = max_cached_tokens
        self.waiting: deque[Request] = deque()
        self._full = False

    def room_was_made(self) -> None:
        """Note that a request has ended, so that waiting requests are considered again."""
        self._full = False

    def admit(self, models: Iterable[ServedModel]) -> None:
        """Make waiting requests active as long as the first of them fits.

        Unused contexts are dropped to make space. If that is not enough, no request is admitted until an
        active one has ended.
        """
        if self._full or not self.waiting:
            return
        models = list(models)
        free = self._free(models)
        while self.waiting:
            request = self.waiting[0]
            if request.future.done():
                self.waiting.popleft()
                continue
            if not _fits(request, free):
                for model in models:
                    model.keep_what_runs()
                free = self._free(models)
                if not _fits(request, free):
                    self._full = True
                    return
            self.waiting.popleft()
            cache = request.model.cache
            before = len(cache)
            request.node = cache.insert(request.prompt)
            request.model.active.append(request)
            free -= len(cache) - before + request.to_come

    def fail(self, model: ServedModel, kind: type[EpisodeError], reason: str) -> None:
        """End all requests to ``model`` with an error of this kind, and empty its cache."""
        mine = [*model.active, *(request for request in self.waiting if request.model is model)]
        for request in mine:
            if not request.future.done():
                request.future.set_exception(kind(reason))
        model.active.clear()
        self.waiting = deque(request for request in self.waiting if request.model is not model)
        model.cache.clear()  # an interrupted forward pass may have left slots unfilled
        self.room_was_made()

    def _free(self, models: list[ServedModel]) -> int:
        taken = sum(len(model.cache) + model.reserved() for model in models)
        return self.max_cached_tokens - taken


def _fits(request: Request, free: int) -> bool:
    most = len(request.prompt) + request.to_come
    return most <= free or most - request.model.cache.find(request.prompt)[1] <= free
