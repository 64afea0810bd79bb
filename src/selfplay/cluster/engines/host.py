"""The engine inside an inference actor. Requests name adapters by path; weights are never pushed to it.

An adapter is loaded with its first request, is checked to be the one that the learner wrote (see
``inference.delivery``), and answers from then on. At most ``max_adapters`` stay loaded; the least recently
used one is evicted. The same path and version mean the same weights.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from selfplay.cluster.engines.adapter_files import AdapterCache
from selfplay.cluster.engines.load_window import LoadWindow
from selfplay.cluster.engines.resident_adapters import ResidentAdapters
from selfplay.core import InferenceClient, InputError, Messages, ModelResponse, SelfplayError
from selfplay.core.adapters import BASE, AdapterRef
from selfplay.inference.adapter_check import (
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

if TYPE_CHECKING:  # torch and vLLM are imported by the process that starts a host, not by its clients
    from torch import Tensor

    from selfplay.inference.engine import EmbeddedEngine
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.policy import PolicyModel

__all__ = ["AdapterRef", "EmbeddedHost", "EngineHost", "VLLMHost"]

Engine = TypeVar("Engine", bound=InferenceClient)


class EngineHost(ABC, Generic[Engine]):
    """The engine that an inference actor holds."""

    def __init__(self, copies: AdapterCache | None) -> None:
        self._copies = copies
        self._engine: Engine | None = None
        self._adapters = ResidentAdapters([], self._load, self._drop)
        self._recent = LoadWindow()

    @abstractmethod
    async def start(self) -> None:
        """Load the model. The event loop is blocked meanwhile."""

    async def complete(
        self,
        adapter: AdapterRef,
        messages: Messages,
        temperature: float,
        max_tokens: int | None,
        return_tokens: bool,
        seed: int | None,
        stop: tuple[str, ...] = (),
    ) -> ModelResponse:
        """Answer ``messages``; see :class:`InferenceClient`.

        Raises:
            DeliveryError: the adapter is not the one that the learner wrote.
            SelfplayError: there is no such adapter, or the engine failed.
            InputError: the adapter is damaged or belongs to another model, or the request is impossible.
        """
        with self._recent.request():
            async with self._model(adapter) as model:
                response = await self._running().complete(
                    messages, temperature, max_tokens, return_tokens, model=model, seed=seed, stop=stop
                )
        return replace(response, policy_version=adapter.version)

    async def score(self, adapter: AdapterRef, messages: Messages, completions: list[str]) -> list[float]:
        """Return the log-probability of each completion with its stop token, at temperature 1.

        Raises: as :meth:`complete` does.
        """
        with self._recent.request():
            async with self._model(adapter) as model:
                return await self._running().score(messages, completions, model=model)

    async def close(self) -> None:
        """Stop; pending requests fail with a SelfplayError."""
        engine, self._engine = self._engine, None
        await self._adapters.settle()
        if engine is not None:
            await self._stop(engine)

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """Return the current load.

        ``queued`` and ``running`` count requests, ``generated_tokens`` tokens since the start, and ``tok_s``
        is the recent rate per second; ``idle_share`` is the share of the last five seconds without any
        request, ``adapters`` counts the loaded ones, and ``spelled_control_tokens`` those in answers since
        the start.
        """

    @asynccontextmanager
    async def _model(self, adapter: AdapterRef) -> AsyncIterator[str]:
        """Run the body with an adapter ready; yield the engine's name for it."""
        self._running()
        if adapter.path is None:
            yield BASE
            return
        async with self._adapters.use(adapter) as slot:
            yield slot

    async def _directory_of(self, adapter: AdapterRef) -> Path:
        """Return an adapter's directory, or that of a copy if this node does not see it.

        Raises:
            SelfplayError: there is none.
            TransientError: the copy was damaged on its way.
        """
        assert adapter.path is not None
        directory = Path(adapter.path)
        if await asyncio.to_thread(directory.is_dir):
            return directory
        if self._copies is None:
            raise SelfplayError(f"{adapter.name} version {adapter.version} is not at {directory}")
        return await self._copies.fetch(adapter.path)

    def _running(self) -> Engine:
        if self._engine is None:
            raise SelfplayError("the engine is not running")
        return self._engine

    def _figures(self, running: int, generated_tokens: int, tok_s: float, spelled: int) -> dict[str, float]:
        return {
            "queued": max(0, self._recent.under_way - running),
            "running": running,
            "tok_s": tok_s,
            "generated_tokens": generated_tokens,
            "idle_share": self._recent.idle_share(),
            "adapters": len(self._adapters),
            "spelled_control_tokens": spelled,
        }

    @abstractmethod
    async def _stop(self, engine: Engine) -> None: ...

    @abstractmethod
    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery: ...

    @abstractmethod
    async def _drop(self, slot: str) -> None: ...


class EmbeddedHost(EngineHost["EmbeddedEngine"]):
    """An engine in this process. See :class:`EngineHost`.

    Args:
        build_policy: builds the model. Adapters have the shape of its own LoRA adapter, which never answers.
        max_tokens: see :class:`EmbeddedEngine`, as for the next three.
        max_context: maximum tokens of prompt and answer together.
        max_queue: maximum requests waiting or running.
        max_cached_tokens: maximum tokens kept at once, over all adapters.
        max_adapters: maximum adapters loaded. Memory for all of them is allocated at the start: PEFT needs
            much longer to add an adapter than to load new weights into an existing one.
        copies: gives copies of adapters that this node does not see; ``None`` if it sees all of them.

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
        copies: AdapterCache | None = None,
    ) -> None:
        super().__init__(copies)
        self._build_policy = build_policy
        self._slots = _slots(max_adapters)
        self._settings: dict[str, Any] = {
            "max_tokens": max_tokens,
            "max_context": max_context,
            "max_queue": max_queue,
            "max_cached_tokens": max_cached_tokens,
        }

    async def start(self) -> None:
        """Load the model. The event loop is blocked meanwhile."""
        from selfplay.inference.engine import EmbeddedEngine
        from selfplay.learning.delivery_file import canary_tokens

        self._policy = self._build_policy()
        engine = EmbeddedEngine(self._policy, **self._settings)
        self._prepare(engine)
        engine.publish(BASE, BASE, 0)
        self._canary = canary_tokens(self._policy)
        self._base = Delivery(BASE, 0, "", tuple(await engine.logprobs(self._canary, model=BASE)))
        self._adapters = ResidentAdapters(self._slots, self._load, self._drop)
        self._engine = engine

    def stats(self) -> dict[str, float]:
        """The load now; see :class:`EngineHost`."""
        if self._engine is None:
            return self._figures(0, 0, 0.0, 0)
        stats = self._engine.stats
        tok_s = self._recent.tokens_per_second(stats.generated_tokens)
        return self._figures(
            self._engine.running, stats.generated_tokens, tok_s, stats.spelled_control_tokens
        )

    async def _stop(self, engine: "EmbeddedEngine") -> None:
        engine.close()

    def _prepare(self, engine: "EmbeddedEngine") -> None:
        """Make the slots before the engine answers."""
        untrained = self._policy.adapter_state(self._policy.policies[0])
        for slot in self._slots:
            self._policy.load_adapter_state(untrained, slot)

    async def _put(self, adapter: AdapterRef, directory: Path, slot: str) -> "AdapterFacts":
        """Read an adapter, put it into an empty slot and publish it under the slot's name."""
        weights, facts = await asyncio.to_thread(_read, adapter, directory, self._policy)
        self._policy.load_adapter_state(weights, slot)
        self._running().publish(slot, slot, adapter.version)
        return facts

    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        directory = await self._directory_of(adapter)
        files = await self._put(adapter, directory, slot)
        try:
            canary = await self._running().logprobs(self._canary, model=slot)
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


class VLLMHost(EngineHost["VLLMEngine"]):
    """vLLM. See :class:`EngineHost`.

    Args:
        build_engine: builds the engine, not started. At most its ``max_adapters`` adapters are loaded.
        copies: see :class:`EmbeddedHost`.
    """

    def __init__(self, build_engine: Callable[[], "VLLMEngine"], copies: AdapterCache | None = None) -> None:
        super().__init__(copies)
        self._build_engine = build_engine

    async def start(self) -> None:
        """Start vLLM and check its answers. The event loop is blocked meanwhile."""
        engine = self._build_engine()
        slots = _slots(engine.max_adapters)
        await engine.start()
        try:
            await engine.publish(BASE, None, 0)
        except BaseException:
            await engine.close()
            raise
        self._adapters = ResidentAdapters(slots, self._load, self._drop)
        self._engine = engine

    def stats(self) -> dict[str, float]:
        """The load now; see :class:`EngineHost`."""
        if self._engine is None:
            return self._figures(0, 0, 0.0, 0)
        stats = self._engine.stats()
        return self._figures(
            stats.running, stats.generated_tokens, stats.tokens_per_second, stats.spelled_control_tokens
        )

    async def _stop(self, engine: "VLLMEngine") -> None:
        await engine.close()

    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        engine = self._running()
        directory = await self._directory_of(adapter)
        expected = await asyncio.to_thread(read_expectation, directory)
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
        except DeliveryError as error:  # which knows only the slot's name
            raise DeliveryError(adapter.name, adapter.version, error.problem) from error
        return replace(delivery, name=adapter.name)

    async def _drop(self, slot: str) -> None:
        await self._running().withdraw(slot)


@dataclass(frozen=True)
class AdapterFacts:
    """What an adapter's directory says about its weights.

    Attributes:
        sha256: hash of the weight file, in hexadecimal.
        changes_nothing: whether the adapter was never trained.
        expected: what the learner wrote about it, if it did.
    """

    sha256: str
    changes_nothing: bool
    expected: Expectation | None

    @classmethod
    def read(cls, adapter: AdapterRef, directory: Path) -> Self:
        """Read a directory and check that the weights are those that the learner wrote.

        Raises:
            DeliveryError: they have another hash.
            InputError: they are damaged.
        """
        expected = read_expectation(directory)
        sha256 = file_hash(directory)
        if expected is not None:
            check_hash(adapter.name, adapter.version, directory, sha256, expected.sha256)
        return cls(sha256, changes_nothing(directory), expected)


def _slots(max_adapters: int) -> list[str]:
    """Return names that no policy can have."""
    if max_adapters < 1:
        raise InputError("max_adapters", f"{max_adapters} leaves no room for an adapter", "Give 1 or more")
    return [f"adapter:{number}" for number in range(max_adapters)]


def _read(
    adapter: AdapterRef, directory: Path, policy: "PolicyModel"
) -> "tuple[dict[str, Tensor], AdapterFacts]":
    """Read an adapter and check that it has this shape and the weights that the learner wrote.

    Raises:
        DeliveryError: the weights have another hash or version.
        InputError: the adapter is damaged or has another shape.
    """
    from selfplay.learning.checkpoints import check_lora_shape, load_adapter

    facts = AdapterFacts.read(adapter, directory)
    if facts.expected is not None and adapter.version and facts.expected.version != adapter.version:
        problem = f"the files in {directory} are version {facts.expected.version}"
        raise DeliveryError(adapter.name, adapter.version, problem)
    weights, config = load_adapter(directory)
    check_lora_shape(directory, config, policy)
    return weights, facts
