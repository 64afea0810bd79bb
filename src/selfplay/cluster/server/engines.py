"""ServingEngines: all engines of a cluster as one, with the names that the server serves."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from selfplay.cluster.actor_errors import error_of
from selfplay.cluster.engines.client import EngineClient
from selfplay.core import InputError, Messages, ModelResponse, SelfplayError
from selfplay.core.adapters import AdapterRef
from selfplay.core.chat_tokens import ChatTokens
from selfplay.inference.adapter_check import DeliveryError, expectation_of
from selfplay.inference.answer_options import PLAIN, AnswerOptions
from selfplay.inference.answering import Answering

LOOK_SECONDS = 1.0
SEEDS = 1 << 64
"""The engines know seeds below this number; larger ones wrap around."""


class ServingEngines(Answering):
    """See the module; it is both the ``CheckedLoader`` of jobs and the ``AdapterLoader`` of clients.

    Every engine loads an adapter before its name is served, and proves that it answers with it. An engine
    that is away meanwhile, or has made room for others since, does so with the first request that names it.

    Args:
        engines: handles of :class:`ServingEngine`.
        tokens: the model's tokenizer.
        max_tokens: maximum tokens of an answer if a request does not give one.
        max_context: maximum tokens of prompt and answer together.
        vocabulary_size: number of the model's token ids.
        patience: seconds without any engine after which requests fail.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        tokens: ChatTokens,
        *,
        max_tokens: int,
        max_context: int,
        vocabulary_size: int,
        patience: float,
    ) -> None:
        self.max_tokens = max_tokens
        self.max_context = max_context
        self.patience = patience
        self._vocabulary_size = vocabulary_size
        self._engines = engines
        self._tokens = tokens
        self._newest = 0
        self.client = EngineClient(
            list(engines), (), patience=patience, adapters_only=True, wrong_adapter_ends=False
        )
        self._served = self.client.adapters = {}

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._tokens.tokenizer

    @property
    def vocabulary_size(self) -> int:
        """The number of the model's token ids."""
        return self._vocabulary_size

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return list(self._served)

    async def get_policy_version(self) -> int:
        """Return the newest version that is served."""
        return max((one.version for one in self._served.values()), default=0)

    def render(self, messages: Messages) -> list[int]:
        """See :meth:`EmbeddedEngine.render`."""
        return self._tokens.render(messages)

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        options: AnswerOptions = PLAIN,
    ) -> ModelResponse:
        """See :meth:`EngineClient.complete`."""
        if seed is not None:
            seed %= SEEDS
        return await self.client.complete(
            messages,
            temperature,
            max_tokens,
            return_tokens,
            model=model,
            seed=seed,
            stop=stop,
            options=options,
        )

    async def stream(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        options: AnswerOptions = PLAIN,
    ) -> AsyncGenerator[ModelResponse]:
        """Answer as :meth:`complete` does, in one part: engines send whole answers."""
        yield await self.complete(
            messages, temperature, max_tokens, model=model, seed=seed, stop=stop, options=options
        )

    def serve_base(self, name: str) -> None:
        """Serve the base model as ``name``."""
        self._served[name] = AdapterRef(name, 0, None)

    async def load(self, name: str, directory: Path, version: int) -> None:
        """Serve the adapter in ``directory`` as ``name``; its answers carry ``version``.

        Raises:
            InputError: it is missing or damaged, or does not fit the model.
            DeliveryError: an engine does not answer with it.
            SelfplayError: no engine can be reached.
        """
        adapter = AdapterRef(name, version, str(directory.absolute()))
        self._newest = max(self._newest, version)
        number = range(len(self._engines))
        held = await asyncio.gather(*(self._hold(one, adapter) for one in number), return_exceptions=True)
        for error in held:
            if isinstance(error, BaseException):
                raise error
        if not any(held):
            raise SelfplayError(f"no engine could be reached to load {name}")
        self._served[name] = adapter

    async def load_while_serving(self, name: str, directory: Path) -> int:
        """Serve an adapter in place of one of that name; return its version, a new one.

        Raises:
            InputError: it is missing or damaged, or does not fit the model.
            SelfplayError: no engine can be reached.
        """
        try:
            return await self._load_next(name, directory)
        except DeliveryError as error:
            raise InputError("adapter", error.problem, "Save it again.") from error

    async def deliver(self, name: str, directory: Path) -> None:
        """Serve the adapter of a job; see :meth:`load`."""
        await asyncio.to_thread(expectation_of, directory)
        await self._load_next(name, directory)

    def unload(self, name: str) -> None:
        """Stop serving ``name``. Its requests in progress are answered."""
        del self._served[name]

    async def failure(self) -> None:
        """Wait until no engine can answer any more; end only with the reason.

        Raises:
            SelfplayError: the engines are lost or cannot start again.
        """
        while self.client.fatal is None:
            await asyncio.sleep(LOOK_SECONDS)
        raise self.client.fatal

    async def _load_next(self, name: str, directory: Path) -> int:
        self._newest += 1
        version = self._newest
        await self.load(name, directory, version)
        return version

    async def _hold(self, number: int, adapter: AdapterRef) -> bool:
        """Let an engine load an adapter; return whether it could be reached."""
        try:
            await asyncio.wait_for(self._engines[number].hold.remote(adapter), self.patience)
        except RayTaskError as error:
            raise error_of(f"Engine-{number}", error) from error
        except (RayError, TimeoutError):
            return False
        return True
