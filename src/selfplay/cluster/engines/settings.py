"""EngineSettings: the engine that an inference actor runs, and how it is built there."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from selfplay.cluster.engines.adapter_files import AdapterCache
from selfplay.cluster.engines.host import EmbeddedHost, EngineHost, VLLMHost
from selfplay.cluster.node_cores import Sharing, cores_here
from selfplay.config import Config
from selfplay.config.model import InferenceSettings, LoraSection, ModelSettings
from selfplay.learning.model_files import cache_directory

if TYPE_CHECKING:
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.policy import PolicyModel

Host = TypeVar("Host", bound=EmbeddedHost)


@dataclass(frozen=True)
class EngineSettings:
    """An engine, as sections of the configuration describe it.

    Without ``model.threads``, an embedded engine that knows its ``sharing`` computes on its share of its
    node.
    """

    model: ModelSettings
    lora: LoraSection
    inference: InferenceSettings
    sharing: Sharing | None = None

    @classmethod
    def of(cls, config: Config) -> "EngineSettings":
        """Return the settings of a run's inference actors."""
        return cls(config.model, config.lora, config.inference, Sharing.of(config))

    def build_host(self, adapter_files: Any = None) -> EngineHost[Any]:
        """Build the engine, not started; ``adapter_files`` gives it adapters that its node does not see."""
        if self.inference.engine == "vllm":
            return VLLMHost(functools.partial(_vllm_engine, self), _copies(adapter_files))
        return self.build_embedded(EmbeddedHost, adapter_files)

    def build_embedded(self, host: type[Host], adapter_files: Any = None) -> Host:
        """Build an embedded engine of a class; see :meth:`build_host`."""
        settings = self.inference
        return host(
            functools.partial(_policy_model, self),
            max_tokens=settings.max_tokens,
            max_context=settings.max_context,
            max_queue=settings.max_queue,
            max_cached_tokens=settings.max_cached_tokens,
            max_adapters=settings.max_adapters,
            copies=_copies(adapter_files),
        )


def _copies(adapter_files: Any) -> AdapterCache | None:
    if adapter_files is None:
        return None
    return AdapterCache(adapter_files, cache_directory() / "adapters")


def say_nothing(line: str) -> None:
    """Discard messages about a model that is downloaded or converted: an actor has no terminal."""


def _policy_model(settings: EngineSettings) -> "PolicyModel":
    from selfplay.training.assembly import build_policy

    threads = settings.model.threads
    if threads is None and settings.sharing is not None:
        threads = cores_here(settings.sharing)
    model = settings.model.model_copy(update={"threads": threads})
    return build_policy(model, settings.lora, 0, say_nothing)


def _vllm_engine(settings: EngineSettings) -> "VLLMEngine":
    from selfplay.inference.vllm_engine import VLLMEngine
    from selfplay.learning.model_files import resolve_model

    inference = settings.inference
    return VLLMEngine(
        str(resolve_model(settings.model.name, say_nothing)),
        max_tokens=inference.max_tokens,
        max_context=inference.max_context,
        max_queue=inference.max_queue,
        max_batch=inference.max_batch,
        max_adapters=inference.max_adapters,
        max_lora_rank=settings.lora.rank,
        dtype=settings.model.dtype,
        gpu_memory=inference.gpu_memory,
        tensor_parallel=inference.tensor_parallel,
    )
