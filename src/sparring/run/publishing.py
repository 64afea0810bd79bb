"""Load a model in this process, and publish adapters on it under names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.core.adapters import BASE
from sparring.run.assembly import build_engine, build_policy

if TYPE_CHECKING:
    from sparring.engine.published_adapters import PublishedAdapters


def publish_models(
    model: ModelSettings,
    adapters: Mapping[str, Path],
    inference: InferenceSettings,
    *,
    base: str = BASE,
    versions: Mapping[str, int] | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> "PublishedAdapters":
    """Return an engine that answers with adapters by their names, and with the base model.

    Args:
        model: the base model.
        adapters: directories in PEFT's format by the name that each is served under.
        inference: the engine.
        base: the name of the base model.
        versions: the version that an adapter's answers carry, by name; by default they are numbered.
        seed: root of all randomness.
        say: prints a line.

    Raises:
        InputError: the model cannot be loaded, or an adapter belongs to another.
        DeliveryError: an adapter is not the one that its learner wrote.
    """
    from sparring.engine.published_adapters import PublishedAdapters

    policy = build_policy(model, LoraSection(rank=1), seed, say)
    published = PublishedAdapters(build_engine(inference, policy))
    for name, directory in adapters.items():
        published.publish(name, directory, (versions or {}).get(name))
    published.engine.publish(base, BASE, 0)
    return published
