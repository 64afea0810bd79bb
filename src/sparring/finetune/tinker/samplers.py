"""Samplers: sampling sessions, which draw from the base model or from weights that models saved.

The weights of a session are published in the engine while they are asked for, a few of them at a time.
"""

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from sparring.core import InputError, SparringError
from sparring.core.adapters import AdapterRef
from sparring.core.concurrency import all_results
from sparring.core.errors import reason_of
from sparring.core.messages import said
from sparring.core.sampling import Sampling
from sparring.engine.adapters import Delivery, Publisher
from sparring.engine.answering import Answering, AnswerOptions, EngineCall, Shaping
from sparring.engine.resident_adapters import ResidentAdapters
from sparring.engine.server_errors import ApiError
from sparring.engine.server_requests import DrawParameters
from sparring.finetune.tinker.messages import sample_answer
from sparring.finetune.tinker.requests import CreateSampler, Sample
from sparring.finetune.tinker.store import (
    SAMPLER_WEIGHTS,
    KeptAnswer,
    SamplerRecord,
    SavedWeights,
    Store,
    sampler_id,
    saved_by,
)

SLOTS = 8
"""So many adapters are published at once."""
MAX_ANSWERS = 1024
"""So many answers are kept for clients that have not asked for them again."""
MAX_ANSWER_BYTES = 256 * 2**20
"""So large may these answers be together."""
MAX_CALLS = 4096
"""So many samples may be drawn or wait."""


class Samplers:
    """The sampling sessions of a store. ``base`` is the name by which the engine serves the base model."""

    def __init__(self, store: Store, engine: Answering, publisher: Publisher, base: str) -> None:
        self.store = store
        self.engine = engine
        self.publisher = publisher
        self.base = base
        slots = [f"training-sampler-{number}" for number in range(SLOTS)]
        self._resident = ResidentAdapters(slots, self._publish, self._withdraw)
        self._tasks: OrderedDict[str, asyncio.Task[KeptAnswer]] = OrderedDict()
        self._calls = 0
        self._start = secrets.token_hex(4)

    def create(self, request: CreateSampler) -> str:
        """Create a sampling session, and return its id. Raises ApiError: there are no such weights."""
        self.store.session(request.session_id)
        if request.model_path is not None:
            self.directory(request.model_path)
        name = sampler_id(request.session_id, request.sampling_session_seq_id)
        self.store.add_sampler(name, SamplerRecord(request.model_path))
        return name

    def directory(self, path: str) -> Path:
        """Return the directory of weights that can be sampled from. Raises ApiError: there are none."""
        weights = SavedWeights.at(path)
        if weights.kind != SAMPLER_WEIGHTS:
            problem = f"path: {weights.path} is for training. Use one that save_weights_for_sampler returned"
            raise ApiError(400, problem)
        return self.store.weights(weights)

    def submit(self, request: Sample) -> tuple[str, list[str]]:
        """Begin to answer a request; return its id, and one for each sample. Raises ApiError: the request is
        wrong, or too many samples wait."""
        record = self.store.sampler(request.sampling_session_id)
        # After a restart, a request of the same number is another one.
        name = f"{request.sampling_session_id}/{request.seq_id}/{self._start}"
        if name not in self._tasks:
            calls = self._calls_of(request)
            if self._calls + len(calls) > MAX_CALLS:
                raise ApiError(429, f"{MAX_CALLS} samples are drawn or wait")
            path = None if record.model_path is None else self.directory(record.model_path)
            self._calls += len(calls)
            task = asyncio.create_task(self._answer(request, calls, path))
            task.add_done_callback(lambda _: self._forget(len(calls)))
            self._tasks[name] = task
        return name, [f"{name}/{number}" for number in range(request.num_samples)]

    async def answer(self, request_id: str, seconds: float) -> KeptAnswer | None:
        """Return the answer to a request; ``None`` if it takes longer. Raises ApiError: it is not known."""
        task = self._tasks.get(request_id)
        if task is None:  # 410 lets the SDK ask anew
            raise ApiError(410, f"there is no request {request_id!r:.100}. Send it again")
        done, _ = await asyncio.wait([task], timeout=seconds)
        return task.result() if done else None

    def close(self) -> None:
        """Stop drawing."""
        for task in self._tasks.values():
            task.cancel()

    def _forget(self, calls: int) -> None:
        self._calls -= calls
        done = [name for name, task in self._tasks.items() if task.done()]
        size = 0
        for place, name in enumerate(reversed(done)):
            size += self._size_of(self._tasks[name])
            if place >= MAX_ANSWERS or (place and size > MAX_ANSWER_BYTES):
                del self._tasks[name]

    @staticmethod
    def _size_of(task: asyncio.Task[KeptAnswer]) -> int:
        return len(task.result().body) if not task.cancelled() and task.exception() is None else 0

    async def _answer(self, request: Sample, calls: list[EngineCall], path: Path | None) -> KeptAnswer:
        try:
            if path is None:
                return await self._drawn(request, calls, self.base)
            # A name may be deleted and saved anew: the request that saved it tells its weights apart.
            version = saved_by(path) or 0
            async with self._resident.use(AdapterRef(str(path), version, str(path))) as slot:
                return await self._drawn(request, calls, slot)
        except InputError as error:
            return KeptAnswer.failure(str(error), of_user=True)
        except SparringError as error:
            return KeptAnswer.failure(str(error), of_user=False)
        except Exception as error:  # noqa: BLE001 (the client is told: it would ask again for ever)
            return KeptAnswer.failure(reason_of(error), of_user=False)

    async def _drawn(self, request: Sample, calls: list[EngineCall], model: str) -> KeptAnswer:
        answers = await all_results(self.engine.answer(replace(call, model=model)) for call in calls)
        more, prompt = answers[0].more, None
        if request.prompt_logprobs and more is not None:
            prompt = [float("nan"), *more.prompt]
            if request.prompt_logprobs_last_n is not None:
                unscored = len(prompt) - request.prompt_logprobs_last_n
                prompt[: max(0, unscored)] = [float("nan")] * unscored
        body = sample_answer(
            answers,
            likeliest=request.topk_sample_logprobs,
            prompt=prompt,
            prompt_likeliest=request.topk_prompt_logprobs,
        )
        return KeptAnswer(body, is_protobuf=True)

    def _calls_of(self, request: Sample) -> list[EngineCall]:
        params, ids = request.sampling_params, request.prompt.ids()
        size, limit = self.engine.vocabulary_size, self.engine.max_context
        if any(token >= size for token in ids):
            raise ApiError(400, f"prompt: {max(ids)} is not one of the {size} tokens")
        max_tokens = params.max_tokens or max(1, min(self.engine.max_tokens, limit - len(ids)))
        if not ids or len(ids) + max_tokens > limit:
            problem = f"prompt: {len(ids)} tokens and an answer of {max_tokens} exceed the context of {limit}"
            raise ApiError(400, problem)
        texts, tokens = params.stops()
        options = AnswerOptions(
            Shaping(Sampling(top_p=params.top_p, top_k=max(0, params.top_k))),
            likeliest=max(request.topk_prompt_logprobs, request.topk_sample_logprobs),
            prompt_logprobs=bool(request.prompt_logprobs or request.topk_prompt_logprobs),
            stop_token_ids=tokens,
            ignore_eos=params.stop == [],
        )
        call = EngineCall(
            [said("text", "", ids)], params.temperature, max_tokens, stop=texts, options=options
        )
        seeds = DrawParameters(seed=params.seed, n=request.num_samples).seeds()
        return [replace(call, seed=seed) for seed in seeds]

    async def _publish(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        return await self.publisher.publish_in_background(slot, Path(adapter.path or ""))

    async def _withdraw(self, slot: str) -> None:
        self.publisher.withdraw(slot)
