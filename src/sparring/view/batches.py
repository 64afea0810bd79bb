"""What the batch logs of a run add to its rollouts: a step's reward at each stage, and its advantage."""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sparring.collection.rollout_log import BatchLine
from sparring.core import Rollout
from sparring.view.files import decoded, number_of

Key = tuple[str, str, int]
"""A rollout, a role, and the place of a step among those of the role."""


class BatchRewards:
    """The rewards in the batches near an update; each file is read once while updates ascend.

    Args:
        run_dir: the run. Damaged batches and lines are left out.
        reach: how far from its own update a step may be drawn. Batches are numbered from 1, so in lockstep a
            step is in the batch of the same number or in a neighbouring one.
    """

    def __init__(self, run_dir: Path, reach: int = 1) -> None:
        self._logs = {number_of(path): path for path in run_dir.glob("batches/batch-*.jsonl.gz")}
        self._reach = reach
        self._read: dict[int, dict[Key, dict[str, float]]] = {}

    def add_to(self, update: int, rollouts: Iterable[Rollout]) -> None:
        """Set ``info["reward_stages"]`` and the advantage of the steps that were drawn."""
        near = range(update - self._reach, update + self._reach + 1)
        self._read = {
            number: self._read[number] if number in self._read else _rewards_in(self._logs[number])
            for number in near
            if number in self._logs
        }
        for rollout in rollouts:
            taken = Counter[str]()
            for step in rollout.steps:
                key = (rollout.id, step.role_id, taken[step.role_id])
                taken[step.role_id] += bool(step.policy)
                for rewards in self._read.values():
                    if step.policy and key in rewards:
                        step.info["reward_stages"] = stages = dict(rewards[key])
                        step.advantage = stages.pop("sampled", step.advantage)


def _rewards_in(path: Path) -> dict[Key, dict[str, float]]:
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error):  # it is truncated
        return {}
    found = (entry for line in lines if (entry := decoded(line, BatchLine)) is not None)
    return {(entry.rollout_id, entry.role_id, entry.step_index): entry.rewards for entry in found}
