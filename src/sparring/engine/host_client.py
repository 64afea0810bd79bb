"""HostClient: asks the engine that a host in this process holds, whose adapters it knows by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparring.core import Messages, ModelResponse, SparringError
from sparring.core.adapters import BASE, AdapterRef
from sparring.engine.adapters import Delivery, DeliveryError
from sparring.engine.answering import Engine, EngineCall, find_model
from sparring.engine.hosts import EngineHost, EngineRequest


class HostClient(Engine):
    """See the module.

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
