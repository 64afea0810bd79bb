"""Decoder: run forward passes for waiting requests and draw tokens from their distributions."""

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from selfplay.core import Messages
from selfplay.core.chat_tokens import decoded
from selfplay.core.client import before_stop
from selfplay.core.pass_sizes import MAX_STORED_DISTRIBUTIONS, ROWS_AT_ONCE
from selfplay.inference.admission import Request, ServedModel
from selfplay.inference.cached_attention import attention_over
from selfplay.inference.sampling import Distribution, FloatArray, uniforms
from selfplay.inference.tree_cache import TreeCache


class TreeModel(Protocol):
    """The part of a model that the engine uses; ``learning.PolicyModel`` implements it."""

    device: torch.device
    tokenizer: Any
    stop_token_ids: list[int]
    context_length: int
    mixes_adapters: bool  # whether one forward pass may use several adapters

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of keys and values."""

    def hidden_states(self, tokens_T: Tensor, positions_T: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """Run the model with the active adapter and return hidden_TD."""

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV."""

    def adapter(self, name: str) -> AbstractContextManager[None]:
        """Run the body with an adapter active."""

    def adapters(self, parts: Sequence[tuple[str, int]]) -> AbstractContextManager[None]:
        """Run the body with adapters for consecutive tokens, each with its number of tokens."""

    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a chat prompt."""

    def encode_answer(self, prompt: Messages, text: str) -> list[int]:
        """Return the token ids of an answer to ``prompt`` and its stop token."""

    def spelled_control_tokens(self, text: str) -> int:
        """Return the number of control tokens that an answer spells with ordinary tokens."""


@dataclass
class EngineStats:
    """Totals since the last reset. Tokens are counts; ``seconds`` is the time spent in forward passes.

    ``most_cached_tokens`` is the maximum number of tokens whose keys and values were cached at once, over all
    models. ``spelled_control_tokens`` counts control tokens that answers spelled with ordinary tokens; in a
    prompt they are text.
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
    """The tokens of one cache in a forward pass; distributions after the ``wanted`` nodes are stored."""

    adapter: str
    cache: TreeCache
    batch: list[int]
    wanted: Container[int]


class Decoder:
    """The engine's forward passes and draws, which it counts in ``stats``.

    Args:
        model: the model with its adapters.
        max_batch_tokens: maximum number of tokens in one forward pass.
    """

    def __init__(self, model: TreeModel, max_batch_tokens: int) -> None:
        self.model = model
        self.max_batch_tokens = max_batch_tokens
        self.stats = EngineStats()
        self._mixes = model.mixes_adapters
        self._stop_ids = frozenset(model.stop_token_ids)

    def draw(self, served: ServedModel) -> bool:
        """Draw for every request as far as distributions are known; return whether any request finished."""
        cache, finished, moving = served.cache, False, served.active
        while moving:
            moving = [one for one in moving if one.node in cache.logprobs and not one.future.done()]
            chance_M = _chances(moving)
            by_place: dict[tuple[int, float], list[int]] = {}
            for index, request in enumerate(moving):
                by_place.setdefault((request.node, request.temperature), []).append(index)
            going_on: list[Request] = []
            for (node, temperature), indices in by_place.items():
                distribution = Distribution(cache.logprobs[node], temperature)
                tokens = distribution.draw(chance_M[indices]).tolist()
                for index, token in zip(indices, tokens, strict=True):
                    if self._take(cache, moving[index], token, distribution):
                        going_on.append(moving[index])
                    else:
                        finished = True
            moving = going_on
        served.active = [request for request in served.active if not request.future.done()]
        return finished

    def _take(self, cache: TreeCache, request: Request, token: int, distribution: Distribution) -> bool:
        """Append ``token``, or the forced token in its place; return whether the request continues."""
        if request.forced is not None:
            token = request.forced[len(request.drawn)]
        request.drawn.append(token)
        request.logprobs.append(float(distribution.logprobs_V[token]))
        self.stats.generated_tokens += request.forced is None
        if request.grown is not None:
            request.grown.set()
        at_stop_token = request.forced is None and token in self._stop_ids
        if at_stop_token or (request.stop and self._has_stopped(request)):
            request.finish_reason = "stop"
        elif len(request.drawn) < request.max_tokens:
            request.node = cache.insert([token], request.node)
            return True
        request.future.set_result(None)
        return False

    def _has_stopped(self, request: Request) -> bool:
        text = decoded(self.model.tokenizer, request.drawn)
        request.stopped_text = before_stop(text, request.stop)
        return request.stopped_text is not None

    def forward(self, models: Iterable[ServedModel]) -> None:
        """Compute tokens that active requests wait for, of each model at most ``max_batch_tokens``.

        Models share forward passes as far as that limit allows.
        """
        passes: list[list[_Part]] = []
        tokens = 0
        for served in models:
            part = self._part(served)
            if part is None:
                continue
            tokens += len(part.batch)
            if not passes or tokens > self.max_batch_tokens or not self._mixes:
                passes.append([])
                tokens = len(part.batch)
            passes[-1].append(part)
        for parts in passes:
            self._compute(sorted(parts, key=lambda part: len(part.batch)))  # short parts side by side

    def _part(self, served: ServedModel) -> _Part | None:
        """Return the next tokens of a model; ``None`` if no request waits."""
        if not served.active:
            return None
        cache = served.cache
        for node in list(cache.logprobs)[:-MAX_STORED_DISTRIBUTIONS]:
            del cache.logprobs[node]  # the oldest; no request waits for them, and they can be recomputed
        wanted = dict.fromkeys(request.node for request in served.active)
        return _Part(served.adapter, cache, self._next_batch(cache, wanted), wanted)

    def logprobs(self, adapter: str, ids: list[int]) -> list[float]:
        """Return the log-probability of each token id after the first, at temperature 1, without caching."""
        cache = TreeCache()
        path = cache.path(cache.insert(ids[:-1])).tolist()
        while cache.pending:
            self._compute([_Part(adapter, cache, self._next_batch(cache, {}), set(path))])
        return [float(cache.logprobs[node][token]) for node, token in zip(path, ids[1:], strict=True)]

    def _compute(self, parts: list[_Part]) -> None:
        """Fill the slots of the parts' batches in one pass, and store the distributions that are wanted."""
        started = perf_counter()
        nodes = [(part.cache, node) for part in parts for node in part.batch]
        wanted = [part.wanted for part in parts for _ in part.batch]
        places = [place for place, (_, node) in enumerate(nodes) if node in wanted[place]]
        with torch.inference_mode(), self._adapters(parts):
            caches = [(part.cache, part.batch) for part in parts]
            attend = attention_over(caches, self.model.dtype, self.model.device)
            tokens_T = torch.tensor([cache.tokens[node] for cache, node in nodes], device=self.model.device)
            positions_T = torch.tensor(
                [cache.depths[node] for cache, node in nodes], device=self.model.device
            )
            hidden_TD = self.model.hidden_states(tokens_T, positions_T, attend)
            for first in range(0, len(places), ROWS_AT_ONCE):
                chunk = places[first : first + ROWS_AT_ONCE]
                logprobs_NV = torch.log_softmax(self.model.logits(hidden_TD[chunk]), dim=-1).cpu().numpy()
                for place, row_V in zip(chunk, logprobs_NV, strict=True):
                    cache, node = nodes[place]
                    cache.logprobs[node] = row_V.copy()
        self.stats.seconds += perf_counter() - started
        self.stats.computed_tokens += len(nodes)
        self.stats.forward_passes += 1

    def _adapters(self, parts: list[_Part]) -> AbstractContextManager[None]:
        if len(parts) == 1:
            return self.model.adapter(parts[0].adapter)
        return self.model.adapters([(part.adapter, len(part.batch)) for part in parts])

    def _next_batch(self, cache: TreeCache, wanted: dict[int, None]) -> list[int]:
        """Return pending nodes, then nodes whose distribution was dropped and is wanted again."""
        batch = cache.pending[: self.max_batch_tokens]
        cache.pending = cache.pending[self.max_batch_tokens :]
        new = {*batch, *cache.pending}
        again = [node for node in wanted if node not in new and node not in cache.logprobs]
        return batch + again[: self.max_batch_tokens - len(batch)]


def _chances(requests: list[Request]) -> FloatArray:
    """Return the uniform number of each request's next token."""
    seeds_M = np.array([request.seed for request in requests], dtype=np.uint64)
    offsets_M = np.array([len(request.drawn) for request in requests], dtype=np.uint64)
    return uniforms(seeds_M, offsets_M)
