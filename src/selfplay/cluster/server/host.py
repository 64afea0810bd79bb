"""ServingHost: an engine with adapters of any shape, because those of jobs and clients differ."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.cluster.engines.host import AdapterFacts, EmbeddedHost
from selfplay.cluster.engines.service import Request
from selfplay.core import ModelResponse
from selfplay.core.adapters import AdapterRef, Quantization

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
        vocabulary_size: number of the model's token ids.
    """

    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization
    max_context: int
    vocabulary_size: int


class ServingHost(EmbeddedHost):
    """See the module, and :class:`EmbeddedHost`. A version of an adapter is the server's own number."""

    def facts(self) -> ModelFacts:
        """Return how this engine, which has started, computes."""
        import torch

        policy, max_context = self._policy, self._running().max_context
        dtype = str(policy.dtype).removeprefix("torch.")
        threads = torch.get_num_threads()
        return ModelFacts(
            policy.model_name,
            dtype,
            policy.device.type,
            threads,
            policy.quantization,
            max_context,
            policy.vocabulary_size,
        )

    async def hold(self, adapter: AdapterRef) -> None:
        """Load an adapter, unless it is loaded.

        Raises: as :meth:`complete` does.
        """
        async with self._model(adapter):
            return

    async def answer(self, request: Request) -> ModelResponse:
        """Answer a request, also as its ``options`` ask; see :meth:`complete`."""
        with self._recent.request():
            async with self._model(request.adapter) as model:
                response = await self._running().complete(
                    request.messages,
                    request.temperature,
                    request.max_tokens,
                    request.return_tokens,
                    model=model,
                    seed=request.seed,
                    stop=request.stop,
                    options=request.options,
                )
        return replace(response, policy_version=request.adapter.version)

    def _prepare(self, engine: "EmbeddedEngine") -> None:
        from selfplay.training.served_adapters import ServedAdapters

        self._loader: Any = ServedAdapters(self._policy, engine)

    async def _put(self, adapter: AdapterRef, directory: Path, slot: str) -> AdapterFacts:
        facts = await asyncio.to_thread(AdapterFacts.read, adapter, directory)
        await self._loader.load_while_serving(slot, directory)
        return facts

    async def _drop(self, slot: str) -> None:
        self._loader.unload(slot)
