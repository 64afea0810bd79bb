"""The engine inside an inference actor. It is asked for adapters by path; nobody pushes weights to it.

An adapter that was never asked for is loaded, proves that it is the one that its maker wrote (see
``inference.delivery``), and answers from then on. There is room for so many; the one that was not asked for
the longest makes room for the next. The same path and version are the same weights.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from selfplay.core import InferenceClient, InputError, Messages, ModelResponse, SelfplayError
from selfplay.inference.delivery import (
    Delivery,
    DeliveryError,
    Expectation,
    changes_nothing,
    check_delivery,
    check_hash,
    file_hash,
    read_expectation,
    tolerance_of,
)
from selfplay.runtime.ray.recent_load import RecentLoad
from selfplay.runtime.ray.resident_adapters import AdapterRef, ResidentAdapters

if TYPE_CHECKING:  # torch and vLLM are imported by whoever starts a host, not by whoever knows of it
    from torch import Tensor

    from selfplay.inference.engine import EmbeddedEngine
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.policy import PolicyModel

__all__ = ["AdapterRef", "EmbeddedHost", "EngineHost", "VLLMHost"]

BASE_NAME = "base"

Engine = TypeVar("Engine", bound=InferenceClient)


class EngineHost(Protocol):
    """What an inference actor holds."""

    async def start(self) -> None:
        """Load the model. The event loop stands still meanwhile."""

    async def close(self) -> None:
        """Stop; whoever waits gets a SelfplayError."""

    async def complete(
        self,
        adapter: AdapterRef,
        messages: Messages,
        temperature: float,
        max_tokens: int | None,
        return_tokens: bool,
        seed: int | None,
    ) -> ModelResponse:
        """Answer ``messages``; see :class:`InferenceClient`.

        Raises:
            DeliveryError: the adapter is not what its maker wrote.
            SelfplayError: there is no such adapter, or the engine failed.
            InputError: the adapter is damaged or another model's, or the request is impossible.
        """

    async def score(self, adapter: AdapterRef, messages: Messages, completions: list[str]) -> list[float]:
        """Log-probability of each completion with its stop token, at temperature 1. Raises the same."""

    def stats(self) -> dict[str, float]:
        """The load now.

        ``queued`` and ``running`` requests, ``generated_tokens`` since the start and ``tok_s`` a second
        lately, ``idle_share`` (of the last five seconds, without any request), ``adapters`` loaded.
        """


class _Host(ABC, Generic[Engine]):
    """What both hosts have in common: requests, adapters and figures."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._adapters = ResidentAdapters([], self._load, self._drop)
        self._recent = RecentLoad()

    async def complete(
        self,
        adapter: AdapterRef,
        messages: Messages,
        temperature: float,
        max_tokens: int | None,
        return_tokens: bool,
        seed: int | None,
    ) -> ModelResponse:
        """Answer ``messages``; see :class:`EngineHost`."""
        with self._recent.request():
            async with self._model(adapter) as model:
                response = await self._running().complete(
                    messages, temperature, max_tokens, return_tokens, model=model, seed=seed
                )
        return replace(response, policy_version=adapter.version)

    async def score(self, adapter: AdapterRef, messages: Messages, completions: list[str]) -> list[float]:
        """Log-probability of each completion; see :class:`EngineHost`."""
        with self._recent.request():
            async with self._model(adapter) as model:
                return await self._running().score(messages, completions, model=model)

    async def close(self) -> None:
        """Stop; whoever waits gets a SelfplayError."""
        engine, self._engine = self._engine, None
        await self._adapters.settle()
        if engine is not None:
            await self._stop(engine)

    @asynccontextmanager
    async def _model(self, adapter: AdapterRef) -> AsyncIterator[str]:
        """Run the body with an adapter ready; gives the name that the engine knows it by."""
        self._running()
        if adapter.path is None:
            yield BASE_NAME
            return
        async with self._adapters.use(adapter) as slot:
            yield slot

    def _running(self) -> Engine:
        if self._engine is None:
            raise SelfplayError("the engine is not running")
        return self._engine

    def _figures(self, running: int, generated_tokens: int, tok_s: float) -> dict[str, float]:
        return {
            "queued": max(0, self._recent.under_way - running),
            "running": running,
            "tok_s": tok_s,
            "generated_tokens": generated_tokens,
            "idle_share": self._recent.idle_share(),
            "adapters": len(self._adapters),
        }

    @abstractmethod
    async def _stop(self, engine: Engine) -> None: ...

    @abstractmethod
    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery: ...

    @abstractmethod
    async def _drop(self, slot: str) -> None: ...


class EmbeddedHost(_Host["EmbeddedEngine"]):
    """An engine in this process. See :class:`EngineHost`.

    Args:
        build_policy: makes the model. Adapters have its LoRA shape; its own is never asked.
        max_tokens: see :class:`EmbeddedEngine`, as the next three.
        max_context: most tokens of prompt and answer together.
        max_queue: most requests waiting or running.
        max_cached_tokens: most tokens kept for each adapter.
        max_adapters: most adapters loaded. Each takes its memory at the start: PEFT needs much longer for a
            new adapter than for new weights in one that is there.

    Raises:
        InputError: ``max_adapters`` is less than 1.
    """

    def __init__(
        self,
        build_policy: Callable[[], "PolicyModel"],
        *,
        max_tokens: int,
        max_context: int | None,
        max_queue: int,
        max_cached_tokens: int,
        max_adapters: int,
    ) -> None:
        super().__init__()
        self._build_policy = build_policy
        self._slots = _slots(max_adapters)
        self._settings: dict[str, Any] = {
            "max_tokens": max_tokens,
            "max_context": max_context,
            "max_queue": max_queue,
            "max_cached_tokens": max_cached_tokens,
        }

    async def start(self) -> None:
        """Load the model. The event loop stands still meanwhile."""
        from selfplay.inference.engine import EmbeddedEngine
        from selfplay.learning.delivery import canary_tokens
        from selfplay.learning.policy import BASE

        self._policy = self._build_policy()
        untrained = self._policy.adapter_state(self._policy.policies[0])
        for slot in self._slots:
            self._policy.load_adapter_state(untrained, slot)
        engine = EmbeddedEngine(self._policy, **self._settings)
        engine.publish(BASE_NAME, BASE, 0)
        self._canary = canary_tokens(self._policy)
        self._base = Delivery(BASE_NAME, 0, "", tuple(await engine.logprobs(self._canary, model=BASE_NAME)))
        self._adapters = ResidentAdapters(self._slots, self._load, self._drop)
        self._engine = engine

    def stats(self) -> dict[str, float]:
        """The load now; see :class:`EngineHost`."""
        if self._engine is None:
            return self._figures(0, 0, 0.0)
        generated = self._engine.stats.generated_tokens
        return self._figures(self._engine.running, generated, self._recent.tokens_per_second(generated))

    async def _stop(self, engine: "EmbeddedEngine") -> None:
        for name in engine.names():
            engine.withdraw(name)

    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        files = await asyncio.to_thread(_read, adapter)
        _check_shape(adapter, files.config, self._policy)
        engine = self._running()
        self._policy.load_adapter_state(files.weights, slot)
        engine.publish(slot, slot, adapter.version)
        try:
            canary = await engine.logprobs(self._canary, model=slot)
            said = files.expected
            expected = said.canary if said else None
            delivery = Delivery(adapter.name, adapter.version, files.sha256, tuple(canary), expected)
            check_delivery(
                delivery,
                expected_canary=expected,
                expected_base=said.base if said else None,
                before=before,
                base=self._base,
                changes_nothing=files.changes_nothing,
                tolerance=tolerance_of(self._policy.dtype),
            )
        except BaseException:
            await self._drop(slot)
            raise
        return delivery

    async def _drop(self, slot: str) -> None:
        self._running().withdraw(slot)


class VLLMHost(_Host["VLLMEngine"]):
    """vLLM. See :class:`EngineHost`.

    Args:
        build_engine: makes the engine, not started. Its ``max_adapters`` is the most that are loaded.
    """

    def __init__(self, build_engine: Callable[[], "VLLMEngine"]) -> None:
        super().__init__()
        self._build_engine = build_engine

    async def start(self) -> None:
        """Start vLLM and have it prove itself. The event loop stands still meanwhile."""
        engine = self._build_engine()
        slots = _slots(engine.max_adapters)
        await engine.start()
        try:
            await engine.publish(BASE_NAME, None, 0)
        except BaseException:
            await engine.close()
            raise
        self._adapters = ResidentAdapters(slots, self._load, self._drop)
        self._engine = engine

    def stats(self) -> dict[str, float]:
        """The load now; see :class:`EngineHost`."""
        if self._engine is None:
            return self._figures(0, 0, 0.0)
        stats = self._engine.stats()
        return self._figures(stats.running, stats.generated_tokens, stats.tokens_per_second)

    async def _stop(self, engine: "VLLMEngine") -> None:
        await engine.close()

    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        engine = self._running()
        directory, expected = await asyncio.to_thread(_described, adapter)
        try:
            delivery = await engine.publish(
                slot,
                directory,
                adapter.version,
                expected_canary=expected.canary if expected else None,
                expected_base=expected.base if expected else None,
                expected_hash=expected.sha256 if expected else None,
                before=before,
            )
        except DeliveryError as error:  # which knows the slot's name only
            raise DeliveryError(adapter.name, adapter.version, error.problem) from error
        return replace(delivery, name=adapter.name)

    async def _drop(self, slot: str) -> None:
        await self._running().withdraw(slot)


@dataclass(frozen=True)
class _Files:
    """An adapter as it was read from its directory."""

    weights: "dict[str, Tensor]"
    config: dict[str, Any]
    sha256: str
    changes_nothing: bool
    expected: Expectation | None


def _slots(max_adapters: int) -> list[str]:
    """Names that no policy can have."""
    if max_adapters < 1:
        raise InputError("max_adapters", f"{max_adapters} leaves no room for an adapter", "Give 1 or more")
    return [f"adapter:{number}" for number in range(max_adapters)]


def _described(adapter: AdapterRef) -> tuple[Path, Expectation | None]:
    """An adapter's directory, and what its maker says of it.

    Raises:
        SelfplayError: it is not there.
        InputError: what its maker says is damaged.
    """
    assert adapter.path is not None
    directory = Path(adapter.path)
    if not directory.is_dir():
        raise SelfplayError(
            f"{adapter.name} version {adapter.version} is not at {directory}; every machine must see "
            "the run's directory"
        )
    return directory, read_expectation(directory)


def _read(adapter: AdapterRef) -> _Files:
    """Read an adapter and check that the weights are those that its maker wrote.

    Raises:
        SelfplayError: it is not there.
        DeliveryError: its weights have another hash.
        InputError: it is damaged.
    """
    from selfplay.learning.checkpoints import load_adapter

    directory, expected = _described(adapter)
    sha256 = file_hash(directory)
    if expected is not None:
        check_hash(adapter.name, adapter.version, directory, sha256, expected.sha256)
        if adapter.version and expected.version != adapter.version:
            problem = f"the files in {directory} are version {expected.version}"
            raise DeliveryError(adapter.name, adapter.version, problem)
    weights, config = load_adapter(directory)
    return _Files(weights, config, sha256, changes_nothing(directory), expected)


def _check_shape(adapter: AdapterRef, config: dict[str, Any], policy: "PolicyModel") -> None:
    """Check what the weights alone do not show: an adapter of another alpha would answer wrongly.

    Raises:
        InputError: the adapter's shape is not that of the policy's own.
    """
    own, modules = policy.lora, config["target_modules"]
    wrong = []
    if config["r"] != own.lora_rank:
        wrong.append(f"its rank is {config['r']}, the engine's {own.lora_rank}")
    if config["lora_alpha"] != own.lora_alpha:
        wrong.append(f"its alpha is {config['lora_alpha']}, the engine's {own.lora_alpha:g}")
    if not isinstance(modules, list) or set(map(str, modules)) != set(own.target_modules):
        wrong.append(f"its target modules are {modules}, the engine's {own.target_modules}")
    if wrong:
        raise InputError(
            "adapter", f"{adapter.path}: {'; '.join(wrong)}", "Set lora to what it was trained with."
        )
