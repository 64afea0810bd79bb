"""The learners that a learner actor runs: how they are built there, and in its workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from selfplay.cluster.engines.settings import say_nothing
from selfplay.cluster.node_cores import Sharing, cores_here
from selfplay.config import Config

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo
    from selfplay.learning.learner import Learner


@dataclass(frozen=True)
class UnstableLearnerSettings:
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
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: int | None = None
    seed: int = 0


def learners_from_config(config: Config, policies: Sequence[str] = ("default",)) -> "dict[str, Learner]":
    """Build the learners that a configuration describes, by policy; they share one model.

    If it does not give the number of threads, they compute on their share of their node.
    """
    from selfplay.learning.policy import LoraSettings
    from selfplay.training.assembly import build_learner, build_policy

    lora = LoraSettings(config.lora.rank, float(config.lora.alpha), list(config.lora.target_modules))
    threads = config.model.threads or cores_here(Sharing.of(config))
    settings = config.model.model_copy(update={"threads": threads})
    model = build_policy(settings, lora, config.seed, say_nothing, policies)
    return {policy: build_learner(config.learning, config, model, policy) for policy in policies}


def learners_from_unstable_settings(settings: UnstableLearnerSettings) -> "dict[str, Learner]":
    """Build UnstableBaselines' learner, by policy: a constant rate, no regulariser, no average."""
    from selfplay.config.model import ModelSettings
    from selfplay.learning.learner import Learner, Schedule
    from selfplay.learning.policy import TRAINED, LoraSettings
    from selfplay.training.assembly import build_policy

    model = ModelSettings(
        name=settings.model, dtype=settings.dtype, device=settings.device, threads=settings.threads
    )
    lora = LoraSettings(settings.lora_rank, settings.lora_alpha, list(settings.target_modules))
    policy = build_policy(model, lora, settings.seed, say_nothing)
    settings.algorithm.initialize(
        policy,
        max_generation_len=settings.max_generation_len,
        max_train_len=settings.max_train_len,
        max_batch_tokens=settings.max_batch_tokens,
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
