"""VLLMEngine: sample from vLLM's asynchronous engine, with a LoRA adapter for each request.

Every published version of an adapter is loaded under a number of its own. Once it has proved that it answers,
requests for its name go to it; those in progress finish with the version they began with, which is then
unloaded. The prefix cache is separate for each version.
"""

import asyncio
import itertools
import os
import secrets
import tempfile
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparring.core import (
    ContextError,
    EpisodeError,
    InputError,
    Messages,
    ModelResponse,
    SparringError,
    TransientError,
)
from sparring.core.adapters import BASE, VLLM_RANKS
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_template import TemplateOption
from sparring.core.client import CANNOT_GIVE, before_stop
from sparring.core.concurrency import MAX_QUEUE
from sparring.core.manifest import CANARY_TEXT, MAX_CANARY_TOKENS, Expectation
from sparring.core.messages import said
from sparring.engine.adapters import (
    Delivery,
    DeliveryError,
    changes_nothing,
    check_delivery,
    check_hash,
    file_hash,
    tolerance_of,
)
from sparring.engine.answering import (
    EMPTY_PROMPT,
    PLAIN,
    AnswerOptions,
    Engine,
    EngineCall,
    Shaping,
    check_sampling,
    find_model,
)
from sparring.engine.vllm_checks import (
    PROOF_RANK,
    Probe,
    check_adapter,
    check_mixed_batch,
    write_random_adapter,
)
from sparring.engine.vllm_load import LoadLogger, VLLMStats
from sparring.engine.vllm_process import own_processes
from sparring.learn.model_files import load_chat_tokens

CLOSE_SECONDS = 60.0
"""Seconds in which vLLM's processes may end before they are killed."""
LOOK_SECONDS = 1.0
"""Seconds between looks at vLLM's process while a call waits for it."""


PROBE_TOKENS = 4
PROBE_LIKELIEST = 20

VLLM_SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # A fork of a process whose threads have computed may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Only for CPUs. By default vLLM pins its threads to cores, whether the learner's threads use them or not.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
"""Environment variables of vLLM, which are set unless the user has set them."""


@dataclass(eq=False)
class _Version:
    """A version that vLLM holds and its ``requests`` in progress; ``lora`` is None for the base model."""

    delivery: Delivery
    lora: Any
    salt: str
    requests: set[str] = field(default_factory=set)
    withdrawn: bool = False


@dataclass(eq=False, repr=False)
class VLLMEngine(Engine):
    """An inference client with vLLM as its engine, of one event loop from :meth:`start` to :meth:`close`.

    Args:
        model: a local directory or Hugging Face id.
        max_tokens: maximum tokens of an answer if a call does not give one.
        max_context: maximum tokens of prompt and answer together; by default the model's own limit.
        max_queue: maximum number of waiting and running requests; further requests are rejected.
        max_batch: maximum number of requests in one forward pass.
        max_adapters: maximum number of adapters served at once.
        max_lora_rank: maximum rank of an adapter.
        dtype: dtype of the base model and the adapters: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        gpu_memory: share of the GPU's memory that vLLM may use; on a CPU, ``VLLM_CPU_KVCACHE_SPACE`` GiB.
        tensor_parallel: number of GPUs over which the model is spread; more than 1 needs an actor in a Ray
            placement group with a bundle for each.
        sleeps: whether it can :meth:`sleep`, which needs a CUDA GPU.
        drain_seconds: maximum time that a new version waits for requests of older ones to end.
        template_options: those of the chat template.
    """

    model: str
    _: KW_ONLY
    max_tokens: int = 64
    max_context: int | None = None
    max_queue: int = MAX_QUEUE
    max_batch: int = 256
    max_adapters: int = 8
    max_lora_rank: int = 16
    dtype: str = "auto"
    gpu_memory: float = 0.9
    tensor_parallel: int = 1
    sleeps: bool = False
    drain_seconds: float = 600.0
    template_options: InitVar[Mapping[str, TemplateOption] | None] = None

    def __post_init__(self, template_options: Mapping[str, TemplateOption] | None) -> None:
        _check_installed()
        if self.max_lora_rank > VLLM_RANKS[-1]:
            problem = f"vLLM serves adapters of rank {VLLM_RANKS[-1]} at most (got {self.max_lora_rank})"
            raise InputError("max_lora_rank", problem, "Choose a smaller one.")
        self.max_lora_rank = min(one for one in VLLM_RANKS if one >= max(self.max_lora_rank, PROOF_RANK))
        self._slots = 2 * self.max_adapters + 1  # served versions, old ones that still answer, and a new one
        self.tokens = load_chat_tokens(self.model, template_options)
        self._reader = AnswerReader(self.tokens.tokenizer)
        self.canary = self.tokens.encode(CANARY_TEXT)[:MAX_CANARY_TOKENS]
        self.tolerance = 0.0
        self._llm: Any = None
        self._load = LoadLogger()
        self._stats = VLLMStats()
        self._served: dict[str, _Version] = {}
        self._retired: set[_Version] = set()
        self._numbers = itertools.count(1)
        self._publishing = asyncio.Lock()
        self._room = asyncio.Event()
        self._unloading: set[asyncio.Task[None]] = set()
        self._asleep = False

    async def start(self) -> None:
        """Start vLLM, which blocks the event loop for seconds, and check that adapters do not affect the base
        model. Raises SparringError."""
        self._llm = self._start_vllm()
        config = self._llm.model_config
        self.max_context, self.tolerance = int(config.max_model_len), tolerance_of(config.dtype)
        try:
            self._base = await self._deliver(BASE, 0, None, "")
            await self._prove_mixed_batch()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop vLLM; pending requests fail with a TransientError, because another engine may answer."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await self._abort([*self._served.values(), *self._retired], llm)
            await asyncio.gather(*self._unloading, return_exceptions=True)
            llm.shutdown(timeout=CLOSE_SECONDS)
        self._served.clear()

    async def sleep(self) -> None:
        """Give the GPU's memory back until :meth:`wake`: the weights of the base and the adapters go to the
        machine's memory, and cached contexts are lost. No request may be in progress, and none may come."""
        if any(one.requests for one in [*self._served.values(), *self._retired]):
            raise SparringError("vLLM cannot sleep while requests are in progress")
        self._asleep = True
        await self._called(self._llm.sleep(level=1))

    async def wake(self) -> None:
        """Answer again. Raises SparringError: vLLM cannot wake, or answers otherwise than before."""
        await self._called(self._llm.wake_up())
        self._asleep = False
        base = (await self._deliver(BASE, 0, None, "")).delivery
        if not abs(base.mean - self._base.delivery.mean) <= self.tolerance:
            raise DeliveryError(BASE, 0, "after its sleep vLLM answers otherwise than before")

    async def forget_contexts(self) -> None:
        """Forget cached contexts, so that what comes is computed as after a start."""
        await self._called(self._llm.reset_prefix_cache())

    @property
    def has_died(self) -> bool:
        """Whether vLLM's process has ended without being asked to."""
        return self._llm is not None and bool(self._llm.errored)

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return list(self._served)

    def stats(self) -> VLLMStats:
        """Return totals and the current load."""
        self._stats.queued, self._stats.running = self._load.queued, self._load.running
        self._stats.tokens_per_second = self._load.tokens_per_second()
        return self._stats

    async def get_policy_version(self) -> int:
        """Return the newest version that is served."""
        return max((served.delivery.version for served in self._served.values()), default=0)

    async def publish(
        self,
        name: str,
        adapter_path: Path | None,
        version: int,
        *,
        said: Expectation | None = None,
        before: Delivery | None = None,
    ) -> Delivery:
        """Serve the adapter at a path (``None``: the base model) as ``name`` once it has proved that it
        answers; until then, the previous version does. Its files must stay while it is served.

        ``said`` is what the learner wrote about it; ``before`` the version that it follows, if that has
        another name. Raises InputError: it cannot be served; DeliveryError: it was not delivered;
        SparringError: too many old versions are in use, or vLLM failed.
        """
        async with self._publishing:
            replaced = self._served.get(name)
            sha256, untrained = "", True
            if adapter_path is not None:
                self._check_room_for(name)
                check_adapter(adapter_path, self.max_lora_rank)
                sha256 = await asyncio.to_thread(file_hash, adapter_path)
                untrained = await asyncio.to_thread(changes_nothing, adapter_path)
            if said is not None:
                check_hash(name, version, adapter_path, sha256, said.sha256)
            await self._wait_for_room()
            lora = await self._load_adapter(name, version, adapter_path)
            try:
                new = await self._deliver(name, version, lora, sha256)
                new.delivery = replace(new.delivery, expected=said.canary if said else None)
                check_delivery(
                    new.delivery,
                    said,
                    before=replaced.delivery if replaced else before,
                    base=self._base.delivery,
                    changes_nothing=untrained,
                    tolerance=self.tolerance,
                )
            except BaseException:
                await self._unload(lora)
                raise
            self._served[name] = new
            if replaced is not None:
                self._retire(replaced)
            return new.delivery

    async def withdraw(self, name: str) -> None:
        """Stop serving ``name`` and unload it. Pending requests fail with an EpisodeError, because another
        attempt would find no such model."""
        served = self._served.pop(name)
        older = [one for one in self._retired if one.delivery.name == name]
        self._retire(served)
        await self._abort([served, *older], self._llm)

    async def answer(self, call: EngineCall) -> ModelResponse:
        """Answer a call; without a seed, in another way each time. Do not change ``prompt_token_ids``:
        answers share it.

        With a seed, equal log-probabilities give an equal answer; in 16-bit arithmetic they depend slightly
        on the rest of the batch. vLLM raises a temperature below 0.01 to 0.01. Raises as the embedded engine
        does.
        """
        sampling = call.options.shaping.sampling
        if call.options not in (PLAIN, AnswerOptions(Shaping(sampling))):
            raise InputError("options", "vLLM's engine has only sampling", "Use the engine of this package")
        if call.given is not None:
            raise InputError("inference.engine", f"vLLM {CANNOT_GIVE}", "Use the engine of this package")
        if call.max_reasoning is not None:
            problem = f"is {call.max_reasoning}, and vLLM's engine does not end thoughts"
            raise InputError("max_reasoning", problem, "Leave it out, or use the engine of this package")
        served = find_model(self._served, call.model)
        limit = self.max_tokens if call.max_tokens is None else call.max_tokens
        check_sampling(limit, call.temperature)
        prompt = self.tokens.render(call.messages)
        self._check_limits(len(prompt), limit)
        self._stats.requests += 1
        self._stats.prompt_tokens += len(prompt)
        output = await self._ask(
            served,
            prompt,
            temperature=call.temperature,
            max_tokens=limit,
            seed=secrets.randbits(63) if call.seed is None else call.seed % (1 << 63),
            logprobs=0,
            stop_token_ids=self.tokens.stop_token_ids,
            stop=list(call.stop),
            **asdict(sampling),  # vLLM's names are the same
        )
        answer = output.outputs[0]
        drawn = list(answer.token_ids)
        self._stats.generated_tokens += len(drawn)
        by_text = isinstance(answer.stop_reason, str)
        ends = answer.finish_reason == "stop" and not by_text
        written, parts = self._reader.read(prompt, drawn[:-1] if ends else drawn, call.reasoning)
        if by_text:
            parts = replace(parts, said=before_stop(parts.said, call.stop) or "")
        self._stats.spelled_control_tokens += self.tokens.spelled_control_tokens(parts.said)
        response = ModelResponse(
            written,
            [said("assistant", written, drawn)],
            policy_version=served.delivery.version,
            finish_reason=answer.finish_reason,
        ).in_parts(parts, written)
        if call.return_tokens:
            response.prompt_token_ids = prompt
            response.completion_token_ids = drawn
            # At temperature 0 vLLM returns log-probabilities at temperature 1, but the draw was certain.
            certain = call.temperature == 0
            pairs = zip(answer.logprobs, drawn, strict=True)
            response.completion_logprobs = [0.0 if certain else top[token].logprob for top, token in pairs]
        return response

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each completion with its stop token, at temperature 1."""
        served = find_model(self._served, model)
        prompt = self.tokens.render(messages)
        forced = [self.tokens.encode_answer(messages, text) for text in completions]
        for ids in forced:
            self._check_limits(len(prompt), len(ids) + 1)
        asked = [self._logprobs(served, prompt + ids, len(prompt)) for ids in forced]
        return [sum(logprobs) for logprobs in await asyncio.gather(*asked)]

    def _start_vllm(self) -> Any:
        for variable, value in VLLM_SETTINGS.items():
            os.environ.setdefault(variable, value)
        own_processes()
        from vllm import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = current_platform.is_cpu()
        if self.sleeps and not current_platform.is_sleep_mode_available():
            raise InputError("inference.sleep", "this vLLM cannot sleep on this machine", "Leave it out")
        try:
            arguments = AsyncEngineArgs(
                model=self.model,
                dtype=self.dtype,
                max_model_len=self.max_context,
                max_num_seqs=self.max_batch,
                gpu_memory_utilization=self.gpu_memory,
                tensor_parallel_size=self.tensor_parallel,
                enable_sleep_mode=self.sleeps,
                use_tqdm_on_load=False,
                distributed_executor_backend="ray" if self.tensor_parallel > 1 else None,
                enforce_eager=on_cpu,
                # For a chunk of a prompt, a seeded request draws a random number, and vLLM then resets its
                # generator. It cannot do so on a CPU, and would crash.
                enable_chunked_prefill=not on_cpu,
                generation_config="vllm",  # only the request's parameters affect sampling
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                enable_lora=True,
                max_loras=self._slots,
                max_cpu_loras=self._slots,
                max_lora_rank=self.max_lora_rank,
                disable_log_stats=True,
            )
            return AsyncLLM.from_engine_args(arguments, stat_loggers=[lambda config, index: self._load])
        except Exception as error:
            raise SparringError(f"vLLM did not start: {_in_one_line(error)}") from error

    async def _prove_mixed_batch(self) -> None:
        """Answer the canary alone, and beside a long answer of an adapter that changes every layer. Every
        slot holds that adapter, because a wrong row could read any slot."""
        with tempfile.TemporaryDirectory(prefix="sparring-proof-") as directory:
            await asyncio.to_thread(write_random_adapter, self.model, Path(directory))
            loras = [await self._load_adapter("proof", 0, Path(directory)) for _ in range(self._slots)]
            adapter = _Version(Delivery("proof", 0, "", ()), loras[0], "proof")
            alone = [await self._probe(self._base), await self._probe(adapter)]
            beside = asyncio.create_task(self._long_answer(adapter))
            try:
                await self._probe(self._base)  # when it has ended, the long answer has begun
                mixed = [await self._probe(self._base), await self._probe(adapter)]
                if beside.done():
                    raise SparringError("vLLM's proof needs a longer context; raise inference.max_context")
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
            for lora in loras:
                await self._unload(lora)
        check_mixed_batch(alone[0], mixed[0], alone[1], mixed[1], self.tolerance)

    async def _long_answer(self, version: _Version) -> None:
        assert self.max_context is not None
        await self._ask(version, self.canary, temperature=0.0, max_tokens=self.max_context - len(self.canary))

    async def _probe(self, version: _Version) -> Probe:
        output = await self._ask(
            version,
            self.canary,
            temperature=0.0,
            max_tokens=PROBE_TOKENS,
            logprobs=PROBE_LIKELIEST,
            skip_reading_prefix_cache=True,
        )
        (answer,) = output.outputs
        top = [{token: one.logprob for token, one in place.items()} for place in answer.logprobs]
        return Probe(list(answer.token_ids), top)

    async def _deliver(self, name: str, version: int, lora: Any, sha256: str) -> _Version:
        salt = f"{name}@{version}#{next(self._numbers)}"
        asked = _Version(Delivery(name, version, sha256, ()), lora, salt)
        canary = await self._logprobs(asked, self.canary, 1)
        return _Version(Delivery(name, version, sha256, tuple(canary)), lora, salt)

    async def _logprobs(self, version: _Version, ids: list[int], first: int) -> list[float]:
        output = await self._ask(version, ids, temperature=0.0, max_tokens=1, prompt_logprobs=0)
        places = zip(output.prompt_logprobs[first:], ids[first:], strict=True)
        return [float(place[token].logprob) for place, token in places]

    async def _ask(self, version: _Version, prompt: list[int], **sampling: Any) -> Any:
        """Return vLLM's RequestOutput. Raises TransientError: vLLM failed or was closed; EpisodeError: the
        version was withdrawn."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import VLLMError
        from vllm.sampling_params import RequestOutputKind

        if self._llm is None:
            raise SparringError("the vLLM engine is not running")
        if self._asleep:
            raise SparringError("the vLLM engine is asleep")
        sampling_params = SamplingParams(
            **sampling,
            ignore_eos=True,
            detokenize=bool(sampling.get("stop")),  # vLLM finds stop strings in its own text
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_id = f"{version.salt}-{next(self._numbers)}"
        version.requests.add(request_id)
        try:
            tokens = TokensPrompt(prompt_token_ids=prompt, cache_salt=version.salt)
            answer = self._llm.generate(tokens, sampling_params, request_id, lora_request=version.lora)
            outputs = [output async for output in answer]
        except (VLLMError, ValueError) as error:
            raise TransientError(f"vLLM failed: {_in_one_line(error)}") from error
        finally:
            version.requests.discard(request_id)
            self._unload_if_done(version)
        if version.withdrawn and self._llm is None:
            raise TransientError("the vLLM engine was closed")
        if version.withdrawn:
            raise EpisodeError(f"{version.delivery.name} is no longer served")
        reason = outputs[-1].outputs[0].finish_reason if outputs else "nothing came"
        if reason not in ("stop", "length"):
            raise TransientError(f"vLLM failed: a request ended with {reason!r}")
        return outputs[-1]

    async def _load_adapter(self, name: str, version: int, path: Path | None) -> Any:
        """Load an adapter into vLLM under a number that was never used, and return its LoRARequest."""
        from vllm.lora.request import LoRARequest

        if path is None:
            return None
        number = next(self._numbers)
        # vLLM distinguishes cached prefixes by the adapter's name, so the name is new as well.
        lora = LoRARequest(f"{name}@{version}#{number}", number, str(path.absolute()))
        try:
            loaded = await self._unless_it_dies(self._llm.add_lora(lora))
        except SparringError:
            raise
        except Exception as error:
            raise DeliveryError(name, version, _in_one_line(error)) from error
        if not loaded:
            raise DeliveryError(name, version, "vLLM did not load it")
        return lora

    async def _called(self, call: Awaitable[Any]) -> None:
        """Wait for a call of vLLM. Raises SparringError: it failed, or vLLM died."""
        try:
            await self._unless_it_dies(call)
        except SparringError:
            raise
        except Exception as error:
            raise SparringError(f"vLLM failed: {_in_one_line(error)}") from error

    async def _unless_it_dies(self, call: Awaitable[Any]) -> Any:
        """Return the result of a call that vLLM leaves without one if its process dies."""
        llm, calling = self._llm, asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({calling}, timeout=LOOK_SECONDS))[0]:
                if llm.errored:
                    raise SparringError("vLLM's process has ended")
        finally:
            calling.cancel()
        return calling.result()

    async def _unload(self, lora: Any) -> None:
        if lora is not None and self._llm is not None:
            await self._called(self._llm.remove_lora(lora.lora_int_id))

    def _retire(self, version: _Version) -> None:
        self._retired.add(version)
        self._unload_if_done(version)

    def _unload_if_done(self, version: _Version) -> None:
        if version in self._retired and not version.requests:
            self._retired.discard(version)
            self._room.set()
            task = asyncio.get_running_loop().create_task(self._unload(version.lora))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _abort(self, versions: Iterable[_Version], llm: Any) -> None:
        requests: list[str] = []
        for version in versions:
            version.withdrawn = True
            requests += version.requests
        if requests:
            await llm.abort(requests)

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(self.drain_seconds):
                while len(self._retired) >= self.max_adapters:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise SparringError(
                f"{len(self._retired)} old versions still have requests in progress after "
                f"{self.drain_seconds:g} s; raise max_adapters or publish less often"
            ) from None

    def _check_room_for(self, name: str) -> None:
        others = [one for key, one in self._served.items() if key != name and one.lora is not None]
        if len(others) >= self.max_adapters:
            raise InputError("adapter", f"{len(others)} adapters are already served", "Raise max_adapters.")

    def _check_limits(self, prompt: int, answer: int) -> None:
        assert self.max_context is not None
        if not prompt:
            raise InputError("messages", EMPTY_PROMPT, "Give some text")
        if prompt + answer > self.max_context:
            raise ContextError(
                f"a prompt of {prompt} tokens and an answer of up to {answer} exceed the context of "
                f"{self.max_context}; shorten the prompt or raise inference.max_context"
            )
        if sum(len(one.requests) for one in [*self._served.values(), *self._retired]) >= self.max_queue:
            raise TransientError(f"{self.max_queue} requests are in progress; raise inference.max_queue")


def _check_installed() -> None:
    if find_spec("vllm") is None:
        raise InputError("vllm", "is not installed", "pip install 'sparring[vllm]'; see docs/howto-vllm.md")


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
