"""ServingHost: an engine with adapters of any shape, because those of jobs and clients differ."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.cluster.engines.host import AdapterFacts, AdapterRef, EmbeddedHost
from selfplay.core.adapters import Quantization

if TYPE_CHECKING:  # torch is imported by the process that starts a host, not by its clients
    from selfplay.inference.engine import EmbeddedEngine


@dataclass(frozen=True)
class ModelFacts:
    """How an engine computes the base model.

    Attributes:
        path: the model's directory.
        dtype: dtype of its weights, as torch names it.
        device: device of its weights.
        threads: threads of the computation.
        quantization: ``none`` or ``nf4``; see ``model.quantization``.
        max_context: maximum tokens of prompt and answer together.
    """

    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization
    max_context: int


class ServingHost(EmbeddedHost):
    """See the module, and :class:`EmbeddedHost`. A version of an adapter is the server's own number."""

    def facts(self) -> ModelFacts:
        """Return how this engine, which has started, computes."""
        import torch

        policy, max_context = self._policy, self._running().max_context
        dtype = str(policy.dtype).removeprefix("torch.")
        threads = torch.get_num_threads()
        return ModelFacts(
            policy.model_name, dtype, policy.device.type, threads, policy.quantization, max_context
        )

    async def hold(self, adapter: AdapterRef) -> None:
        """Load an adapter, unless it is loaded.

        Raises: as :meth:`complete` does.
        """
        async with self._model(adapter):
            return

    def _prepare(self, engine: "EmbeddedEngine") -> None:
        from selfplay.training.served_adapters import ServedAdapters

        self._loader: Any = ServedAdapters(self._policy, engine)

    async def _put(self, adapter: AdapterRef, directory: Path, slot: str) -> AdapterFacts:
        facts = await asyncio.to_thread(AdapterFacts.read, adapter, directory)
        await self._loader.load_while_serving(slot, directory)
        return facts

    async def _drop(self, slot: str) -> None:
        self._loader.unload(slot)
