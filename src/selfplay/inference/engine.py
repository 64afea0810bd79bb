"""EmbeddedEngine: tokens from a model in this process, without computing any context twice.

Every adapter version has a :class:`TreeCache`. A request walks down the tree as far as contexts are known;
what is missing is computed together with everything else that waits. Requests in the same context draw from
the same distribution, each with its own seed, and go on together until they part.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from selfplay.core import InferenceClient, InputError, Messages, ModelResponse, SelfplayError
from selfplay.inference.cached_attention import CachedAttention
from selfplay.inference.sampling import Distribution, FloatArray, uniforms
from selfplay.inference.tree_cache import TreeCache

MAX_STORED_DISTRIBUTIONS = 512
ROWS_AT_ONCE = 256
MAX_RENDERED_TOKENS = 2_000_000


class TreeModel(Protocol):
    """What the engine needs of a model; ``learning.PolicyModel`` is one."""

    device: torch.device
    tokenizer: Any
    stop_token_ids: list[int]
    context_length: int

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""

    def hidden_states(self, tokens_T: Tensor, positions_T: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """Run the active adapter; returns hidden_TD."""

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits_NV."""

    def adapter(self, name: str) -> AbstractContextManager[None]:
        """Run the body with an adapter active."""

    def render(self, messages: Messages) -> list[int]:
        """Token ids of a chat prompt."""

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer and its stop token."""


@dataclass
class _Request:
    """One call on its way. ``forced`` tokens are scored instead of drawing."""

    future: "asyncio.Future[None]"
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    version: int
    forced: list[int] | None = None
    node: int = -1
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "length"


@dataclass
class _Served:
    """A model that can be asked: an adapter, its version, and what is under way with it.

    ``crowded``: those who wait cannot be let in before somebody has finished.
    """

    adapter: str
    version: int
    cache: TreeCache = field(default_factory=TreeCache)
    waiting: deque[_Request] = field(default_factory=deque)
    active: list[_Request] = field(default_factory=list)
    crowded: bool = False


@dataclass
class EngineStats:
    """Totals since they were last reset. Tokens are counts; ``seconds`` is time spent in forward passes."""

    requests: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    forward_passes: int = 0
    seconds: float = 0.0


class EmbeddedEngine(InferenceClient):
    """See the module. Lives on one event loop; forward passes run on it, so a run is repeatable.

    Args:
        model: the model with its adapters.
        max_tokens: most tokens an answer may have when a call does not say.
        max_context: most tokens of prompt and answer together; at most the model's own limit.
        max_queue: most requests waiting or running; one more is refused.
        max_cached_tokens: most tokens kept for each model served, besides the answers under way.
        max_batch_tokens: most tokens computed in one forward pass.
    """

    def __init__(
        self,
        model: TreeModel,
        *,
        max_tokens: int = 64,
        max_context: int | None = None,
        max_queue: int = 16_384,
        max_cached_tokens: int = 32_768,
        max_batch_tokens: int = 2048,
    ) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.max_context = min(max_context or model.context_length, model.context_length, max_cached_tokens)
        self.max_queue = max_queue
        self.max_cached_tokens = max_cached_tokens
        self.max_batch_tokens = max_batch_tokens
        self.stats = EngineStats()
        self._served: dict[str, _Served] = {}
        self._rendered: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._rendered_tokens = 0
        self._task: asyncio.Task[None] | None = None
        self._stop_ids = frozenset(model.stop_token_ids)

    def publish(self, name: str, adapter: str, version: int) -> None:
        """Serve ``adapter`` as ``name`` from now on.

        Known contexts are forgotten; requests under way go on with the new version, tagged with the one that
        they began with.
        """
        served = self._served.setdefault(name, _Served(adapter, version))
        served.adapter, served.version = adapter, version
        self._forget_contexts(served)

    def withdraw(self, name: str) -> None:
        """Stop serving ``name`` and free its cache. Who still waits for it gets a SelfplayError."""
        self._fail(self._served.pop(name), f"{name} is no longer served")

    def forget_contexts(self) -> None:
        """Empty every cache, so that what follows does not depend on what came before."""
        for served in self._served.values():
            self._forget_contexts(served)

    def _forget_contexts(self, served: _Served) -> None:
        served.cache.clear()
        for request in served.active:
            request.node = served.cache.insert(request.prompt + request.drawn)

    def reset_stats(self) -> None:
        """Start counting anew."""
        self.stats = EngineStats()

    @property
    def running(self) -> int:
        """Requests that were let in and have not ended."""
        return sum(len(served.active) for served in self._served.values())

    def names(self) -> list[str]:
        """The models that can be asked."""
        return list(self._served)

    async def get_policy_version(self) -> int:
        """The newest version served."""
        return max((served.version for served in self._served.values()), default=0)

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
        """Answer ``messages``; see :class:`InferenceClient`. Without a seed the answer is another each time.

        The returned ``prompt_token_ids`` are shared by all answers to this prompt: do not change them.

        Raises:
            InputError: unknown model, impossible temperature or token limit.
            SelfplayError: a request past the context or queue limit, or the model failed.
        """
        limit = self.max_tokens if max_tokens is None else max_tokens
        seed = secrets.randbits(63) if seed is None else seed
        request = await self._ask(self._render(messages), limit, temperature, seed, model, None)
        stopped = request.finish_reason == "stop"
        text_ids = request.drawn[:-1] if stopped else request.drawn
        text = self.model.tokenizer.decode(text_ids, skip_special_tokens=True)
        response = ModelResponse(
            text,
            [{"role": "assistant", "content": text}],
            policy_version=request.version,
            finish_reason=request.finish_reason,
        )
        if return_tokens:
            response.prompt_token_ids = request.prompt
            response.completion_token_ids = request.drawn
            response.completion_logprobs = request.logprobs
        return response

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Log-probability of each completion with its stop token, at temperature 1."""
        prompt = self._render(messages)
        forced = [self.model.encode_answer(text) for text in completions]
        asked = [self._ask(prompt, len(ids), 1.0, 0, model, ids) for ids in forced]
        return [sum(request.logprobs) for request in await asyncio.gather(*asked)]

    async def logprobs(self, ids: list[int], *, model: str | None = None) -> list[float]:
        """Log-probability of each of the token ids but the first, at temperature 1.

        Computed at once, apart from what is under way, and nothing of it is kept.

        Raises:
            InputError: unknown model.
            SelfplayError: more ids than the model's context holds.
        """
        served = self._find(model or "default")
        if len(ids) > self.model.context_length:
            raise SelfplayError(
                f"{len(ids)} tokens exceed the model's context of {self.model.context_length}"
            )
        cache = TreeCache()
        path = cache.path(cache.insert(ids[:-1])).tolist()
        while cache.pending:
            self._compute(served.adapter, cache, self._next_batch(cache, {}), set(path))
        return [float(cache.logprobs[node][token]) for node, token in zip(path, ids[1:], strict=True)]

    async def _ask(
        self,
        prompt: list[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        model: str | None,
        forced: list[int] | None,
    ) -> _Request:
        served = self._find(model or "default")
        if max_tokens < 1:
            raise InputError("max_tokens", f"{max_tokens} leaves no room for an answer", "Give at least 1")
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise InputError("temperature", f"{temperature} is not possible", "Give 0 or more, 1 say")
        if len(prompt) + max_tokens > self.max_context:
            raise SelfplayError(
                f"a prompt of {len(prompt)} tokens and an answer of up to {max_tokens} exceed the context of "
                f"{self.max_context}; shorten the prompt or raise inference.max_context"
            )
        if self.running + sum(len(s.waiting) for s in self._served.values()) >= self.max_queue:
            raise SelfplayError(f"{self.max_queue} requests are under way; raise inference.max_queue")
        future = asyncio.get_running_loop().create_future()
        seed %= 1 << 64
        request = _Request(future, prompt, max_tokens, temperature, seed, served.version, forced)
        served.waiting.append(request)
        self.stats.requests += 1
        self.stats.prompt_tokens += len(prompt)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())
            self._task.add_done_callback(self._tell_failure)
        await future
        return request

    def _find(self, name: str) -> _Served:
        served = self._served.get(name)
        if served is None:
            names = ", ".join(self._served) or "nothing yet"
            raise InputError("model", f"the engine does not serve {name}", f"It serves {names}")
        return served

    def _render(self, messages: Messages) -> list[int]:
        key = tuple((message["role"], message["content"]) for message in messages)
        prompt = self._rendered.get(key)
        if prompt is None:
            prompt = self.model.render(messages)
            if not prompt:
                raise InputError("messages", "a prompt without tokens has no continuation", "Say something")
            if self._rendered_tokens > MAX_RENDERED_TOKENS:
                self._rendered.clear()
                self._rendered_tokens = 0
            self._rendered[key] = prompt
            self._rendered_tokens += len(prompt)
        return prompt

    async def _serve(self) -> None:
        """Work until nothing is asked."""
        while any(served.waiting or served.active for served in self._served.values()):
            await self._let_others_run()
            # By name: a resumed run may have begun to serve its models in another order.
            in_order = [served for _, served in sorted(self._served.items())]
            for served in in_order:
                self._admit(served)
            # Whoever got an answer may ask again: that comes before the next forward pass.
            answered = [self._draw(served) for served in in_order]
            if not any(answered):
                for served in in_order:
                    self._forward(served)

    def _tell_failure(self, task: "asyncio.Task[None]") -> None:
        """If the serving task broke, give everybody who waits the reason instead of silence."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        reason = "the engine was cancelled" if error is None else f"the engine failed: {error!r}"
        for served in self._served.values():
            self._fail(served, reason)

    def _fail(self, served: _Served, reason: str) -> None:
        for request in [*served.active, *served.waiting]:
            if not request.future.done():
                request.future.set_exception(SelfplayError(reason))
        served.active.clear()
        served.waiting.clear()
        served.cache.clear()  # a forward pass that broke off may have left slots that were never filled

    async def _let_others_run(self) -> None:
        """Yield until three rounds of the event loop brought no new request."""
        quiet = 0
        before = self.stats.requests
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.stats.requests == before else 0
            before = self.stats.requests

    def _admit(self, served: _Served) -> None:
        """Let in who waits, in order, as far as there is room; somebody is always let in."""
        while served.waiting and not (served.crowded and served.active):
            request = served.waiting[0]
            if request.future.done():
                served.waiting.popleft()
                continue
            if not self._fits(served, request):
                self._make_room(served)
                served.crowded = not self._fits(served, request)
                if served.crowded and served.active:
                    return
            served.waiting.popleft()
            request.node = served.cache.insert(request.prompt)
            served.active.append(request)

    def _fits(self, served: _Served, request: _Request) -> bool:
        room = self.max_cached_tokens - len(served.cache)
        most = len(request.prompt) + request.max_tokens
        return most <= room or most - served.cache.find(request.prompt)[1] <= room

    def _make_room(self, served: _Served) -> None:
        """Keep only the contexts that active requests are in."""
        new_id = served.cache.prune([request.node for request in served.active])
        for request in served.active:
            request.node = new_id[request.node]

    def _draw(self, served: _Served) -> bool:
        """Move every request as far as known distributions carry it; returns whether any finished."""
        cache, finished, moving = served.cache, False, served.active
        while moving:
            moving = [one for one in moving if one.node in cache.logprobs and not one.future.done()]
            chance_M = _chances(moving)
            by_place: dict[tuple[int, float], list[int]] = {}
            for index, request in enumerate(moving):
                by_place.setdefault((request.node, request.temperature), []).append(index)
            going_on: list[_Request] = []
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
        served.crowded = served.crowded and not finished
        return finished

    def _take(self, cache: TreeCache, request: _Request, token: int, distribution: Distribution) -> bool:
        """Append ``token``, or what is forced in its place; returns whether the request goes on."""
        if request.forced is not None:
            token = request.forced[len(request.drawn)]
        request.drawn.append(token)
        request.logprobs.append(float(distribution.logprobs_V[token]))
        self.stats.generated_tokens += request.forced is None
        if request.forced is None and token in self._stop_ids:
            request.finish_reason = "stop"
        elif len(request.drawn) < request.max_tokens:
            request.node = cache.insert([token], request.node)
            return True
        request.future.set_result(None)
        return False

    def _forward(self, served: _Served) -> None:
        """Compute what active requests wait for, at most ``max_batch_tokens`` tokens of it."""
        if not served.active:
            return
        cache = served.cache
        wanted = dict.fromkeys(request.node for request in served.active)
        self._evict_distributions(cache, wanted)
        self._compute(served.adapter, cache, self._next_batch(cache, wanted), wanted)

    def _compute(self, adapter: str, cache: TreeCache, batch: list[int], wanted: Container[int]) -> None:
        """Fill the slots of ``batch``, and store the distributions after those that are wanted."""
        started = perf_counter()
        places = [place for place, node in enumerate(batch) if node in wanted]
        with torch.inference_mode(), self.model.adapter(adapter):
            attend = CachedAttention(cache, batch, self.model.dtype, self.model.device)
            tokens_T = torch.tensor([cache.tokens[node] for node in batch], device=self.model.device)
            positions_T = torch.tensor([cache.depths[node] for node in batch], device=self.model.device)
            hidden_TD = self.model.hidden_states(tokens_T, positions_T, attend)
            for first in range(0, len(places), ROWS_AT_ONCE):
                chunk = places[first : first + ROWS_AT_ONCE]
                logprobs_NV = torch.log_softmax(self.model.logits(hidden_TD[chunk]), dim=-1).cpu().numpy()
                for place, row_V in zip(chunk, logprobs_NV, strict=True):
                    cache.logprobs[batch[place]] = row_V.copy()
        self.stats.seconds += perf_counter() - started
        self.stats.computed_tokens += len(batch)
        self.stats.forward_passes += 1

    def _next_batch(self, cache: TreeCache, wanted: dict[int, None]) -> list[int]:
        """Take pending nodes, then nodes whose distribution is wanted again after it was dropped."""
        batch = cache.pending[: self.max_batch_tokens]
        cache.pending = cache.pending[self.max_batch_tokens :]
        new = {*batch, *cache.pending}
        again = [node for node in wanted if node not in new and node not in cache.logprobs]
        return batch + again[: self.max_batch_tokens - len(batch)]

    def _evict_distributions(self, cache: TreeCache, wanted: dict[int, None]) -> None:
        """Drop the oldest stored distributions that nobody waits for; they can be computed again."""
        for node in list(cache.logprobs):
            if len(cache.logprobs) <= MAX_STORED_DISTRIBUTIONS:
                return
            if node not in wanted:
                del cache.logprobs[node]


def _chances(requests: list[_Request]) -> FloatArray:
    """The uniform number of each request's next token."""
    seeds_M = np.array([request.seed for request in requests], dtype=np.uint64)
    offsets_M = np.array([len(request.drawn) for request in requests], dtype=np.uint64)
    return uniforms(seeds_M, offsets_M)
