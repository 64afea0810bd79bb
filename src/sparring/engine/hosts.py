"""An engine that loads adapters when they are asked for. Requests name adapters by path; weights are never
pushed to it.

An adapter is published with its first request, once it has proved to be the one that the learner wrote, and
answers from then on. At most ``max_adapters`` stay published; the least recently used one is withdrawn. The
same path and version mean the same weights.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sparring.core import InputError, Messages, ModelResponse, SparringError
from sparring.core.adapters import BASE, AdapterRef
from sparring.core.manifest import Expectation
from sparring.engine.adapters import Delivery, DeliveryError
from sparring.engine.answering import Engine, EngineCall, ModelFacts, find_model
from sparring.engine.load_window import LoadWindow
from sparring.engine.resident_adapters import ResidentAdapters
from sparring.learn.model_files import check_base, fingerprint

if TYPE_CHECKING:  # torch and vLLM are imported by the process that starts a host, not by its clients
    from sparring.engine.engine import EmbeddedEngine
    from sparring.engine.vllm_engine import VLLMEngine
    from sparring.learn.policy import PolicyModel

Held = TypeVar("Held", bound=Engine)


@dataclass(frozen=True)
class EngineRequest:
    """A request: for the log-probabilities of ``completions`` if they are given, else for an answer. The
    ``adapter`` answers, whatever model the call names."""

    number: int
    adapter: AdapterRef
    call: EngineCall
    completions: list[str] | None = None


class FileCopies(Protocol):
    """Gives copies of what is on another machine."""

    async def prepare(self) -> None:
        """Make a copy of the model, from which the engine starts."""

    async def fetch(self, path: str) -> Path:
        """Return the directory of a copy of the adapter that is at ``path`` elsewhere."""


class EngineHost(ABC, Generic[Held]):
    """Holds an engine, in an inference actor or in the process of a run.

    Args:
        copies: gives copies of models and adapters on a node that does not see them; ``None`` if it does.
    """

    def __init__(self, copies: FileCopies | None) -> None:
        self._copies = copies
        self._engine: Held | None = None
        self._adapters = ResidentAdapters([], self._load, self._drop)
        self._recent = LoadWindow()

    async def start(self) -> None:
        """Load the model. The event loop is blocked while it is loaded, but not while it is copied.

        Raises:
            SparringError: the engine cannot start.
        """
        if self._copies is not None:
            await self._copies.prepare()
        engine, max_adapters = await self._start()
        self._adapters = ResidentAdapters(_slots(max_adapters), self._load, self._drop)
        self._engine = engine

    async def complete(self, request: EngineRequest) -> ModelResponse:
        """Answer a request; see :class:`InferenceClient`.

        Raises:
            DeliveryError: the adapter is not the one that the learner wrote.
            SparringError: there is no such adapter, or the engine failed.
            InputError: the adapter is damaged or belongs to another model, or the request is impossible.
        """
        with self._recent.request():
            async with self._model(request.adapter) as model:
                response = await self._running().answer(replace(request.call, model=model))
        return replace(response, policy_version=request.adapter.version)

    async def score(self, adapter: AdapterRef, messages: Messages, completions: list[str]) -> list[float]:
        """Return the log-probability of each completion with its stop token, at temperature 1.

        Raises: as :meth:`complete` does.
        """
        with self._recent.request():
            async with self._model(adapter) as model:
                return await self._running().score(messages, completions, model=model)

    async def hold(self, adapter: AdapterRef) -> Delivery:
        """Load an adapter, unless it is loaded; return the proof that it answers.

        Raises: as :meth:`complete` does.
        """
        async with self._model(adapter):
            return self._adapters.delivery(adapter)

    async def close(self) -> None:
        """Stop; pending requests fail with a SparringError."""
        engine, self._engine = self._engine, None
        await self._adapters.settle()
        if engine is not None:
            await self._stop(engine)

    def stats(self) -> dict[str, float]:
        """Return the current load.

        ``queued`` and ``running`` count requests, ``generated_tokens`` tokens since the start, and ``tok_s``
        is the recent rate per second; ``idle_share`` is the share of the last five seconds without any
        request, ``adapters`` counts the loaded ones, and ``spelled_control_tokens`` those in answers since
        the start.
        """
        counted = {"running": 0.0, "tok_s": 0.0, "generated_tokens": 0.0, "spelled_control_tokens": 0.0}
        if self._engine is not None:
            counted = self._counted(self._engine)
        return {
            "queued": max(0, self._recent.under_way - counted["running"]),
            **counted,
            "idle_share": self._recent.idle_share(),
            "adapters": len(self._adapters),
        }

    @asynccontextmanager
    async def _model(self, adapter: AdapterRef) -> AsyncIterator[str]:
        """Run the body with an adapter ready; yield the engine's name for it."""
        self._running()
        if adapter.path is None:
            yield BASE
            return
        async with self._adapters.use(adapter) as slot:
            yield slot

    async def _load(self, adapter: AdapterRef, slot: str, before: Delivery | None) -> Delivery:
        directory = await self._directory_of(adapter)
        try:
            delivery = await self._publish(slot, directory, adapter.version, before)
        except DeliveryError as error:  # which knows only the slot's name
            raise DeliveryError(adapter.name, adapter.version, error.problem) from error
        return replace(delivery, name=adapter.name)

    async def _directory_of(self, adapter: AdapterRef) -> Path:
        """Return an adapter's directory, or that of a copy; another machine may have others at this path."""
        assert adapter.path is not None
        if self._copies is not None:
            return await self._copies.fetch(adapter.path)
        directory = Path(adapter.path)
        if not await asyncio.to_thread(directory.is_dir):
            raise SparringError(f"{adapter.name} version {adapter.version} is not at {directory}")
        return directory

    def _running(self) -> Held:
        if self._engine is None:
            raise SparringError("the engine is not running")
        return self._engine

    @abstractmethod
    async def _start(self) -> tuple[Held, int]:
        """Return the engine, which serves the base model, and how many adapters it holds at once."""

    @abstractmethod
    async def _stop(self, engine: Held) -> None: ...

    @abstractmethod
    def _counted(self, engine: Held) -> dict[str, float]:
        """Return the figures of :meth:`stats` that the engine counts."""

    @abstractmethod
    async def _publish(self, slot: str, directory: Path, version: int, before: Delivery | None) -> Delivery:
        """Publish an adapter in an empty slot."""

    @abstractmethod
    async def _drop(self, slot: str) -> None: ...


class EmbeddedHost(EngineHost["EmbeddedEngine"]):
    """An engine in this process.

    Args:
        build_policy: builds the model, whose own LoRA adapter never answers.
        max_adapters: maximum adapters loaded.
        of_a_run: whether the adapters are a run's: they have the shape of the model's own, and a learner has
            numbered them.

    Raises:
        InputError: ``max_adapters`` is less than 1.
    """

    def __init__(
        self,
        build_policy: "Callable[[], PolicyModel]",
        build_engine: "Callable[[PolicyModel], EmbeddedEngine]",
        max_adapters: int,
        *,
        of_a_run: bool = True,
        copies: FileCopies | None = None,
    ) -> None:
        super().__init__(copies)
        _slots(max_adapters)
        self._build_policy = build_policy
        self._build_engine = build_engine
        self._max_adapters = max_adapters
        self._of_a_run = of_a_run

    def facts(self) -> ModelFacts:
        """Return how this engine, which has started, computes."""
        facts: ModelFacts = self._running().facts()
        return facts

    async def _start(self) -> "tuple[EmbeddedEngine, int]":
        from sparring.engine.published_adapters import PublishedAdapters

        engine = self._build_engine(self._build_policy())
        engine.publish(BASE, BASE, 0)
        self._published = PublishedAdapters(engine, self._max_adapters if self._of_a_run else 0)
        return engine, self._max_adapters

    async def _stop(self, engine: "EmbeddedEngine") -> None:
        engine.close()

    def _counted(self, engine: "EmbeddedEngine") -> dict[str, float]:
        stats = engine.stats
        return {
            "running": engine.running,
            "tok_s": self._recent.tokens_per_second(stats.generated_tokens),
            "generated_tokens": stats.generated_tokens,
            "spelled_control_tokens": stats.spelled_control_tokens,
        }

    async def _publish(self, slot: str, directory: Path, version: int, before: Delivery | None) -> Delivery:
        numbered = version if self._of_a_run else None
        return await self._published.publish_in_background(
            slot, directory, numbered, proof=True, before=before
        )

    async def _drop(self, slot: str) -> None:
        self._published.withdraw(slot)


class VLLMHost(EngineHost["VLLMEngine"]):
    """vLLM.

    Args:
        build_engine: builds the engine, not started. At most its ``max_adapters`` adapters are loaded.
    """

    def __init__(self, build_engine: "Callable[[], VLLMEngine]", copies: FileCopies | None = None) -> None:
        super().__init__(copies)
        self._build_engine = build_engine

    async def _start(self) -> "tuple[VLLMEngine, int]":
        engine = self._build_engine()
        _slots(engine.max_adapters)
        self._base = await asyncio.to_thread(fingerprint, engine.model)
        await engine.start()
        try:
            await engine.publish(BASE, None, 0)
        except BaseException:
            await engine.close()
            raise
        return engine, engine.max_adapters

    async def _stop(self, engine: "VLLMEngine") -> None:
        await engine.close()

    def _counted(self, engine: "VLLMEngine") -> dict[str, float]:
        stats = engine.stats()
        return {
            "running": stats.running,
            "tok_s": stats.tokens_per_second,
            "generated_tokens": stats.generated_tokens,
            "spelled_control_tokens": stats.spelled_control_tokens,
        }

    async def _publish(self, slot: str, directory: Path, version: int, before: Delivery | None) -> Delivery:
        await asyncio.to_thread(check_base, directory, self._base)
        said = await asyncio.to_thread(Expectation.read, directory)
        return await self._running().publish(slot, directory, version, said=said, before=before)

    async def _drop(self, slot: str) -> None:
        await self._running().withdraw(slot)

    def check(self) -> None:
        """Raise a SparringError if the engine has died."""
        if self._engine is not None and self._engine.has_died:
            raise SparringError("vLLM's process has ended; see what it printed above")

    async def sleep(self) -> None:
        """Let the engine sleep; see :meth:`VLLMEngine.sleep`."""
        await self._running().sleep()

    async def wake(self) -> None:
        """Wake the engine; see :meth:`VLLMEngine.wake`."""
        await self._running().wake()

    async def forget_contexts(self) -> None:
        """Forget cached contexts; see :meth:`VLLMEngine.forget_contexts`."""
        await self._running().forget_contexts()


def _slots(max_adapters: int) -> list[str]:
    if max_adapters < 1:
        raise InputError("max_adapters", f"{max_adapters} leaves no room for an adapter", "Give 1 or more")
    return [f"adapter:{number}" for number in range(max_adapters)]


class HostClient(Engine):
    """Asks the engine that a host in this process holds, whose adapters it knows by name.

    ``adapters`` are what answers, by name; a call takes the one that has the name when it begins. ``fatal``
    is the error of an adapter that is not the one that was written, which every further call raises.
    """

    def __init__(self, host: EngineHost[Any]) -> None:
        self.host = host
        self.adapters = {BASE: AdapterRef(BASE, 0, None)}
        self.fatal: SparringError | None = None

    async def answer(self, call: EngineCall) -> ModelResponse:
        """Answer a call. Raises as :meth:`EngineHost.complete` does."""
        adapter = find_model(self.adapters, call.model)
        with self._fatal_if_wrong():
            return await self.host.complete(EngineRequest(0, adapter, call))

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each completion; see :class:`InferenceClient`."""
        with self._fatal_if_wrong():
            return await self.host.score(find_model(self.adapters, model), messages, completions)

    async def hold(self, name: str) -> Delivery:
        """Load the adapter of this name; return the proof that it answers. Raises as :meth:`answer` does."""
        with self._fatal_if_wrong():
            return await self.host.hold(self.adapters[name])

    async def get_policy_version(self) -> int:
        """Return the newest version that answers now."""
        return max(adapter.version for adapter in self.adapters.values())

    @contextmanager
    def _fatal_if_wrong(self) -> Iterator[None]:
        if self.fatal is not None:
            raise self.fatal
        try:
            yield
        except DeliveryError as error:
            self.fatal = error
            raise
