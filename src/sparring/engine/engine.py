"""EmbeddedEngine: sample from a model in this process without computing any context twice.

Every adapter version has a :class:`TreeCache`. A request follows it as far as its context is known; what is
missing is computed together with what all other requests miss. Requests in the same context draw from the
same distribution, each with its own seed.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

import torch

from sparring.core import (
    ContextError,
    EpisodeError,
    InputError,
    Messages,
    ModelResponse,
    SparringError,
    TransientError,
)
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import LINE_END
from sparring.core.client import before_stop
from sparring.core.concurrency import MAX_CACHED_TOKENS, MAX_QUEUE
from sparring.core.messages import said
from sparring.engine.admission import Admission, Request, ServedModel
from sparring.engine.answering import (
    EMPTY_PROMPT,
    PLAIN,
    Answering,
    EngineCall,
    ModelFacts,
    check_sampling,
    find_model,
)
from sparring.engine.generation import Decoder, EngineStats
from sparring.engine.key_store import KeyStore
from sparring.engine.sampling import GREEDY_BELOW
from sparring.engine.tree_cache import TreeCache
from sparring.learn.policy import PolicyModel


class EmbeddedEngine(Answering):
    """An inference client with a model of its own. It belongs to one event loop, which also runs the forward
    passes, so a run is repeatable.

    A context has at most ``max_context`` tokens, the model's own limit and ``max_cached_tokens``, which
    bounds the keys and values held at once, over all served models: a request waits until its longest
    possible answer fits. More than ``max_queue`` requests are rejected. A forward pass has at most
    ``max_batch_tokens``.
    """

    def __init__(
        self,
        model: PolicyModel,
        *,
        max_tokens: int = 64,
        max_context: int | None = None,
        max_queue: int = MAX_QUEUE,
        max_cached_tokens: int = MAX_CACHED_TOKENS,
        max_batch_tokens: int = 2048,
    ) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.vocabulary_size = model.vocabulary_size
        self.max_tokens = max_tokens
        self.max_context = min(max_context or model.context_length, model.context_length, max_cached_tokens)
        self.max_queue = max_queue
        self.max_cached_tokens = max_cached_tokens
        self._keys = KeyStore()
        self._served: dict[str, ServedModel] = {}
        self._admission = Admission(max_cached_tokens)
        self._reader = AnswerReader(model.tokenizer)
        self._decoder = Decoder(model, self._reader, max_batch_tokens)
        self._task: asyncio.Task[None] | None = None

    def publish(self, name: str, adapter: str, version: int) -> None:
        """Serve ``adapter`` as ``name`` from now on. Requests in progress go on with it, tagged with the
        version they began with."""
        served = self._served.setdefault(name, ServedModel(adapter, version, TreeCache(self._keys)))
        served.adapter, served.version = adapter, version
        served.forget_contexts()

    def withdraw(self, name: str) -> None:
        """Stop serving ``name``. Pending requests fail with an EpisodeError, because another attempt would
        find no such model."""
        self._admission.fail(self._served.pop(name), EpisodeError, f"{name} is no longer served")

    def close(self) -> None:
        """Stop serving. Pending requests fail with a TransientError, because another engine may answer."""
        for served in self._served.values():
            self._admission.fail(served, TransientError, "the engine was closed")
        self._served.clear()

    def forget_contexts(self) -> None:
        """Empty every cache, so that later answers do not depend on earlier requests."""
        for served in self._served.values():
            served.forget_contexts()

    @property
    def stats(self) -> EngineStats:
        """Counts of requests and computations since the last reset."""
        return self._decoder.stats

    def reset_stats(self) -> None:
        """Reset all counts."""
        self._decoder.stats = EngineStats()

    @property
    def running(self) -> int:
        """Number of admitted requests that have not ended."""
        return sum(len(served.active) for served in self._served.values())

    def facts(self) -> ModelFacts:
        """Return how this engine computes."""
        model = self.model
        return ModelFacts(
            model.model_name,
            str(model.dtype).removeprefix("torch."),
            str(model.device),
            torch.get_num_threads(),
            model.quantization,
            self.max_context,
            model.vocabulary_size,
            model.template_options,
        )

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return list(self._served)

    async def get_policy_version(self) -> int:
        """Return the newest version that is served."""
        return max((served.version for served in self._served.values()), default=0)

    async def answer(self, call: EngineCall) -> ModelResponse:
        """Answer a call; without a seed, in another way each time. Do not change ``prompt_token_ids``:
        answers share it.

        Raises InputError: the model is unknown, or a parameter impossible; ContextError: it is too long;
        SparringError: too many wait, or the model failed.
        """
        request = self._submit(call)
        await request.future
        response = self._response(request)
        if not call.return_tokens:
            response.prompt_token_ids = response.completion_token_ids = response.completion_logprobs = None
        return response

    async def stream(self, call: EngineCall) -> AsyncGenerator[ModelResponse]:
        """Yield tokens as they are drawn; the last part has the text and the reason of the end. Closing a
        stream early cancels its request."""
        request = self._submit(call)
        request.grown = grown = asyncio.Event()
        request.future.add_done_callback(lambda _: grown.set())
        told = 0
        try:
            while not request.future.done():
                await grown.wait()
                grown.clear()
                if request.future.done():
                    await request.future
                    yield self._response(request, told)
                else:
                    yield self._answer(request, "", [], told)
                    told = len(request.drawn)
        finally:
            request.future.cancel()

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each completion with its stop token, at temperature 1."""
        requests: list[Request] = []
        try:
            for text in completions:
                call = EngineCall(messages, model=model, seed=0, given=text)
                requests.append(self._submit(call, scored=True))
            await asyncio.gather(*(request.future for request in requests))
        finally:
            for request in requests:
                request.future.cancel()  # those that remain after one was rejected or failed
        return [sum(request.logprobs) for request in requests]

    def logprobs(self, ids: list[int], *, model: str | None = None, adapter: str = "") -> list[float]:
        """Return the log-probability of each token id after the first at temperature 1, for a served
        ``model`` or any ``adapter``. Computed at once, beside the requests in progress, neither cached nor
        counted. Raises SparringError: more ids than the model's context.
        """
        adapter = adapter or find_model(self._served, model).adapter
        if len(ids) > self.model.context_length:
            raise SparringError(
                f"{len(ids)} tokens exceed the model's context of {self.model.context_length}"
            )
        stats = replace(self.stats)
        try:
            return self._decoder.logprobs(adapter, ids)
        finally:
            self._decoder.stats = stats

    def render(self, messages: Messages) -> list[int]:
        """Return a prompt's token ids, in a list that others share: do not change it. Raises InputError: it
        is empty, or cannot be rendered."""
        prompt = self.model.render(messages)
        if not prompt:
            raise InputError("messages", EMPTY_PROMPT, "Give some text")
        return prompt

    def _submit(self, call: EngineCall, *, scored: bool = False) -> Request:
        prompt = self.render(call.messages)
        served = find_model(self._served, call.model)
        max_tokens = self.max_tokens if call.max_tokens is None else call.max_tokens
        check_sampling(max_tokens, call.temperature, least=0 if call.options.prompt_logprobs else 1)
        forced = None if call.given is None else self._given(call)
        if forced is not None:
            max_tokens = len(forced)
        self._check_size(len(prompt), max_tokens)
        if self.running + len(self._admission) >= self.max_queue:
            raise TransientError(f"{self.max_queue} requests are in progress; raise inference.max_queue")
        loop = asyncio.get_running_loop()
        seed = (secrets.randbits(63) if call.seed is None else call.seed) % (1 << 64)
        future = loop.create_future()
        request = Request(served, future, prompt, max_tokens, call.temperature, seed, served.version)
        if forced is not None:
            request.forced, request.scored = forced, scored
        request.stop, request.reasoning = call.stop, call.reasoning
        request.max_reasoning = call.max_reasoning
        if forced is not None and not scored and forced[-1] not in self.model.stop_token_ids:
            request.stop = (LINE_END,)  # the other end that a given answer may have
        if call.options != PLAIN:  # what is plain is recognised by its identity, also if it was sent here
            request.options = call.options
        self._admission.add(request)
        self.stats.requests += 1
        self.stats.prompt_tokens += len(prompt)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._serve())
            self._task.add_done_callback(self._tell_failure)
        return request

    def _given(self, call: EngineCall) -> list[int]:
        """Return the token ids of a given answer; its own length is its limit."""
        assert call.given is not None
        if call.temperature < GREEDY_BELOW:
            problem = f"at {call.temperature:g}, only the likeliest answer has a log-probability"
            raise InputError("temperature", problem, "Give more, such as 1")
        return self.model.encode_answer(call.messages, call.given)

    def _check_size(self, prompt_tokens: int, max_tokens: int) -> None:
        if prompt_tokens + max_tokens <= self.max_context:
            return
        fix = "shorten the prompt"
        if self.max_context < self.model.context_length:
            bound = "max_cached_tokens" if self.max_context == self.max_cached_tokens else "max_context"
            fix += f" or raise inference.{bound}"
        raise ContextError(
            f"a prompt of {prompt_tokens} tokens and an answer of up to {max_tokens} exceed the context of "
            f"{self.max_context}; {fix}"
        )

    def _response(self, request: Request, first: int = 0) -> ModelResponse:
        ends = request.finish_reason == "stop" and request.stopped_text is None
        ids = request.drawn[:-1] if ends else request.drawn
        written, parts = self._reader.read(request.prompt, ids, request.reasoning)
        if request.stopped_text is not None:
            parts = replace(parts, said=request.stopped_text)
            begun = written[: max(parts.said_at, 0)]
            written = begun + (before_stop(written[len(begun) :], request.stop) or "")
        self.stats.spelled_control_tokens += self.model.spelled_control_tokens(parts.said)
        completion = [said("assistant", written, request.drawn)]
        response = self._answer(request, written, completion, first, request.finish_reason)
        response.forced = request.closed
        return response.in_parts(parts, written)

    def _answer(
        self, request: Request, text: str, completion: Messages, first: int, finish_reason: str = ""
    ) -> ModelResponse:
        response = ModelResponse(
            text,
            completion,
            request.prompt,
            request.drawn[first:],
            request.logprobs[first:],
            request.version,
            finish_reason,
        )
        if request.options.likeliest or request.options.prompt_logprobs:
            response.more = replace(request.more, likeliest=request.more.likeliest[first:])
        return response

    async def _serve(self) -> None:
        while self._admission or self.running:
            await self._let_others_run()
            # By name, because a resumed run may have begun to serve its models in another order.
            in_order = [served for _, served in sorted(self._served.items())]
            self._admission.admit(in_order)
            running = self.running
            # A caller that got an answer may ask again before the next forward pass.
            answered = self._decoder.draw(in_order)
            if self.running < running:
                self._admission.room_was_made()
            if not answered:
                cached = sum(len(served.cache) for served in in_order)
                self.stats.most_cached_tokens = max(self.stats.most_cached_tokens, cached)
                self._decoder.forward(in_order)

    def _tell_failure(self, task: "asyncio.Task[None]") -> None:
        """If the serving task failed, fail pending requests with its reason, so that none waits forever."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        reason = "the engine was cancelled" if error is None else f"the engine failed: {error!r}"
        for served in self._served.values():
            self._admission.fail(served, TransientError, reason)

    async def _let_others_run(self) -> None:
        """Yield until three rounds of the event loop brought no new request."""
        quiet = 0
        before = self.stats.requests
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.stats.requests == before else 0
            before = self.stats.requests
