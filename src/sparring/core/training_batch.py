"""The account of an arena's step, and the check of its training batch."""

import math
from collections import Counter, defaultdict
from typing import Any

from sparring.core.errors import SparringError
from sparring.core.records import records_of
from sparring.core.types import GenerateResult, Step, TrainingBatch


def summary_of(results: list[GenerateResult], step_num: int) -> dict[str, Any]:
    """Return the counts and means of a step; see TrainingBatch."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    steps = _steps(results)
    means: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for role_id, reward in rollout.rewards.items():
            means[f"reward/{role_id}"].append(reward)
        for name, value in rollout.metrics.items():
            means[f"metric/{rollout.episode_type}/{name}"].append(value)
    return {
        "step": step_num,
        "policy_version": max((step.policy_version for step in steps), default=0),
        "episodes": len(rollouts),
        "failed": sum(rollout.error is not None for rollout in rollouts),
        "last_error": next((rollout.error for rollout in reversed(rollouts) if rollout.error), None),
        "retried": sum(rollout.meta.get("retried", 0) for rollout in rollouts),
        "steps": len(steps),
        "text_only_steps": sum(step.text_only for step in steps if step.policy),
        "broken_prefixes": sum(step.info.get("prefix_kept") is False for step in steps if step.policy),
        **{name: math.fsum(values) / len(values) for name, values in sorted(means.items())},
    }


def rewarded_without_step(results: list[GenerateResult]) -> Counter[str]:
    """Return the roles that are rewarded but acted in no rollout, each with the number of such rewards."""
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    acted = {step.role_id for rollout in rollouts for step in rollout.steps}
    return Counter(role for rollout in rollouts for role in rollout.rewards if role not in acted)


def why_empty(results: list[GenerateResult]) -> str:
    """Return why the results give no record."""
    meta, kept = summary_of(results, 0), _steps(results)
    if not results:
        return "get_batch returned no request"
    if meta["failed"] == meta["episodes"]:
        return f"every episode failed; the last: {meta['last_error']}"
    if not any(result.trainable_rollouts() for result in results):
        return "no request is trainable"
    if not kept:
        return "no episode appended response.to_step(role_id, messages) to state.trajectory"
    if not any(step.policy for step in kept):
        return "no step is of a policy that is trained"
    return "the client returned no token ids with log-probabilities"


def check_batch(results: list[GenerateResult], batch: TrainingBatch) -> None:
    """Check that the batch has exactly the records that follow from the results.

    Raises:
        SparringError: it does not.
    """
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    if len({rollout.id for rollout in rollouts}) < len(rollouts):
        raise SparringError("several rollouts have the same id, so their advantages are mixed up")
    expected = records_of(results)
    if len(expected) != len(batch.records):
        raise SparringError(
            f"{len(expected)} records follow from the steps, but the batch has {len(batch.records)}"
        )
    for wanted, record in zip(expected, batch.records, strict=True):
        if record != wanted:
            where = f"the record of role {record.role_id} in rollout {record.rollout_id}"
            raise SparringError(
                f"{where} differs from the step that was played by {wanted.role_id} in {wanted.rollout_id}"
            )


def _steps(results: list[GenerateResult]) -> list[Step]:
    rollouts = (rollout for result in results for rollout in result.trainable_rollouts())
    return [step for rollout in rollouts for step in rollout.steps]
