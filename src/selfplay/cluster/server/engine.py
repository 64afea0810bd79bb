"""ServingEngine: an inference actor of the server."""

from collections.abc import Coroutine
from typing import Any

from selfplay.cluster.engines.service import EngineService, Request
from selfplay.cluster.engines.settings import EngineSettings
from selfplay.cluster.handles import Handle, found
from selfplay.cluster.server.host import ModelFacts, ServingHost
from selfplay.core import ModelResponse
from selfplay.core.adapters import AdapterRef
from selfplay.core.garbage_collection import raise_collection_thresholds


class ServingEngine(EngineService):
    """An :class:`EngineService` over a :class:`ServingHost`."""

    def __init__(self, host: ServingHost, name: str = "engine") -> None:
        super().__init__(host, name)
        self._serving = host

    async def facts(self) -> ModelFacts:
        """See :meth:`ServingHost.facts`; the engine starts first."""
        await self.start()
        return self._serving.facts()

    async def hold(self, adapter: AdapterRef) -> None:
        """See :meth:`ServingHost.hold`; the engine starts first."""
        await self.start()
        await self._serving.hold(adapter)

    def _complete(self, request: Request) -> Coroutine[Any, Any, ModelResponse]:
        return self._serving.answer(request)


class ServingEngineActor(ServingEngine):
    """:class:`ServingEngine` as an actor; see ``actor_classes``."""

    def __init__(
        self, settings: EngineSettings, name: str, tracker: Handle = None, adapter_files: Handle = None
    ) -> None:
        raise_collection_thresholds()
        super().__init__(settings.build_embedded(ServingHost, found(adapter_files)), name)
