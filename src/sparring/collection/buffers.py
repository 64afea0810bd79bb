"""StepBuffer and EpisodeBuffer: they store trajectories, transform rewards and draw random batches.

Every removal swaps the chosen entry with the last one and pops it, so the cost of a draw or an eviction
depends on the number of removed entries, not on the number of stored ones.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Protocol

from sparring.collection.rollout_log import BatchLog, reward_stages
from sparring.collection.serialization import groups_of, plain_groups
from sparring.collection.transforms import (
    FinalRewardTransform,
    RewardTransform,
    SamplingRewardTransform,
    StepRewardTransform,
    return_from,
)
from sparring.core import InputError, SparringError, Step, Trajectory
from sparring.core.errors import shown
from sparring.core.own_code import own_code
from sparring.core.played import check_step, is_bounded
from sparring.core.seeds import random_state, set_random_state

GROUP = 16
"""Steps of a step buffer that are saved together."""


class MetricLogger(Protocol):
    """The part of a tracker that buffers use."""

    def log(self, name_value_dict: dict[str, float]) -> None:
        """Record values by metric name."""


@dataclass(eq=False, repr=False)
class BaseBuffer(ABC):
    """Common part of both buffers: ingestion, transforms, counters and checkpoint state.

    A stored step is a copy, of its step's own class, that has the trajectory's ``env_id`` and the ``reward``
    after the step transforms. ``info`` gets ``reward_stages`` (``final``: the game's reward,
    ``final_transformed``), ``rollout_id``, ``step_index``, the index in the trajectory, and ``place``, the
    number among the steps of all seats. A drawn step has its ``advantage`` from the sampling transforms, or
    else its reward.

    A forgiven invalid move (``info["invalid_rewards"]``) starts from the reward of a game that it had ended,
    if that is lower, because a later win does not make it a good move; ``final`` is the game's reward even
    then. One of several answers at a turn (``info["branch_rewards"]``) starts from the reward of the copy of
    the game in which it was followed, which is also its ``final``.

    Args:
        max_buffer_size: maximum number of stored steps.
        tracker: receives sizes and mean rewards with every batch; ``None`` disables this.
        final_reward_transformation: applied once per trajectory, to the rewards of all players.
        step_reward_transformation: applied to each step, given the transformed final reward.
        sampling_reward_transformation: applied to the steps of each batch when it is drawn.
        buffer_strategy: how entries of a full buffer are evicted; only ``random`` is supported.
        batch_log: writes every drawn batch; ``None`` disables this.
        critics: policies with a critic, which makes advantages of their rewards; the sampling transforms do
            not see their steps.
        discount: credits a step with the discounted return from then on; see
            :func:`~sparring.collection.transforms.return_from`. A forgiven invalid move has at most what it
            would have received by ending the game. ``None`` credits it with the whole game's reward.
    """

    max_buffer_size: int
    tracker: MetricLogger | None = None
    final_reward_transformation: FinalRewardTransform | None = None
    step_reward_transformation: StepRewardTransform | None = None
    sampling_reward_transformation: SamplingRewardTransform | None = None
    buffer_strategy: str = "random"
    _: KW_ONLY
    seed: InitVar[int] = 0
    batch_log: BatchLog | None = None
    critics: frozenset[str] = frozenset()
    discount: float | None = None

    def __post_init__(self, seed: int) -> None:
        if self.max_buffer_size < 1:
            problem = f"{self.max_buffer_size} is not positive"
            raise InputError("max_buffer_size", problem, "Give a number of steps.")
        if self.buffer_strategy != "random":
            problem = f"{self.buffer_strategy!r} is unknown"
            raise InputError("buffer_strategy", problem, "The only strategy is 'random'.")
        self.added = 0
        self.evicted = 0
        self.dropped_stale = 0
        self.sampled = 0
        self.cleared = 0
        self.batches = 0
        self._by_turns: dict[str, list[int]] = {}
        self._collecting = True
        self._rng = random.Random(seed)
        self._entries: list[list[Step]] = []
        self._size = 0

    @abstractmethod
    def get_batch(self, batch_size: int) -> list[Any]:
        """Draw ``batch_size`` random entries without replacement, remove them and set their advantages.

        Raises InputError if ``batch_size`` is not positive, and SparringError if fewer entries are stored or
        the sampling transforms misbehave.
        """

    @abstractmethod
    def stored_groups(self) -> list[list[Step]]:
        """Return the stored steps in groups, from which :meth:`load_state_dict` stores the same again."""

    @abstractmethod
    def _entries_of(self, steps: list[Step]) -> list[list[Step]]:
        """Return the entries in which the steps of a trajectory, or of a group, are stored and drawn."""

    def size(self) -> int:
        """Return the number of stored steps."""
        return self._size

    def entries(self) -> int:
        """Return the number of entries (steps or episodes) from which ``get_batch`` draws."""
        return len(self._entries)

    def add_player_trajectory(self, player_traj: Trajectory, env_id: str) -> None:
        """Add a player's trajectory, if it has steps; evict random entries while the buffer exceeds its size.

        Trajectories of games that were still in flight at ``stop()`` are accepted too. Raises SparringError
        if a transform returned a reward that is not a finite number; nothing is then stored.
        """
        if not player_traj.steps:
            return
        steps = self._transformed_steps(player_traj, env_id)
        self._insert(steps)
        self.added += len(steps)
        self._count_by_turns(steps, 0)
        while self._size > self.max_buffer_size:
            self.evicted += len(self._take_one())

    def draw(self, batch_size: int | None) -> list[Step]:
        """Draw ``batch_size`` entries, or all if fewer are stored or it is ``None``; return their steps."""
        stored = self.entries()
        batch = self.get_batch(min(batch_size or stored, stored)) if stored else []
        return [step for part in batch for step in (part if isinstance(part, list) else [part])]

    def drop_stale(
        self, current_version: int, max_staleness: int, versions: Mapping[str, int] | None = None
    ) -> int:
        """Remove steps played more than ``max_staleness`` policy versions ago; return how many.

        Later steps of an episode stay, but long games lose more steps than short ones, because more versions
        pass while they are played; batches report the share by game length. ``versions`` has the version of
        each policy that is not at ``current_version``.
        """
        known = versions or {}

        def is_stale(step: Step) -> bool:
            return step.policy_version < known.get(step.policy, current_version) - max_staleness

        dropped: list[Step] = []
        kept: list[list[Step]] = []
        for entry in self._entries:
            stale = [step for step in entry if is_stale(step)]
            fresh = [step for step in entry if not is_stale(step)] if stale else entry
            dropped += stale
            if fresh:
                kept.append(fresh)
        self._entries = kept
        self._size -= len(dropped)
        self.dropped_stale += len(dropped)
        self._count_by_turns(dropped, 1)
        return len(dropped)

    def stop(self) -> None:
        """Signal that collection should stop. Stored data stays."""
        self._collecting = False

    def continue_collection(self) -> bool:
        """Return whether collection should continue, which is true until ``stop()``."""
        return self._collecting

    def clear(self) -> None:
        """Remove all stored data. Counters, baselines and the generator keep their state."""
        self.cleared += self._size
        self._entries, self._size = [], 0

    def counts(self) -> dict[str, int]:
        """Return the counts of all steps: added = stored + evicted + dropped_stale + sampled + cleared."""
        return {
            "added": self.added,
            "stored": self._size,
            "evicted": self.evicted,
            "dropped_stale": self.dropped_stale,
            "sampled": self.sampled,
            "cleared": self.cleared,
        }

    def state_dict(self, *, with_steps: bool = True) -> dict[str, Any]:
        """Return everything that later batches depend on, as plain JSON-able data.

        Without steps, their ``groups`` must be added before the state is loaded. ``stop()`` is not part of
        the state.
        """
        return {
            "groups": plain_groups(self.stored_groups() if with_steps else []),
            "random": random_state(self._rng),
            "counts": {**self.counts(), "batches": self.batches},
            "by_turns": {turns: list(counts) for turns, counts in self._by_turns.items()},
            "transforms": {
                stage: transform.state_dict() if transform is not None else None
                for stage, transform in self._transforms().items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, replacing all stored data; ``info`` is as JSON returns it.

        Raises InputError if it was saved with other transforms, or has steps of a class that is not defined
        here.
        """
        for stage, transform in self._transforms().items():
            saved = state["transforms"][stage]
            if (saved is None) != (transform is None):
                raise InputError(
                    f"{stage}_reward_transformation",
                    f"the checkpoint was saved {'without' if saved is None else 'with'} one",
                    "Resume with the transforms with which the run was started.",
                )
            if transform is not None:
                transform.load_state_dict(saved)
        self._entries, self._size = [], 0
        for steps in groups_of(state["groups"]):
            self._insert(steps)
        set_random_state(self._rng, state["random"])
        counts = state["counts"]
        self.added, self.evicted = counts["added"], counts["evicted"]
        self.dropped_stale, self.sampled = counts["dropped_stale"], counts["sampled"]
        self.cleared, self.batches = counts["cleared"], counts["batches"]
        self._by_turns = {turns: list(counts) for turns, counts in state["by_turns"].items()}

    def _transforms(self) -> dict[str, RewardTransform | None]:
        return {
            "final": self.final_reward_transformation,
            "step": self.step_reward_transformation,
            "sampling": self.sampling_reward_transformation,
        }

    def _insert(self, steps: list[Step]) -> None:
        self._entries += self._entries_of(steps)
        self._size += len(steps)

    def _transformed_steps(self, trajectory: Trajectory, env_id: str) -> list[Step]:
        turns = trajectory.num_turns or len(trajectory.steps)
        of_single_steps = self._rewards_of_single_steps(trajectory, env_id)
        of_game = self._final_transformed(trajectory.rewards_of_all, trajectory.pid, env_id)
        steps = []
        for index, step in enumerate(trajectory.steps):
            final = _rewards_from(trajectory, step)[trajectory.pid]
            own = of_single_steps.get(index)
            reward = transformed = self._first_reward(trajectory, index, env_id, of_game, own)
            if self.step_reward_transformation is not None and is_bounded(transformed):
                with own_code():
                    reward = self.step_reward_transformation(trajectory, index, transformed)
                    check_step(step)
            if not is_bounded(reward):
                raise SparringError(
                    f"the reward of step {index} of player {trajectory.pid} in {env_id} became "
                    f"{shown(reward)}: the game gave {final}, the final transforms {shown(transformed)}, "
                    f"the step transforms {shown(reward)}"
                )
            info = {
                **step.info,
                "rollout_id": trajectory.rollout_id,
                "step_index": index,
                "place": trajectory.places[index] if trajectory.places else index,
                "game_turns": turns,
                "reward_stages": {"final": final, "final_transformed": transformed},
            }
            steps.append(step.scored(reward, info, env_id))
        return steps

    def _first_reward(
        self, trajectory: Trajectory, index: int, env_id: str, of_game: float, own: float | None
    ) -> float:
        """Return a step's reward before the step transforms: by that of the game, or the step's ``own``, of a
        game that a forgiven invalid move had ended or of a copy in which an answer was followed."""
        last = of_game if own is None else own
        is_branch = "branch_rewards" in trajectory.steps[index].info
        if self.discount is None or is_branch or not (is_bounded(of_game) and is_bounded(last)):
            return last
        transform = self.final_reward_transformation
        factor = 1.0 if transform is None else transform.factor(env_id)
        reward = return_from(trajectory, index, of_game, self.discount, factor)
        return reward if own is None else min(reward, return_from(trajectory, index, own, 1.0, factor))

    def _rewards_of_single_steps(self, trajectory: Trajectory, env_id: str) -> dict[int, float]:
        """Return the transformed rewards of the steps that do not start from that of the game, by index."""
        transform, pid = self.final_reward_transformation, trajectory.pid
        state = transform.state_dict() if transform is not None else {}
        rewards = {}
        for index, step in enumerate(trajectory.steps):
            of_all = _rewards_from(trajectory, step)
            if_ended = dict(enumerate(step.info.get("invalid_rewards", ())))
            if if_ended and (self.discount is not None or if_ended[pid] < of_all[pid]):
                of_all = if_ended
            elif "branch_rewards" not in step.info:
                continue
            rewards[index] = self._final_transformed(of_all, pid, env_id)
            if transform is not None:
                transform.load_state_dict(state)
        return rewards

    def _final_transformed(self, rewards: dict[int, float], pid: int, env_id: str) -> float:
        if self.final_reward_transformation is None:
            return rewards[pid]
        with own_code():
            transformed = self.final_reward_transformation.for_player(rewards, pid, env_id)
        if not isinstance(transformed, dict):
            raise SparringError(f"the final transforms returned {shown(transformed)}, not a dict of rewards")
        if pid not in transformed:
            raise SparringError(
                f"the final transforms returned no reward of player {pid} in {env_id}; return one for every "
                "player that is passed"
            )
        reward = transformed[pid]
        return float(reward) if is_bounded(reward) else reward

    def _draw(self, batch_size: int) -> list[list[Step]]:
        """Remove entries; return them with advantages, without what the transforms leave out."""
        drawn = self._take(batch_size)
        steps = [step for entry in drawn for step in entry]
        self.sampled += len(steps)
        self.batches += 1
        for step in steps:
            step.advantage = step.reward
        left = self._assign_advantages(steps)
        if self.batch_log is not None:
            self.batch_log.write(self.batches, left)
        if self.tracker is not None:
            self.tracker.log(self._metrics(left))
        ids = set(map(id, left))
        parts = ([step for step in entry if id(step) in ids] for entry in drawn)
        return [part for part in parts if part]

    def _assign_advantages(self, steps: list[Step]) -> list[Step]:
        """Let the sampling transforms judge policies without a critic; return what is left."""
        judged = [step for step in steps if step.policy not in self.critics]
        if self.sampling_reward_transformation is None or not judged:
            return steps
        given = {id(step): (step.info, step.reward) for step in judged}
        with own_code():
            kept = self.sampling_reward_transformation(judged)
        if not isinstance(kept, list):
            raise SparringError(f"the sampling transforms returned {shown(kept)}, not a list of steps")
        if not given.keys() >= set(map(id, kept)):
            raise SparringError(
                "the sampling transforms returned other steps than they were given; return those, not copies"
            )
        for step in kept:
            info, reward = given[id(step)]
            if step.info is not info:
                raise SparringError("the sampling transforms replaced the info of a step; add to it")
            if step.reward != reward:
                raise SparringError("the sampling transforms changed the reward of a step; set its advantage")
            if not is_bounded(step.advantage):
                raise SparringError(
                    f"the sampling transforms gave a step of player {step.pid} in {step.env_id} "
                    f"the advantage {shown(step.advantage)}"
                )
            check_step(step)
        left = set(map(id, kept))
        return [step for step in steps if id(step) in left or step.policy in self.critics]

    def _metrics(self, steps: list[Step]) -> dict[str, float]:
        metrics: dict[str, float] = {f"buffer/{name}": count for name, count in self.counts().items()}
        for turns, (added, dropped) in self._by_turns.items() if self.dropped_stale else ():
            metrics[f"buffer/stale share, games of {turns} turns"] = dropped / added
        stages = [reward_stages(step) for step in steps]
        for stage in stages[0] if stages else ():
            metrics[f"buffer/reward_{stage}"] = math.fsum(one[stage] for one in stages) / len(stages)
        return metrics

    def _count_by_turns(self, steps: list[Step], place: int) -> None:
        for step in steps:
            self._by_turns.setdefault(_range_of(step.info["game_turns"]), [0, 0])[place] += 1

    def _take(self, batch_size: int) -> list[list[Step]]:
        if batch_size < 1:
            raise InputError("batch_size", f"{batch_size} is not positive", "Ask for 1 or more.")
        if batch_size > len(self._entries):
            raise SparringError(
                f"a batch of {batch_size} was requested from a {type(self).__name__} that holds "
                f"{len(self._entries)}; collect more first"
            )
        return [self._take_one() for _ in range(batch_size)]

    def _take_one(self) -> list[Step]:
        entries = self._entries
        index = self._rng.randrange(len(entries))
        entries[index], entries[-1] = entries[-1], entries[index]
        entry = entries.pop()
        self._size -= len(entry)
        return entry


def _rewards_from(trajectory: Trajectory, step: Step) -> dict[int, float]:
    """Return the rewards of all players, by player id, of the game or of the copy that followed a step."""
    followed = step.info.get("branch_rewards")
    return trajectory.rewards_of_all if followed is None else dict(enumerate(followed))


class StepBuffer(BaseBuffer):
    """Stores the steps of all trajectories in one flat list and draws single steps."""

    def get_batch(self, batch_size: int) -> list[Step]:
        """Draw ``batch_size`` random steps."""
        return [step for entry in self._draw(batch_size) for step in entry]

    def stored_groups(self) -> list[list[Step]]:
        """Return the steps, ``GROUP`` at a time."""
        steps = [step for entry in self._entries for step in entry]
        return [steps[first : first + GROUP] for first in range(0, len(steps), GROUP)]

    def _entries_of(self, steps: list[Step]) -> list[list[Step]]:
        return [[step] for step in steps]


class EpisodeBuffer(BaseBuffer):
    """Stores episodes (one player's steps each) and draws whole episodes, except for stale steps.

    A single episode that is longer than ``max_buffer_size`` is evicted at once.
    """

    def get_batch(self, batch_size: int) -> list[list[Step]]:
        """Draw ``batch_size`` random episodes, without those that the sampling transforms leave out."""
        return self._draw(batch_size)

    def stored_groups(self) -> list[list[Step]]:
        """Return the episodes."""
        return list(self._entries)

    def _entries_of(self, steps: list[Step]) -> list[list[Step]]:
        return [steps]


def _range_of(turns: int) -> str:
    """Return the range between powers of two that a game's length is in, for example ``8-15``."""
    low = 1 << (turns.bit_length() - 1)
    return "1" if low == 1 else f"{low}-{2 * low - 1}"
