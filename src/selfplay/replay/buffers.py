"""StepBuffer and EpisodeBuffer: trajectories in, transformed rewards, random batches out.

Every removal swaps the chosen entry with the last one and pops it, so that taking a batch or making room
costs what is removed and not what is stored.
"""

import math
import random
from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeVar

import msgspec

from selfplay.core import InputError, SelfplayError, Step, Trajectory
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.random_state import random_state, set_random_state
from selfplay.replay.transforms_base import RewardTransform
from selfplay.replay.transforms_final import FinalRewardTransform
from selfplay.replay.transforms_sampling import SamplingRewardTransform
from selfplay.replay.transforms_step import StepRewardTransform

Entry = TypeVar("Entry")

REWARD_STAGES = ("final", "final_transformed", "step", "sampled")


class MetricLogger(Protocol):
    """The part of a tracker that buffers use."""

    def log(self, name_value_dict: dict[str, float]) -> None:
        """Record values by metric name."""


class BaseBuffer(ABC):
    """What both buffers share: ingestion, transforms, counters, the state for a checkpoint.

    A step's reward at each stage is kept in ``step.info["reward_stages"]``: ``final`` (the game's),
    ``final_transformed``, ``step`` and, once drawn, ``sampled``. The buffer also sets ``info["rollout_id"]``
    and ``info["step_index"]`` (place in the trajectory). It stores copies: the steps of the trajectory that
    was handed in stay as the game left them.

    Args:
        max_buffer_size: most steps the buffer holds.
        tracker: receives sizes and mean rewards with every batch; ``None`` for none.
        final_reward_transformation: applied once per trajectory.
        step_reward_transformation: applied to each step, given the transformed final reward.
        sampling_reward_transformation: applied to the steps of each batch when it is drawn.
        buffer_strategy: what leaves a full buffer; ``random`` is the only one.
        seed: seeds the buffer's own generator.
        batch_log: writes every batch that is drawn; ``None`` switches it off.

    Raises:
        InputError: the size is not positive or the strategy is unknown.
    """

    def __init__(
        self,
        max_buffer_size: int,
        tracker: MetricLogger | None = None,
        final_reward_transformation: FinalRewardTransform | None = None,
        step_reward_transformation: StepRewardTransform | None = None,
        sampling_reward_transformation: SamplingRewardTransform | None = None,
        buffer_strategy: str = "random",
        *,
        seed: int = 0,
        batch_log: BatchLog | None = None,
    ) -> None:
        if max_buffer_size < 1:
            raise InputError(
                "max_buffer_size", f"{max_buffer_size} is not positive", "Give a number of steps."
            )
        if buffer_strategy != "random":
            raise InputError(
                "buffer_strategy", f"{buffer_strategy!r} is unknown", "The only one is 'random'."
            )
        self.max_buffer_size = max_buffer_size
        self.tracker = tracker
        self.final_reward_transformation = final_reward_transformation
        self.step_reward_transformation = step_reward_transformation
        self.sampling_reward_transformation = sampling_reward_transformation
        self.buffer_strategy = buffer_strategy
        self.batch_log = batch_log
        self.added = 0
        self.evicted = 0
        self.dropped_stale = 0
        self.sampled = 0
        self.cleared = 0
        self.batches = 0
        self._collecting = True
        self._rng = random.Random(seed)
        self._remove_all()

    @abstractmethod
    def size(self) -> int:
        """Return the number of stored steps."""

    @abstractmethod
    def entries(self) -> int:
        """Return how many entries ``get_batch`` can draw from: steps, or episodes."""

    @abstractmethod
    def get_batch(self, batch_size: int) -> list[Any]:
        """Draw ``batch_size`` random entries without replacement and remove them."""

    @abstractmethod
    def _insert(self, steps: list[Step]) -> None:
        """Store the steps of one trajectory."""

    @abstractmethod
    def _evict_one(self) -> int:
        """Remove one random entry and return how many steps it held."""

    @abstractmethod
    def _remove_stale(self, oldest_allowed: int) -> None:
        """Remove every entry with a step whose policy version is below ``oldest_allowed``."""

    @abstractmethod
    def _remove_all(self) -> None:
        """Set up an empty store."""

    @abstractmethod
    def _stored_groups(self) -> list[list[Step]]:
        """Return what ``_insert``, called on each group, puts back in the same order."""

    def add_player_trajectory(self, player_traj: Trajectory, env_id: str) -> None:
        """Add one player's trajectory; a buffer that is over its size then drops random entries.

        Trajectories of games that were still in flight at ``stop()`` are taken too.

        Args:
            player_traj: one role's slice of a rollout. Without steps it is ignored.
            env_id: what the transforms and the stored steps know its environment by.

        Raises:
            SelfplayError: a transform made a reward that is not a finite number; nothing is stored then.
        """
        if not player_traj.steps:
            return
        steps = self._transformed_steps(player_traj, env_id)
        self._insert(steps)
        self.added += len(steps)
        while self.size() > self.max_buffer_size:
            self.evicted += self._evict_one()

    def add_trajectory(self, trajectory: Trajectory, player_id: int, env_id: str) -> None:
        """Add ``player_id``'s trajectory: ``add_player_trajectory`` under its older name.

        Raises:
            SelfplayError: the trajectory is another player's.
        """
        if trajectory.pid != player_id:
            raise SelfplayError(f"player_id is {player_id} but the trajectory is player {trajectory.pid}'s")
        self.add_player_trajectory(trajectory, env_id)

    def drop_stale(self, current_version: int, max_staleness: int) -> int:
        """Remove what acted more than ``max_staleness`` policy versions before ``current_version``.

        An episode goes as a whole as soon as one of its steps is too old.

        Returns:
            How many steps were removed.
        """
        before = self.size()
        self._remove_stale(current_version - max_staleness)
        dropped = before - self.size()
        self.dropped_stale += dropped
        return dropped

    def stop(self) -> None:
        """Signal collection to stop. Stored data stays."""
        self._collecting = False

    def continue_collection(self) -> bool:
        """Return whether data is still wanted: ``True`` until ``stop()``."""
        return self._collecting

    def clear(self) -> None:
        """Remove all stored data. Counters, baselines and the generator stay."""
        self.cleared += self.size()
        self._remove_all()

    def counts(self) -> dict[str, int]:
        """Return what became of every step: added = stored + evicted + dropped_stale + sampled + cleared."""
        return {
            "added": self.added,
            "stored": self.size(),
            "evicted": self.evicted,
            "dropped_stale": self.dropped_stale,
            "sampled": self.sampled,
            "cleared": self.cleared,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later batches depend on, as plain JSON-able data.

        ``stop()`` is a signal to the running process and not part of it. ``info`` comes back as JSON would
        give it back: keys as text, tuples as lists.
        """
        return {
            "groups": msgspec.to_builtins(self._stored_groups(), str_keys=True),
            "random": random_state(self._rng),
            "counts": {**self.counts(), "batches": self.batches},
            "transforms": {
                stage: transform.state_dict() if transform is not None else None
                for stage, transform in self._transforms().items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that ``state_dict`` returned, in place of what is stored.

        Raises:
            InputError: the state was saved with other transforms.
        """
        for stage, transform in self._transforms().items():
            saved = state["transforms"][stage]
            if (saved is None) != (transform is None):
                raise InputError(
                    f"{stage}_reward_transformation",
                    f"the checkpoint was saved {'without' if saved is None else 'with'} one",
                    "Resume with the transforms the run was started with.",
                )
            if transform is not None:
                transform.load_state_dict(saved)
        self._remove_all()
        for steps in msgspec.convert(state["groups"], list[list[Step]]):
            self._insert(steps)
        set_random_state(self._rng, state["random"])
        counts = state["counts"]
        self.added, self.evicted = counts["added"], counts["evicted"]
        self.dropped_stale, self.sampled = counts["dropped_stale"], counts["sampled"]
        self.cleared, self.batches = counts["cleared"], counts["batches"]

    def _transforms(self) -> dict[str, RewardTransform | None]:
        return {
            "final": self.final_reward_transformation,
            "step": self.step_reward_transformation,
            "sampling": self.sampling_reward_transformation,
        }

    def _transformed_steps(self, trajectory: Trajectory, env_id: str) -> list[Step]:
        """Return copies of the trajectory's steps with their rewards after the first two stages."""
        final = trajectory.final_reward
        transformed = final
        if self.final_reward_transformation is not None:
            transformed = self.final_reward_transformation({trajectory.pid: final}, env_id)[trajectory.pid]
        steps = []
        for index, step in enumerate(trajectory.steps):
            reward = transformed
            if self.step_reward_transformation is not None:
                reward = self.step_reward_transformation(trajectory, index, transformed)
            if not math.isfinite(reward):
                raise SelfplayError(
                    f"the reward of step {index} of player {trajectory.pid} in {env_id} became {reward}: the "
                    f"game gave {final}, the final transforms {transformed}, the step transforms {reward}"
                )
            stages = {"final": final, "final_transformed": transformed, "step": reward}
            info = {
                **step.info,
                "rollout_id": trajectory.rollout_id,
                "step_index": index,
                "reward_stages": stages,
            }
            steps.append(step.scored(reward, info, env_id))
        return steps

    def _finish_batch(self, steps: list[Step]) -> list[Step]:
        """Apply the sampling transforms to the drawn steps, then count and log the batch."""
        self.sampled += len(steps)
        self.batches += 1
        if self.sampling_reward_transformation is not None:
            steps = self.sampling_reward_transformation(steps)
        for step in steps:
            if not math.isfinite(step.reward):
                raise SelfplayError(
                    f"the sampling transforms gave a step of player {step.pid} in {step.env_id} "
                    f"the reward {step.reward}"
                )
            step.info["reward_stages"]["sampled"] = step.reward
        if self.batch_log is not None:
            self.batch_log.write(self.batches, steps)
        if self.tracker is not None:
            self.tracker.log(self._metrics(steps))
        return steps

    def _metrics(self, steps: list[Step]) -> dict[str, float]:
        metrics: dict[str, float] = {f"buffer/{name}": count for name, count in self.counts().items()}
        for stage in REWARD_STAGES if steps else ():
            rewards = [step.info["reward_stages"][stage] for step in steps]
            metrics[f"buffer/reward_{stage}"] = math.fsum(rewards) / len(rewards)
        return metrics

    def _take(self, entries: list[Entry], batch_size: int) -> list[Entry]:
        """Remove ``batch_size`` random entries and return them.

        Raises:
            InputError: ``batch_size`` is not positive.
            SelfplayError: fewer entries are stored.
        """
        if batch_size < 1:
            raise InputError("batch_size", f"{batch_size} is not positive", "Ask for 1 or more.")
        if batch_size > len(entries):
            raise SelfplayError(
                f"a batch of {batch_size} was asked of a {type(self).__name__} that holds {len(entries)}; "
                "collect more first"
            )
        return [self._take_one(entries) for _ in range(batch_size)]

    def _take_one(self, entries: list[Entry]) -> Entry:
        index = self._rng.randrange(len(entries))
        entries[index], entries[-1] = entries[-1], entries[index]
        return entries.pop()


class StepBuffer(BaseBuffer):
    """Stores the steps of all trajectories in one flat list and draws single steps."""

    _steps: list[Step]

    def get_batch(self, batch_size: int) -> list[Step]:
        """Draw ``batch_size`` random steps without replacement, remove them and transform their rewards.

        Raises:
            InputError: ``batch_size`` is not positive.
            SelfplayError: fewer steps are stored, or a transform gave a reward that is not finite.
        """
        return self._finish_batch(self._take(self._steps, batch_size))

    def size(self) -> int:
        """Return the number of stored steps."""
        return len(self._steps)

    def entries(self) -> int:
        """Return the number of stored steps."""
        return len(self._steps)

    def _insert(self, steps: list[Step]) -> None:
        self._steps.extend(steps)

    def _evict_one(self) -> int:
        self._take_one(self._steps)
        return 1

    def _remove_stale(self, oldest_allowed: int) -> None:
        self._steps = [step for step in self._steps if step.policy_version >= oldest_allowed]

    def _remove_all(self) -> None:
        self._steps = []

    def _stored_groups(self) -> list[list[Step]]:
        return [self._steps]


class EpisodeBuffer(BaseBuffer):
    """Stores whole episodes (one player's steps each) and draws whole episodes.

    A single episode that is longer than ``max_buffer_size`` is evicted at once.
    """

    _episodes: list[list[Step]]
    _size: int

    def get_batch(self, batch_size: int) -> list[list[Step]]:
        """Draw ``batch_size`` random episodes without replacement, remove them and transform their rewards.

        The sampling transforms see the steps of all episodes in one flat list; an episode whose steps they
        all leave out is missing from the batch.

        Raises:
            InputError: ``batch_size`` is not positive.
            SelfplayError: fewer episodes are stored, a transform gave a reward that is not finite, or it
                returned a step that it was not given.
        """
        episodes = self._take(self._episodes, batch_size)
        drawn = [step for episode in episodes for step in episode]
        self._size -= len(drawn)
        episode_of = {id(step): number for number, episode in enumerate(episodes) for step in episode}
        batch: list[list[Step]] = [[] for _ in episodes]
        for step in self._finish_batch(drawn):
            if id(step) not in episode_of:
                raise SelfplayError("a sampling transform must return the steps it was given, not copies")
            batch[episode_of[id(step)]].append(step)
        return [episode for episode in batch if episode]

    def size(self) -> int:
        """Return the number of stored steps, over all episodes."""
        return self._size

    def entries(self) -> int:
        """Return the number of stored episodes."""
        return len(self._episodes)

    def _insert(self, steps: list[Step]) -> None:
        self._episodes.append(steps)
        self._size += len(steps)

    def _evict_one(self) -> int:
        removed = len(self._take_one(self._episodes))
        self._size -= removed
        return removed

    def _remove_stale(self, oldest_allowed: int) -> None:
        self._episodes = [
            episode
            for episode in self._episodes
            if all(step.policy_version >= oldest_allowed for step in episode)
        ]
        self._size = sum(len(episode) for episode in self._episodes)

    def _remove_all(self) -> None:
        self._episodes = []
        self._size = 0

    def _stored_groups(self) -> list[list[Step]]:
        return self._episodes
