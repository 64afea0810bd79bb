"""UnstableBaselines' ``vllm_config`` and ``lora_config``, and the settings of its learner."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from selfplay.cluster.engines.settings import ALL_LINEAR, EngineSettings, say_nothing
from selfplay.cluster.services.batches import Demand
from selfplay.core import InputError

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo
    from selfplay.learning.learner import Learner

VLLM_CONFIG_KEYS = {
    "model_name": "model",
    "max_tokens": "max_tokens",
    "max_loras": "max_adapters",
    "max_parallel_seq": "max_batch",
    "max_model_len": "max_context",
    "temperature": "temperature",
    "engine": "engine",
    "dtype": "dtype",
    "threads": "threads",
    "gpu_memory": "gpu_memory",
}
"""selfplay's names for the keys of UnstableBaselines' ``vllm_config``."""


def from_vllm_config(config: dict[str, Any]) -> EngineSettings:
    """Return the settings of a ``vllm_config`` with UnstableBaselines' keys.

    Without the key ``engine`` the engine is vLLM where that is installed, and the embedded engine elsewhere.

    Raises:
        InputError: a key is unknown or missing, or sampling would differ from what the learner assumes.
    """
    given = dict(config)
    lora = dict(given.pop("lora_config", {}))
    if given.pop("top_p", 1.0) != 1.0:
        raise InputError(
            "vllm_config.top_p",
            "must be 1: the learner needs the log-probabilities of all tokens",
            "Leave it out",
        )
    unknown = sorted(set(given) - set(VLLM_CONFIG_KEYS))
    if unknown or "model_name" not in given:
        problem = f"there is no {unknown[0]!r}" if unknown else "model_name is missing"
        raise InputError("vllm_config", problem, f"It has {', '.join(VLLM_CONFIG_KEYS)} and lora_config")
    settings = {VLLM_CONFIG_KEYS[key]: value for key, value in given.items()}
    settings.setdefault("engine", "vllm" if find_spec("vllm") is not None else "embedded")
    return EngineSettings(**settings, **lora_shape(lora))


def lora_shape(lora: dict[str, Any]) -> dict[str, Any]:
    """Return rank, alpha and target modules of a ``lora_config`` with UnstableBaselines' keys.

    Raises:
        InputError: the configuration has dropout, which the learner does not support, or an unknown key.
    """
    known = {"lora_rank", "lora_alpha", "lora_dropout", "target_modules"}
    unknown = sorted(set(lora) - known)
    if unknown:
        raise InputError("lora_config", f"there is no {unknown[0]!r}", f"It has {', '.join(sorted(known))}")
    if lora.get("lora_dropout", 0.0) != 0:
        raise InputError(
            "lora_config.lora_dropout", "must be 0: in a prefix tree samples share tokens", "Leave it out"
        )
    return {
        "lora_rank": int(lora.get("lora_rank", 32)),
        "lora_alpha": float(lora.get("lora_alpha", 32)),
        "target_modules": tuple(lora.get("target_modules", ALL_LINEAR)),
    }


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of UnstableBaselines' ``StandardLearner``."""

    model: str
    algorithm: "BaseAlgo"
    max_generation_len: int
    learning_rate: float
    grad_clip: float
    lora_rank: int
    lora_alpha: float
    target_modules: tuple[str, ...]
    max_train_len: int | None
    max_batch_tokens: int
    temperature: float
    seed: int
    demand: Demand
    initial_lora_path: str | None
    num_learners: int
    ckpt_root: str
    save_every: int


def build_learners(settings: LearnerSettings) -> "dict[str, Learner]":
    """Build UnstableBaselines' learner, by policy: a constant rate, no regulariser, no average."""
    from selfplay.config.settings import ModelSettings
    from selfplay.learning.learner import Learner, Schedule
    from selfplay.learning.policy import TRAINED, LoraSettings
    from selfplay.training.assembly import build_policy

    lora = LoraSettings(settings.lora_rank, settings.lora_alpha, list(settings.target_modules))
    policy = build_policy(ModelSettings(name=settings.model), lora, settings.seed, say_nothing)
    settings.algorithm.initialize(
        policy,
        max_generation_len=settings.max_generation_len,
        max_train_len=settings.max_train_len,
        max_batch_tokens=settings.max_batch_tokens,
        temperature=settings.temperature,
    )
    rate = settings.learning_rate
    learner = Learner(
        policy,
        settings.algorithm,
        learning_rate=Schedule(rate, rate, 1),
        regulariser_weight=Schedule(0.0, 0.0, 1),
        grad_clip=settings.grad_clip,
    )
    return {TRAINED: learner}
