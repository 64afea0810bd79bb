"""ServingEngines: all engines of a cluster as one, with the names that the server serves."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from sparring.cluster.calls import error_of
from sparring.cluster.engines.client import EngineClient
from sparring.core import Messages, SparringError
from sparring.core.adapters import AdapterRef
from sparring.core.chat_tokens import ChatTokens
from sparring.engine.adapters import Delivery
from sparring.engine.answering import Answering, ModelFacts

LOOK_SECONDS = 1.0


class ServingEngines(EngineClient, Answering):
    """See the module; adapters are published in all engines.

    Every engine loads an adapter before its name is served, and proves that it answers with it. An engine
    that is away meanwhile, or has made room for others since, does so with the first request that names it.

    Args:
        engines: handles of :class:`EngineService`.
        tokens: the model's tokenizer.
        max_tokens: maximum tokens of an answer if a request does not give one.
        facts: how the engines compute.
        patience: seconds without any engine after which requests fail.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        tokens: ChatTokens,
        *,
        max_tokens: int,
        facts: ModelFacts,
        patience: float,
    ) -> None:
        super().__init__(list(engines), (), patience=patience, adapters_only=True, wrong_adapter_ends=False)
        self.adapters = {}
        self.max_tokens = max_tokens
        self.max_context = facts.max_context
        self.vocabulary_size = facts.vocabulary_size
        self.tokenizer = tokens.tokenizer
        self._engines = engines
        self._tokens = tokens
        self._newest = 0

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return list(self.adapters)

    def render(self, messages: Messages) -> list[int]:
        """See :meth:`EmbeddedEngine.render`."""
        return self._tokens.render(messages)

    def publish_base(self, name: str) -> None:
        """Serve the base model as ``name``."""
        self.adapters[name] = AdapterRef(name, 0, None)

    async def publish_in_background(
        self, name: str, directory: Path, version: int | None = None, *, proof: bool = True
    ) -> Delivery:
        """See :class:`Publisher`; engines always ask for a proof."""
        version = self._newest + 1 if version is None else version
        adapter = AdapterRef(name, version, str(directory.absolute()))
        self._newest = max(self._newest, version)
        number = range(len(self._engines))
        held = await asyncio.gather(*(self._hold(one, adapter) for one in number), return_exceptions=True)
        for error in held:
            if isinstance(error, BaseException):
                raise error
        deliveries = [one for one in held if isinstance(one, Delivery)]
        if not deliveries:
            raise SparringError(f"no engine could be reached to load {name}")
        self.adapters[name] = adapter
        return deliveries[0]

    def withdraw(self, name: str) -> None:
        """Stop serving ``name``. Its requests in progress are answered."""
        del self.adapters[name]

    async def failure(self) -> None:
        """Wait until no engine can answer any more; end only with the reason.

        Raises:
            SparringError: the engines are lost or cannot start again.
        """
        while self.fatal is None:
            await asyncio.sleep(LOOK_SECONDS)
        raise self.fatal

    async def _hold(self, number: int, adapter: AdapterRef) -> Delivery | None:
        """Let an engine load an adapter; return its proof, or ``None`` if it could not be reached."""
        try:
            held: Delivery = await asyncio.wait_for(self._engines[number].hold.remote(adapter), self.patience)
        except RayTaskError as error:
            raise error_of(f"Engine-{number}", error) from error
        except (RayError, TimeoutError):
            return None
        return held
