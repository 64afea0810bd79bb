"""Start the inference actors of a run."""

from typing import Any

from selfplay.cluster.actors import EngineForm
from selfplay.cluster.engines.settings import EngineSettings
from selfplay.cluster.node_cores import Sharing
from selfplay.cluster.placement import Placement
from selfplay.config.settings import Config


def engine_names(config: Config) -> list[str]:
    """Return the names of a run's inference actors, by number."""
    return [f"Engine-{number}" for number in range(config.ray.engines)]


def start_engines(config: Config, placement: Placement, tracker: Any) -> list[Any]:
    """Start the inference actors of a run; return them by number. The tracker may be ``None``."""
    settings = config.ray
    return [
        EngineForm.options(
            name=name,
            num_cpus=settings.cpus_per_engine,
            num_gpus=settings.gpus_per_engine,
            max_restarts=settings.max_restarts,
            **placement.engine(number),
        ).remote(engine_settings(config), name, tracker)
        for number, name in enumerate(engine_names(config))
    ]


def calls_per_engine(config: Config) -> int:
    """Return how many calls a collector, or the evaluation, may have at one engine, which rejects more."""
    return max(1, config.inference.max_queue // (config.ray.collectors + 1))


def calls_of_each_client(config: Config) -> int:
    """Return how many calls a collector, or the evaluation, may have in progress at all engines."""
    return config.ray.engines * calls_per_engine(config)


def engine_settings(config: Config) -> EngineSettings:
    """Return the settings of a run's inference actors."""
    inference, model, lora = config.inference, config.model, config.lora
    return EngineSettings(
        model=model.name,
        engine=inference.engine,
        dtype=model.dtype,
        device=model.device,
        threads=model.threads,
        sharing=Sharing.of(config),
        lora_rank=lora.rank,
        lora_alpha=float(lora.alpha),
        target_modules=tuple(lora.target_modules),
        temperature=inference.temperature,
        max_tokens=inference.max_tokens,
        max_context=inference.max_context,
        max_queue=inference.max_queue,
        max_cached_tokens=inference.max_cached_tokens,
        max_adapters=inference.max_adapters,
        max_batch=inference.max_batch,
        gpu_memory=inference.gpu_memory,
    )
