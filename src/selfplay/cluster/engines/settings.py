"""EngineSettings: the engine that an inference actor runs, and how it is built there."""

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from selfplay.cluster.engines.adapter_files import AdapterCache
from selfplay.cluster.engines.host import EmbeddedHost, EngineHost, VLLMHost
from selfplay.cluster.node_cores import Sharing, cores_here
from selfplay.learning.model_files import cache_directory

if TYPE_CHECKING:
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.policy import PolicyModel

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class EngineSettings:
    """An engine and its limits; see the configuration's sections ``model``, ``lora`` and ``inference``.

    Without ``threads``, an embedded engine that knows its ``sharing`` computes on its share of its node.
    """

    model: str
    engine: Literal["embedded", "vllm"] = "embedded"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: int | None = None
    sharing: Sharing | None = None
    lora_rank: int = 16
    lora_alpha: float = 32.0
    target_modules: tuple[str, ...] = field(default=ALL_LINEAR)
    temperature: float = 1.0
    max_tokens: int = 64
    max_context: int | None = None
    max_queue: int = 16_384
    max_cached_tokens: int = 32_768
    max_adapters: int = 8
    max_batch: int = 256
    gpu_memory: float = 0.9
    tensor_parallel: int = 1

    def build_host(self, adapter_files: Any = None) -> EngineHost:
        """Build the engine, not started; ``adapter_files`` gives it adapters that its node does not see."""
        copies = None
        if adapter_files is not None:
            copies = AdapterCache(adapter_files, cache_directory() / "adapters")
        if self.engine == "vllm":
            return VLLMHost(functools.partial(_vllm_engine, self), copies)
        return EmbeddedHost(
            functools.partial(_policy_model, self),
            max_tokens=self.max_tokens,
            max_context=self.max_context,
            max_queue=self.max_queue,
            max_cached_tokens=self.max_cached_tokens,
            max_adapters=self.max_adapters,
            copies=copies,
        )


def say_nothing(line: str) -> None:
    """Discard messages about a model that is downloaded or converted: an actor has no terminal."""


def _policy_model(settings: EngineSettings) -> "PolicyModel":
    from selfplay.config.settings import ModelSettings
    from selfplay.learning.policy import LoraSettings
    from selfplay.training.assembly import build_policy

    threads = settings.threads
    if threads is None and settings.sharing is not None:
        threads = cores_here(settings.sharing)
    model = ModelSettings(name=settings.model, dtype=settings.dtype, device=settings.device, threads=threads)
    lora = LoraSettings(settings.lora_rank, settings.lora_alpha, list(settings.target_modules))
    return build_policy(model, lora, 0, say_nothing)


def _vllm_engine(settings: EngineSettings) -> "VLLMEngine":
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.model_files import resolve_model

    return VLLMEngine(
        str(resolve_model(settings.model, say_nothing)),
        max_tokens=settings.max_tokens,
        max_context=settings.max_context,
        max_queue=settings.max_queue,
        max_batch=settings.max_batch,
        max_adapters=settings.max_adapters,
        max_lora_rank=settings.lora_rank,
        dtype=settings.dtype,
        gpu_memory=settings.gpu_memory,
        tensor_parallel=settings.tensor_parallel,
    )
