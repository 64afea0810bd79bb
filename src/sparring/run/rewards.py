"""The way from rewards to advantages that a configuration describes: credit, or a buffer with transforms."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sparring.collection import transforms
from sparring.collection.buffers import BaseBuffer, EpisodeBuffer, MetricLogger, StepBuffer
from sparring.collection.rollout_log import BatchLog
from sparring.config import Config
from sparring.config.play import EnvSettings
from sparring.config.rewards import (
    CreditSettings,
    FinalReward,
    GameRange,
    PythonTransform,
    SamplingReward,
    StepReward,
    WinDrawLoss,
)
from sparring.core import CreditAssigner, EpisodicRewardCredit, RAECredit, SPOCredit, derive_seed
from sparring.core.credit import assigners
from sparring.core.own_code import build_own, own_class
from sparring.envs.catalog import reward_scale

Composed = tuple[
    transforms.ComposeFinalRewardTransforms | None,
    transforms.ComposeStepRewardTransforms | None,
    transforms.ComposeSamplingRewardTransforms | None,
]

CREDIT: dict[str, tuple[type[CreditAssigner], tuple[str, ...]]] = {
    "grpo": (assigners.GRPOCredit, ("normalize", "positive_only", "group")),
    "rloo": (assigners.RLOOCredit, ("group",)),
    "reinforce_pp": (assigners.ReinforcePPCredit, ("by_role",)),
    "reinforce_pp_baseline": (assigners.ReinforcePPBaselineCredit, ("group",)),
    "rae": (RAECredit, ("decay",)),
    "spo": (SPOCredit, ("half_life",)),
    "episodic": (EpisodicRewardCredit, ()),
}
"""The credit assigners by their ``type``, each with the settings that are its arguments."""

TRANSFORMS: dict[str, type[transforms.RewardTransform]] = {
    "role_advantage": transforms.RoleAdvantageFormatter,
    "role_advantage_by_env": transforms.RoleAdvantageByEnvFormatter,
    "reward_for_format": transforms.RewardForFormat,
    "reward_for_reasoning": transforms.RewardForReasoning,
    "penalty_for_invalid_move": transforms.PenaltyForInvalidMove,
    "same_prompt_baseline": transforms.SamePromptBaseline,
    "normalize_rewards": transforms.NormalizeRewards,
    "normalize_rewards_by_env": transforms.NormalizeRewardsByEnv,
    "normalize_rewards_by_role": transforms.NormalizeRewardsByRole,
    "normalize_rewards_by_turn": transforms.NormalizeRewardsByTurn,
}
"""The transforms whose arguments are their settings, by their ``type``."""


FAMILIES = {
    "final": transforms.FinalRewardTransform,
    "step": transforms.StepRewardTransform,
    "sampling": transforms.SamplingRewardTransform,
}


def build_credit(settings: CreditSettings) -> CreditAssigner:
    """Build the credit assigner that the configuration describes."""
    if settings.path is not None:
        own: type[CreditAssigner] = own_class(settings.path, CreditAssigner, "credit.path")
        return build_own(own, "credit", settings.options)
    kind, arguments = CREDIT[settings.type]
    return kind(**{name: getattr(settings, name) for name in arguments})


def build_buffer(config: Config, tracker: MetricLogger | None, batch_log: BatchLog | None) -> BaseBuffer:
    """Build the replay buffer with its reward transforms."""
    kind = StepBuffer if config.buffer.type == "step" else EpisodeBuffer
    return kind(
        config.buffer.max_size,
        tracker,
        *composed_transforms(config),
        seed=derive_seed(config.seed, "buffer"),
        batch_log=batch_log,
        critics=config.learning.own_critics,
        discount=config.rewards.discount,
    )


def checks_of_rewards(config: Config) -> Iterator[Callable[[], object]]:
    """Yield what raises an InputError if a transform of yours, or the credit assigner, cannot be built."""
    for name, family in FAMILIES.items():
        for place, one in enumerate(getattr(config.rewards, name)):
            if isinstance(one, PythonTransform):
                yield partial(_built_one, one, family, f"rewards.{name}.{place}", config.envs)
    if config.credit is not None:
        yield partial(build_credit, config.credit)


def composed_transforms(config: Config) -> Composed:
    """Return the stacks of the three families of transforms; ``None`` for an empty one.

    A credit assigner or a critic of all policies takes the place of the sampling transforms.
    """
    final, step, sampling = (_built(config, name) for name in FAMILIES)
    if config.credit is not None:
        sampling = [transforms.CreditTransform(build_credit(config.credit))]
    if config.learning.critic is not None:
        sampling = []
    return (
        transforms.ComposeFinalRewardTransforms(final) if final else None,
        transforms.ComposeStepRewardTransforms(step) if step else None,
        transforms.ComposeSamplingRewardTransforms(sampling) if sampling else None,
    )


def _built(config: Config, name: str) -> list[Any]:
    settings, family = getattr(config.rewards, name), FAMILIES[name]
    return [
        _built_one(one, family, f"rewards.{name}.{place}", config.envs) for place, one in enumerate(settings)
    ]


def _built_one(
    one: FinalReward | StepReward | SamplingReward, family: type, table: str, envs: list[EnvSettings]
) -> Any:
    if isinstance(one, PythonTransform):
        return build_own(own_class(one.path, family, f"{table}.path"), table, one.options)
    if isinstance(one, GameRange):
        return transforms.DivideByGameRange({env.name: reward_scale(env.id) for env in envs})
    if isinstance(one, WinDrawLoss):
        return transforms.WinDrawLossFormatter(one.win, one.draw, one.loss)
    return TRANSFORMS[one.type](**one.model_dump(exclude={"type"}))
