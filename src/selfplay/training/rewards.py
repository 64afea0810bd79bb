"""The way from rewards to advantages that a configuration describes: credit, or a buffer with transforms."""

from typing import Any

from selfplay.config import Config
from selfplay.config.play import EnvSettings
from selfplay.config.rewards import CreditSettings, PythonTransform, RewardSettings
from selfplay.core import (
    CreditAssigner,
    EpisodicRewardCredit,
    GRPOCredit,
    RAECredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
    SPOCredit,
    Step,
    derive_seed,
)
from selfplay.core.own_classes import build_own, own_class
from selfplay.envs.catalog import reward_scale
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.buffers import BaseBuffer, EpisodeBuffer, MetricLogger, StepBuffer
from selfplay.replay.credit_transform import CreditTransform
from selfplay.replay.transforms_final import (
    ComposeFinalRewardTransforms,
    DivideByGameRange,
    FinalRewardTransform,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    WinDrawLossFormatter,
)
from selfplay.replay.transforms_sampling import (
    BesideCritics,
    ComposeSamplingRewardTransforms,
    NormalizeRewards,
    NormalizeRewardsByEnv,
    SamePromptBaseline,
    SamplingRewardTransform,
)
from selfplay.replay.transforms_step import (
    ComposeStepRewardTransforms,
    PenaltyForInvalidMove,
    RewardForFormat,
    StepRewardTransform,
)


def build_credit(settings: CreditSettings) -> CreditAssigner:
    """Build the credit assigner that the configuration describes.

    Raises:
        InputError: one of the user's own cannot be built.
    """
    if settings.path is not None:
        own: type[CreditAssigner] = own_class(settings.path, CreditAssigner, "credit.path")
        return build_own(own, "credit", settings.options)
    if settings.type == "grpo":
        return GRPOCredit(settings.normalize, settings.positive_only, settings.group)
    if settings.type == "rloo":
        return RLOOCredit(settings.group)
    if settings.type == "reinforce_pp":
        return ReinforcePPCredit()
    if settings.type == "reinforce_pp_baseline":
        return ReinforcePPBaselineCredit(settings.group)
    if settings.type == "rae":
        return RAECredit(settings.decay)
    if settings.type == "spo":
        return SPOCredit(settings.half_life)
    return EpisodicRewardCredit()


def build_buffer(config: Config, tracker: MetricLogger | None, batch_log: BatchLog | None) -> BaseBuffer:
    """Build the replay buffer with its reward transforms."""
    kind = StepBuffer if config.buffer.type == "step" else EpisodeBuffer
    return kind(
        config.buffer.max_size,
        tracker,
        *composed_transforms(config),
        seed=derive_seed(config.seed, "buffer"),
        batch_log=batch_log,
    )


def composed_transforms(
    config: Config,
) -> tuple[
    ComposeFinalRewardTransforms | None,
    ComposeStepRewardTransforms | None,
    ComposeSamplingRewardTransforms | None,
]:
    """Return the stacks of the three families of transforms; ``None`` for an empty one.

    A configured credit assigner takes the place of the sampling transforms. A critic needs the rewards as
    they are, so these leave out the policies that have one.
    """
    final, step, sampling = reward_transforms(config.rewards, config.envs)
    critics = config.learning.own_critics
    if config.credit is not None:
        sampling = [CreditTransform(build_credit(config.credit))]
    if config.learning.critic is not None:
        sampling = []
    elif critics and sampling:
        sampling = [BesideCritics(ComposeSamplingRewardTransforms(sampling), critics)]
    return (
        ComposeFinalRewardTransforms(final) if final else None,
        ComposeStepRewardTransforms(step) if step else None,
        ComposeSamplingRewardTransforms(sampling) if sampling else None,
    )


def reward_transforms(
    rewards: RewardSettings, envs: list[EnvSettings]
) -> tuple[list[FinalRewardTransform], list[StepRewardTransform], list[SamplingRewardTransform]]:
    """Return the transforms of the three families, in order; ``envs`` are those of the games."""
    final: list[FinalRewardTransform] = []
    for place, one in enumerate(rewards.final):
        if isinstance(one, PythonTransform):
            final.append(_own_transform(one, FinalRewardTransform, f"rewards.final.{place}"))
        elif one.type == "win_draw_loss":
            final.append(WinDrawLossFormatter(one.win, one.draw, one.loss))
        elif one.type == "game_range":
            final.append(DivideByGameRange({env.name: reward_scale(env.id) for env in envs}))
        elif one.type == "role_advantage":
            final.append(RoleAdvantageFormatter(tau=one.tau))
        else:
            final.append(RoleAdvantageByEnvFormatter(tau=one.tau))
    step: list[StepRewardTransform] = []
    for place, each in enumerate(rewards.step):
        if isinstance(each, PythonTransform):
            step.append(_own_transform(each, StepRewardTransform, f"rewards.step.{place}"))
        elif each.type == "reward_for_format":
            step.append(RewardForFormat(each.reward, each.penalty))
        else:
            step.append(PenaltyForInvalidMove(each.reward, each.penalty))
    sampling: list[SamplingRewardTransform] = []
    for place, sampled in enumerate(rewards.sampling):
        if isinstance(sampled, PythonTransform):
            sampling.append(_own_transform(sampled, SamplingRewardTransform, f"rewards.sampling.{place}"))
        elif sampled.type == "same_prompt_baseline":
            sampling.append(SamePromptBaseline())
        elif sampled.type == "normalize_rewards":
            sampling.append(NormalizeRewards(sampled.z_score))
        else:
            sampling.append(NormalizeRewardsByEnv(sampled.z_score))
    return final, step, sampling


def _own_transform(settings: PythonTransform, base: type, table: str) -> Any:
    """Build a transform of the user's own."""
    return build_own(own_class(settings.path, base, f"{table}.path"), table, settings.options)


def draw_batch(config: Config, buffer: BaseBuffer) -> list[Step]:
    """Draw the steps of an update: as many entries as configured, or else all that are stored."""
    stored = buffer.entries()
    batch = buffer.get_batch(min(config.buffer.batch_size or stored, stored))
    return [step for part in batch for step in (part if isinstance(part, list) else [part])]
