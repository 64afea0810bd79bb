"""The inference actors of a run, as its configuration describes them, and how the cores are shared."""

import os
from typing import Any

from selfplay.config.settings import Config
from selfplay.runtime.ray.actors import EngineForm
from selfplay.runtime.ray.engine_settings import EngineSettings
from selfplay.runtime.ray.places import Places


def start_engines(config: Config, place: Places, tracker: Any) -> list[Any]:
    """The inference actors of a run, by number; the tracker may be ``None``."""
    settings = config.ray
    return [
        EngineForm.options(
            name=f"Engine-{number}",
            num_cpus=settings.cpus_per_engine,
            num_gpus=settings.gpus_per_engine,
            max_restarts=settings.max_restarts,
            **place.engine(number),
        ).remote(engine_settings(config), f"Engine-{number}", tracker)
        for number in range(settings.engines)
    ]


def calls_of_each_client(config: Config) -> int:
    """Most calls that a collector, or the evaluation, may have under way: engines refuse what is more."""
    return max(1, config.inference.max_queue // (config.ray.collectors + 1))


def engine_settings(config: Config) -> EngineSettings:
    """What the inference actors of a run hold."""
    inference, model, lora = config.inference, config.model, config.lora
    return EngineSettings(
        model=model.name,
        engine=inference.engine,
        dtype=model.dtype,
        device=model.device,
        threads=threads_of_each(config),
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


def threads_of_each(config: Config) -> int:
    """CPU threads of an engine or learner: all cores where they take turns, else a share.

    Threads that have no core of their own cost more than they give.
    """
    if config.model.threads is not None:
        return config.model.threads
    cores, settings = os.cpu_count() or 1, config.ray
    busy = max(settings.engines, settings.learners)
    if config.collection.max_staleness:
        busy = settings.engines + settings.learners
    return max(1, cores // busy)


def with_threads(config: Config) -> Config:
    """The configuration that a learner gets: with the number of its threads."""
    model = config.model.model_copy(update={"threads": threads_of_each(config)})
    return config.model_copy(update={"model": model})
