"""Which engine an inference actor holds."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sparring.cluster.elsewhere import NodeCopies
from sparring.cluster.placement import Sharing, cores_here
from sparring.config import Config
from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.engine.hosts import EmbeddedHost, EngineHost, VLLMHost

if TYPE_CHECKING:  # torch is imported by the process that starts an engine, not by its clients
    from sparring.engine.vllm_engine import VLLMEngine
    from sparring.learn.policy import PolicyModel


@dataclass(frozen=True)
class EngineSettings:
    """An engine, as sections of the configuration describe it.

    Without ``model.threads``, an embedded engine that knows its ``sharing`` computes on its share of its
    node. ``lora`` is the shape of a run's adapters, ``None`` if they have any shape.
    """

    model: ModelSettings
    lora: LoraSection | None
    inference: InferenceSettings
    sharing: Sharing | None = None

    @classmethod
    def of(cls, config: Config) -> "EngineSettings":
        """Return the settings of a run's inference actors."""
        return cls(config.model, config.lora, config.inference, Sharing.of(config))

    def build_host(self, files: Any = None) -> EngineHost[Any]:
        """Build the engine, not started.

        ``files`` is the handle of :class:`CommandFiles` if this node does not see the command's files.
        """
        from sparring.run.assembly import build_engine

        copies = None if files is None else NodeCopies(files, self.model.name)
        if self.inference.engine == "vllm":
            return VLLMHost(partial(_vllm, self, copies), copies)
        return EmbeddedHost(
            partial(_policy_model, self, copies),
            partial(build_engine, self.inference),
            self.inference.max_adapters,
            of_a_run=self.lora is not None,
            copies=copies,
        )


def say_nothing(line: str) -> None:
    """Discard messages about a model that is downloaded or converted: an actor has no terminal."""


def _vllm(settings: EngineSettings, copies: NodeCopies | None) -> "VLLMEngine":
    from sparring.run.assembly import build_vllm

    lora = settings.lora or LoraSection()
    return build_vllm(_model_here(settings, copies), lora, settings.inference, say_nothing)


def _model_here(settings: EngineSettings, copies: NodeCopies | None) -> ModelSettings:
    name = settings.model.name if copies is None else copies.model
    return settings.model.model_copy(update={"name": name})


def _policy_model(settings: EngineSettings, copies: NodeCopies | None) -> "PolicyModel":
    from sparring.run.assembly import build_policy

    threads = settings.model.threads
    if threads is None and settings.sharing is not None:
        threads = cores_here(settings.sharing)
    model = _model_here(settings, copies).model_copy(update={"threads": threads})
    return build_policy(model, settings.lora or LoraSection(rank=1), 0, say_nothing)
