"""What the batch logs of a run add to its rollouts: a step's reward at each stage, and its advantage."""

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from sparring.collection.rollout_log import AdvantageLine, BatchLine
from sparring.core import Rollout, Step
from sparring.view.files import decoded, number_of

Line = TypeVar("Line", BatchLine, AdvantageLine)
Key = tuple[str, str, int]
"""A rollout, a role, and the place of a step among those of the role."""


class BatchRewards:
    """The rewards in the batches near an update; each file is read once while updates ascend.

    Args:
        run_dir: the run. Damaged batches and lines are left out.
        has_buffer: whether the run's steps go through a buffer, which makes their advantages when it draws.
        has_critic: whether a policy has a critic, which makes its advantages when it learns; they have a file
            of their own.
        max_staleness: the run's; the older a step may be when it is drawn, the further is its batch. Batches
            are numbered from 1, so in lockstep a step is in the batch of the same number or in a neighbouring
            one.
    """

    def __init__(
        self, run_dir: Path, *, has_buffer: bool, has_critic: Callable[[str], bool], max_staleness: int = 0
    ) -> None:
        self._has_buffer, self._has_critic = has_buffer, has_critic
        self._logs = {number_of(path): path for path in run_dir.glob("batches/batch-*.jsonl.gz")}
        self._reach = 1 + max_staleness
        self._judged = {number_of(path): path for path in run_dir.glob("batches/advantages-*.jsonl.gz")}
        self._read: dict[int, dict[Key, dict[str, float]]] = {}
        self._learned: dict[int, dict[Key, float]] = {}

    def add_to(self, update: int, rollouts: Iterable[Rollout]) -> None:
        """Set ``info["reward_stages"]`` and the advantage of the steps that were drawn.

        The advantage of a step is NaN if none is known: if nobody learns from the step, or it was not drawn.
        """
        near = range(update - self._reach, update + self._reach + 1)
        self._read = {
            number: self._read[number] if number in self._read else _rewards_in(self._logs[number])
            for number in near
            if number in self._logs
        }
        self._learned = {
            number: self._learned[number] if number in self._learned else _advantages_in(self._judged[number])
            for number in near
            if number in self._judged
        }
        for rollout in rollouts:
            taken = Counter[str]()
            for step in rollout.steps:
                if step.policy:
                    self._add_to_step(step, (rollout.id, step.role_id, taken[step.role_id]))
                    taken[step.role_id] += 1
                else:
                    step.advantage = math.nan

    def _add_to_step(self, step: Step, key: Key) -> None:
        drawn = next((rewards[key] for rewards in self._read.values() if key in rewards), None)
        if drawn is not None:
            step.info["reward_stages"] = stages = dict(drawn)
            step.advantage = stages.pop("sampled", step.advantage)
        if self._has_critic(step.policy):
            learned = (judged[key] for judged in self._learned.values() if key in judged)
            step.advantage = next(learned, math.nan)
        elif self._has_buffer and drawn is None:
            step.advantage = math.nan


def _rewards_in(path: Path) -> dict[Key, dict[str, float]]:
    found = _lines_in(path, BatchLine)
    return {(entry.rollout_id, entry.role_id, entry.step_index): entry.rewards for entry in found}


def _advantages_in(path: Path) -> dict[Key, float]:
    found = _lines_in(path, AdvantageLine)
    return {(entry.rollout_id, entry.role_id, entry.step_index): entry.advantage for entry in found}


def _lines_in(path: Path, kind: type[Line]) -> Iterator[Line]:
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error):  # it is truncated
        return iter(())
    return (entry for line in lines if (entry := decoded(line, kind)) is not None)
