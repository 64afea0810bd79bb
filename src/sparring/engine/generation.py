"""Decoder: run forward passes for waiting requests and draw tokens from their distributions."""

from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from sparring.core import SparringError, TransientError
from sparring.core.answer_reader import AnswerReader
from sparring.core.client import before_stop
from sparring.engine.admission import Request, ServedModel
from sparring.engine.answering import PLAIN, Shaping
from sparring.engine.cached_attention import CachedAttention
from sparring.engine.sampling import (
    NOT_NUMBERS,
    Distributions,
    FloatArray,
    IntArray,
    Logits,
    NextToken,
    StoredLogits,
    shaped_logits,
    uniforms,
)
from sparring.engine.tree_cache import TreeCache
from sparring.learn.policy import PolicyModel


class DrawnToken(NamedTuple):
    """A token, its log-probability, and the most likely tokens in its place if the request asks for them."""

    token: int
    logprob: float
    likeliest: list[tuple[int, float]]


def draw_tokens(logits: Logits, rows: Sequence[int], requests: Sequence[Request]) -> list[DrawnToken | None]:
    """Return the next token of each request, whose context is at ``rows`` of the logits; ``None`` where
    logits are not numbers, because the weights are damaged."""
    chance_M = _chances(requests)
    alike: dict[tuple[float, Shaping | None], list[int]] = {}
    for index, request in enumerate(requests):
        shaping = None if request.options is PLAIN else request.options.shaping
        alike.setdefault((request.temperature, shaping), []).append(index)
    draws: list[DrawnToken | None] = [None] * len(requests)
    for (temperature, shaping), indices in alike.items():
        rows_m = np.array([rows[index] for index in indices])
        some = [requests[index] for index in indices]
        distributions, places_m = _distributions(logits, rows_m, temperature, shaping, some)
        usable_m = distributions.usable(places_m)
        indices = [index for index, usable in zip(indices, usable_m, strict=True) if usable]
        rows_m, places_m = rows_m[usable_m], places_m[usable_m]
        some = [requests[index] for index in indices]
        tokens_m = distributions.draw(places_m, chance_M[indices])
        for place, request in enumerate(some):
            if request.forced is not None and len(request.drawn) < len(request.forced):
                tokens_m[place] = request.forced[len(request.drawn)]
        described = _described(logits, distributions, rows_m, places_m, tokens_m, some)
        for index, draw in zip(indices, described, strict=True):
            draws[index] = draw
    return draws


def _distributions(
    logits: Logits, rows_m: IntArray, temperature: float, shaping: Shaping | None, requests: Sequence[Request]
) -> tuple[Distributions, IntArray]:
    if shaping is None or shaping == PLAIN.shaping:
        return logits.at(temperature), rows_m
    contexts_m = [request.prompt + request.drawn for request in requests]
    shaped_mV = shaped_logits(logits.logits_NV[torch.from_numpy(rows_m)], temperature, shaping, contexts_m)
    return Distributions(shaped_mV, temperature), np.arange(len(rows_m))


def _described(
    logits: Logits,
    drawn_from: Distributions,
    rows_m: IntArray,
    places_m: IntArray,
    tokens_m: IntArray,
    requests: Sequence[Request],
) -> list[DrawnToken]:
    if all(request.options is PLAIN for request in requests):  # as in every run
        logprobs = drawn_from.logprobs(places_m, tokens_m)
        return [DrawnToken(*pair, []) for pair in zip(tokens_m.tolist(), logprobs, strict=True)]
    draws: dict[int, DrawnToken] = {}
    for as_drawn in (True, False):
        some = [index for index, request in enumerate(requests) if request.options.as_drawn == as_drawn]
        if not some:
            continue
        distributions = drawn_from if as_drawn else logits.at(1.0)
        in_them = (places_m if as_drawn else rows_m)[some]
        tokens = tokens_m[some]
        logprobs = distributions.logprobs(in_them, tokens)
        counts = [requests[index].options.likeliest for index in some]
        likeliest: list[list[tuple[int, float]]] = [[] for _ in some]
        if any(counts):
            likeliest = distributions.likeliest(in_them, max(counts))
        for index, token, logprob, count, top in zip(
            some, tokens.tolist(), logprobs, counts, likeliest, strict=True
        ):
            draws[index] = DrawnToken(token, logprob, top[:count])
    return [draws[index] for index in range(len(requests))]


def _chances(requests: Sequence[Request]) -> FloatArray:
    seeds_M = np.array([request.seed for request in requests], dtype=np.uint64)
    offsets_M = np.array([len(request.drawn) for request in requests], dtype=np.uint64)
    return uniforms(seeds_M, offsets_M)


@dataclass
class EngineStats:
    """Totals since the last reset; ``seconds`` are those of forward passes, ``most_cached_tokens`` the most
    at once. ``spelled_control_tokens`` counts control tokens spelled with ordinary ones, which are text in a
    prompt.
    """

    requests: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    most_cached_tokens: int = 0
    spelled_control_tokens: int = 0
    forward_passes: int = 0
    seconds: float = 0.0


@dataclass
class _Part:
    adapter: str
    cache: TreeCache
    batch: list[int]
    wanted: Container[int]


class Decoder:
    """The engine's forward passes, of at most ``max_batch_tokens``, and draws, counted in ``stats``."""

    def __init__(self, model: PolicyModel, reader: AnswerReader, max_batch_tokens: int) -> None:
        self.model = model
        self.reader = reader
        self.max_batch_tokens = max_batch_tokens
        self.stats = EngineStats()
        self._stop_ids = frozenset(model.stop_token_ids)
        self._logits = StoredLogits(model.logits)

    def draw(self, models: Iterable[ServedModel]) -> bool:
        """Draw for every request whose context is computed; return whether any finished. One whose logits are
        not numbers fails."""
        moving = [request for served in models for request in served.active if not request.future.done()]
        finished = self._score_prompts(moving)
        while moving := [one for one in moving if _is_ready(one)]:
            going_on = [
                self._take(request, draw)
                for request, draw in zip(moving, self._draw_once(moving), strict=True)
            ]
            finished = finished or not all(going_on)
            moving = [request for request, goes_on in zip(moving, going_on, strict=True) if goes_on]
        for served in models:
            served.end_requests()
        return finished

    def _draw_once(self, requests: list[Request]) -> list[DrawnToken | None]:
        contexts = [request.model.cache.next_tokens[request.node] for request in requests]
        drawn: dict[int, DrawnToken | None] = {}
        with torch.inference_mode():
            for logits, indices in self._logits.of(contexts):
                rows = [contexts[index].row for index in indices]
                drawn.update(
                    zip(
                        indices,
                        draw_tokens(logits, rows, [requests[index] for index in indices]),
                        strict=True,
                    )
                )
        return [drawn[index] for index in range(len(requests))]

    def _take(self, request: Request, draw: DrawnToken | None) -> bool:
        if draw is None:
            request.fail(TransientError(NOT_NUMBERS))
            return False
        request.drawn.append(draw.token)
        request.logprobs.append(draw.logprob)
        if request.options.likeliest:
            request.more.likeliest.append(draw.likeliest)
        self.stats.generated_tokens += not request.scored
        if request.grown is not None:
            request.grown.set()
        options = request.options
        is_stop = draw.token in options.stop_token_ids
        is_stop = is_stop or (draw.token in self._stop_ids and not options.ignore_eos)
        at_stop_token = not request.scored and is_stop
        if at_stop_token and self.reader.thinks_on(request.prompt, request.drawn):
            at_stop_token = False
        if at_stop_token or (request.stop and self._has_stopped(request)):
            request.finish_reason = "stop"
        elif len(request.drawn) < request.max_tokens:
            if len(request.drawn) == request.max_reasoning:
                self._end_thought(request)
            request.node = request.model.cache.insert([draw.token], request.node)
            return True
        request.future.set_result(None)
        return False

    def _score_prompts(self, requests: list[Request]) -> bool:
        for request in requests:
            if request.to_score and not self._missing(request):
                self._score_prompt(request)
            if request.max_tokens == 0 and not request.to_score and not request.future.done():
                request.future.set_result(None)
        return any(request.future.done() for request in requests)

    def _missing(self, request: Request) -> list[int]:
        """Return the nodes before the last one whose next tokens a prompt's log-probabilities need."""
        cache = request.model.cache
        path = cache.path(request.node)[:-1].tolist()
        return [node for node in path if node not in cache.next_tokens]

    def _score_prompt(self, request: Request) -> None:
        cache, ids, count = request.model.cache, request.prompt, request.options.likeliest
        contexts = [cache.next_tokens[node] for node in cache.path(request.node)[:-1].tolist()]
        try:
            scored = self._scored(self._logits, contexts, ids[1:], count)
        except SparringError as error:
            request.fail(TransientError(str(error)))
            return
        request.more.prompt = [logprob for logprob, _ in scored]
        request.more.prompt_likeliest = [likeliest for _, likeliest in scored]

    def _scored(
        self, stored: StoredLogits, contexts: list[NextToken], ids: list[int], likeliest: int = 0
    ) -> list[tuple[float, list[tuple[int, float]]]]:
        scored: dict[int, tuple[float, list[tuple[int, float]]]] = {}
        with torch.inference_mode():
            for logits, indices in stored.of(contexts):
                rows_m = np.array([contexts[i].row for i in indices])
                distributions = logits.at(1.0)
                logprobs = distributions.logprobs(rows_m, np.array([ids[i] for i in indices]))
                tops = distributions.likeliest(rows_m, likeliest) if likeliest else [[] for _ in indices]
                scored.update(zip(indices, zip(logprobs, tops, strict=True), strict=True))
        return [scored[index] for index in range(len(contexts))]

    def _has_stopped(self, request: Request) -> bool:
        _, parts = self.reader.read(request.prompt, request.drawn, request.reasoning)
        request.stopped_text = before_stop(parts.said, request.stop)
        return request.stopped_text is not None

    def _end_thought(self, request: Request) -> None:
        """Let the tokens that end a thought come next, if the answer is in one."""
        _, parts = self.reader.read(request.prompt, request.drawn, request.reasoning)
        if parts.inside is not None:
            request.forced = [*request.drawn, *self.reader.closing(parts.inside)]
            request.closed = (len(request.drawn), len(request.forced))

    def forward(self, models: Iterable[ServedModel]) -> None:
        """Compute tokens that requests wait for. Models share a pass as far as its limit allows."""
        passes: list[list[_Part]] = []
        tokens = 0
        for served in models:
            part = self._part(served)
            if part is None:
                continue
            tokens += len(part.batch)
            if not passes or tokens > self.max_batch_tokens or not self.model.mixes_adapters:
                passes.append([])
                tokens = len(part.batch)
            passes[-1].append(part)
        for parts in passes:
            self._compute(sorted(parts, key=lambda part: len(part.batch)))  # short parts side by side

    def _part(self, served: ServedModel) -> _Part | None:
        if not served.active:
            return None
        cache = served.cache
        wanted = dict.fromkeys(request.node for request in served.active)
        for request in served.active:
            if request.to_score:
                wanted |= dict.fromkeys(self._missing(request))
        return _Part(served.adapter, cache, self._next_batch(cache, wanted), wanted)

    def logprobs(self, adapter: str, ids: list[int]) -> list[float]:
        """Return the log-probability of each token id after the first, at temperature 1, without caching."""
        cache = TreeCache()
        path = cache.path(cache.insert(ids[:-1])).tolist()
        while cache.pending:
            self._compute([_Part(adapter, cache, self._next_batch(cache, {}), set(path))])
        contexts = [cache.next_tokens[node] for node in path]
        return [logprob for logprob, _ in self._scored(StoredLogits(self.model.logits), contexts, ids[1:])]

    def _compute(self, parts: list[_Part]) -> None:
        started = perf_counter()
        nodes = [(part.cache, node) for part in parts for node in part.batch]
        wanted = [part.wanted for part in parts for _ in part.batch]
        places = [place for place, (_, node) in enumerate(nodes) if node in wanted[place]]
        with torch.inference_mode(), self._adapters(parts):
            caches = [(part.cache, part.batch) for part in parts]
            attend = CachedAttention(caches, self.model.dtype, self.model.device)
            tokens_T = torch.tensor([cache.tokens[node] for cache, node in nodes], device=self.model.device)
            positions_T = torch.tensor(
                [cache.depths[node] for cache, node in nodes], device=self.model.device
            )
            hidden_TD = self.model.hidden_states(tokens_T, positions_T, attend)
            for place, hidden_D in zip(places, hidden_TD[places], strict=True):
                cache, node = nodes[place]
                cache.next_tokens[node] = NextToken(hidden_D.clone())  # a view would keep the whole pass
        self.stats.seconds += perf_counter() - started
        self.stats.computed_tokens += len(nodes)
        self.stats.forward_passes += 1

    def _adapters(self, parts: list[_Part]) -> AbstractContextManager[None]:
        if not self.model.mixes_adapters:
            return self.model.adapter(parts[0].adapter)
        return self.model.adapters([(part.adapter, len(part.batch)) for part in parts])

    def _next_batch(self, cache: TreeCache, wanted: dict[int, None]) -> list[int]:
        """Return pending nodes, then nodes that were computed when nobody wanted to draw after them."""
        batch = cache.pending[: self.max_batch_tokens]
        cache.pending = cache.pending[self.max_batch_tokens :]
        new = {*batch, *cache.pending}
        again = [node for node in wanted if node not in new and node not in cache.next_tokens]
        return batch + again[: self.max_batch_tokens - len(batch)]


def _is_ready(request: Request) -> bool:
    return (
        not request.future.done() and not request.to_score and request.node in request.model.cache.next_tokens
    )
