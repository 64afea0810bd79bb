"""UnstableBaselines' ``vllm_config`` and ``lora_config``, as sections of the configuration."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from sparring.cluster.engines.host import EngineSettings
from sparring.config.base import Settings
from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.config.problems import read_settings
from sparring.core import InputError

VLLM_CONFIG_KEYS = {
    "model_name": "model.name",
    "max_tokens": "inference.max_tokens",
    "max_loras": "inference.max_adapters",
    "max_parallel_seq": "inference.max_batch",
    "max_model_len": "inference.max_context",
    "temperature": "inference.temperature",
    "engine": "inference.engine",
    "dtype": "model.dtype",
    "threads": "model.threads",
    "gpu_memory": "inference.gpu_memory",
}
"""sparring's names for the keys of UnstableBaselines' ``vllm_config``."""
LORA_CONFIG_KEYS = {
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "target_modules": "lora.target_modules",
}
"""sparring's names for the keys of its ``lora_config``."""
VLLM_CONFIG = {"max_tokens": 64}
LORA_CONFIG = {"lora_rank": 32, "lora_alpha": 32}
"""Defaults that differ from those of sparring's sections."""


class _Sections(Settings):
    model: ModelSettings = ModelSettings()
    lora: LoraSection = LoraSection()
    inference: InferenceSettings = InferenceSettings()


def from_vllm_config(config: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of a ``vllm_config`` with UnstableBaselines' keys.

    Without the key ``engine`` the engine is vLLM where that is installed, and the embedded engine elsewhere.

    Raises:
        InputError: a key is unknown, missing or wrong, or sampling would differ from what the learner
            assumes.
    """
    given = {**VLLM_CONFIG, "engine": "vllm" if find_spec("vllm") is not None else "embedded", **config}
    lora = from_lora_config(given.pop("lora_config", {}))
    if given.pop("top_p", 1.0) != 1.0:
        raise InputError(
            "vllm_config.top_p",
            "must be 1: the learner needs the log-probabilities of all tokens",
            "Leave it out",
        )
    if "model_name" not in given:
        raise InputError(
            "vllm_config", "model_name is missing", f"It has {', '.join(VLLM_CONFIG_KEYS)} and lora_config"
        )
    sections = _sections("vllm_config", given, VLLM_CONFIG_KEYS)
    return EngineSettings(sections.model, lora, sections.inference)


def from_lora_config(config: Mapping[str, Any]) -> LoraSection:
    """Return the adapter of a ``lora_config`` with UnstableBaselines' keys.

    Raises:
        InputError: a key is unknown or wrong, or there is dropout, which the learner does not support.
    """
    return _sections("lora_config", {**LORA_CONFIG, **config}, LORA_CONFIG_KEYS).lora


def _sections(field: str, given: Mapping[str, Any], keys: Mapping[str, str]) -> _Sections:
    """Return the sections that UnstableBaselines' keys describe; errors name the keys."""
    unknown = sorted(set(given) - set(keys))
    if unknown:
        raise InputError(field, f"there is no {unknown[0]!r}", f"It has {', '.join(keys)}")
    data: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        section, _, name = keys[key].partition(".")
        data.setdefault(section, {})[name] = list(value) if isinstance(value, tuple) else value
    try:
        return read_settings(_Sections, data)
    except InputError as error:
        key = next(key for key, name in keys.items() if error.field.startswith(name))
        raise InputError(f"{field}.{key}", error.problem, error.fix) from error
