"""StepBuffer and EpisodeBuffer: they store trajectories, transform rewards and draw random batches.

Every removal swaps the chosen entry with the last one and pops it, so the cost of a draw or an eviction
depends on the number of removed entries, not on the number of stored ones.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from selfplay.core import InputError, SelfplayError, Step, Trajectory
from selfplay.core.errors import shown
from selfplay.core.own_code import own_code
from selfplay.core.played import check_step
from selfplay.core.scores import is_bounded
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.random_state import random_state, set_random_state
from selfplay.replay.step_classes import groups_of, plain_groups
from selfplay.replay.transforms_base import RewardTransform
from selfplay.replay.transforms_final import FinalRewardTransform
from selfplay.replay.transforms_sampling import SamplingRewardTransform
from selfplay.replay.transforms_step import StepRewardTransform

Entry = TypeVar("Entry")

GROUP = 16
"""Steps of a step buffer that are saved together."""
REWARD_STAGES = ("final", "final_transformed", "step", "sampled")


class MetricLogger(Protocol):
    """The part of a tracker that buffers use."""

    def log(self, name_value_dict: dict[str, float]) -> None:
        """Record values by metric name."""


class BaseBuffer(ABC):
    """Common part of both buffers: ingestion, transforms, counters and checkpoint state.

    A step's reward at each stage is kept in ``step.info["reward_stages"]``: ``final`` (the game's reward),
    ``final_transformed``, ``step`` and, once drawn, ``sampled``. The buffer also sets ``info["rollout_id"]``
    and ``info["step_index"]`` (index in the trajectory). It stores copies, each of its step's own class, and
    does not change the steps of the given trajectory.

    A forgiven invalid move (``info["invalid_rewards"]``, see GameEpisode) starts from the reward that it
    would have had if it had ended the game, if that is lower than the game's reward, because a later win does
    not make it a good move. ``final`` is the game's reward even then.

    Args:
        max_buffer_size: maximum number of stored steps.
        tracker: receives sizes and mean rewards with every batch; ``None`` disables this.
        final_reward_transformation: applied once per trajectory, to the rewards of all players.
        step_reward_transformation: applied to each step, given the transformed final reward.
        sampling_reward_transformation: applied to the steps of each batch when it is drawn.
        buffer_strategy: how entries of a full buffer are evicted; only ``random`` is supported.
        seed: seed of the buffer's own generator.
        batch_log: writes every drawn batch; ``None`` disables this.

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
                "buffer_strategy", f"{buffer_strategy!r} is unknown", "The only strategy is 'random'."
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
        self._by_turns: dict[str, list[int]] = {}
        self._collecting = True
        self._rng = random.Random(seed)
        self._remove_all()

    @abstractmethod
    def size(self) -> int:
        """Return the number of stored steps."""

    @abstractmethod
    def entries(self) -> int:
        """Return the number of entries (steps or episodes) from which ``get_batch`` draws."""

    @abstractmethod
    def get_batch(self, batch_size: int) -> list[Any]:
        """Draw ``batch_size`` random entries without replacement and remove them."""

    @abstractmethod
    def _insert(self, steps: list[Step]) -> None:
        """Store the steps of one trajectory."""

    @abstractmethod
    def _evict_one(self) -> int:
        """Remove one random entry and return its number of steps."""

    @abstractmethod
    def _remove_stale(self, is_stale: Callable[[Step], bool]) -> list[Step]:
        """Remove and return the steps that are stale."""

    @abstractmethod
    def _remove_all(self) -> None:
        """Set up an empty store."""

    @abstractmethod
    def stored_groups(self) -> list[list[Step]]:
        """Return the stored steps in groups: the ``groups`` of a state with which a buffer stores the same.

        The lists are not changed later, and neither are the steps.
        """

    def add_player_trajectory(self, player_traj: Trajectory, env_id: str) -> None:
        """Add one player's trajectory, then evict random entries while the buffer exceeds its size.

        Trajectories of games that were still in flight at ``stop()`` are accepted too.

        Args:
            player_traj: one role's part of a rollout. It is ignored if it has no steps.
            env_id: the environment's id for the transforms and in the stored steps.

        Raises:
            SelfplayError: a transform returned a reward that is not a finite number; nothing is then stored.
        """
        if not player_traj.steps:
            return
        steps = self._transformed_steps(player_traj, env_id)
        self._insert(steps)
        self.added += len(steps)
        self._count_by_turns(steps, 0)
        while self.size() > self.max_buffer_size:
            self.evicted += self._evict_one()

    def add_trajectory(self, trajectory: Trajectory, player_id: int, env_id: str) -> None:
        """Add the trajectory of ``player_id``; the older name of ``add_player_trajectory``.

        Raises:
            SelfplayError: the trajectory belongs to another player.
        """
        if trajectory.pid != player_id:
            raise SelfplayError(f"player_id is {player_id} but the trajectory is player {trajectory.pid}'s")
        self.add_player_trajectory(trajectory, env_id)

    def drop_stale(
        self, current_version: int, max_staleness: int, versions: Mapping[str, int] | None = None
    ) -> int:
        """Remove steps played more than ``max_staleness`` policy versions before the current one.

        Later steps of the same episode stay. Nevertheless long games lose more steps than short ones, because
        more versions pass while they are played; batches report the share by game length.

        Args:
            current_version: the version of every policy that is not in ``versions``.
            max_staleness: how many versions a step may be older.
            versions: the version of a policy, which is lower if it had no step in some update.

        Returns:
            The number of removed steps.
        """
        known = versions or {}

        def is_stale(step: Step) -> bool:
            return step.policy_version < known.get(step.policy, current_version) - max_staleness

        dropped = self._remove_stale(is_stale)
        self.dropped_stale += len(dropped)
        self._count_by_turns(dropped, 1)
        return len(dropped)

    def _count_by_turns(self, steps: list[Step], place: int) -> None:
        """Count steps by the length of their games, as added (``place`` 0) or dropped as stale (1)."""
        for step in steps:
            self._by_turns.setdefault(_range_of(step.info["game_turns"]), [0, 0])[place] += 1

    def stop(self) -> None:
        """Signal that collection should stop. Stored data stays."""
        self._collecting = False

    def continue_collection(self) -> bool:
        """Return whether collection should continue, which is true until ``stop()``."""
        return self._collecting

    def clear(self) -> None:
        """Remove all stored data. Counters, baselines and the generator keep their state."""
        self.cleared += self.size()
        self._remove_all()

    def counts(self) -> dict[str, int]:
        """Return the counts of all steps: added = stored + evicted + dropped_stale + sampled + cleared."""
        return {
            "added": self.added,
            "stored": self.size(),
            "evicted": self.evicted,
            "dropped_stale": self.dropped_stale,
            "sampled": self.sampled,
            "cleared": self.cleared,
        }

    def state_dict(self, *, with_steps: bool = True) -> dict[str, Any]:
        """Return everything that later batches depend on, as plain JSON-able data.

        Without steps, their ``groups`` must be added before the state is loaded: see :meth:`stored_groups`.
        ``stop()`` is a signal to the running process and not part of the state. ``info`` is restored as from
        JSON, with keys as strings and tuples as lists.
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
        """Restore a state that ``state_dict`` returned, replacing all stored data.

        Raises:
            InputError: the state was saved with other transforms or by an older version, or has steps of a
                class that the program does not define.
        """
        if "by_turns" not in state:
            raise InputError(
                "checkpoint",
                "its buffer was saved by another version of selfplay",
                "Resume with the version that started the run, or start a new run.",
            )
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
        self._remove_all()
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

    def _transformed_steps(self, trajectory: Trajectory, env_id: str) -> list[Step]:
        """Return copies of the trajectory's steps with their rewards after the first two stages."""
        final, turns = trajectory.final_reward, trajectory.num_turns or len(trajectory.steps)
        of_forgiven = self._rewards_of_forgiven_moves(trajectory, env_id)
        of_others = self._final_transformed(trajectory.rewards_of_all, trajectory.pid, env_id)
        steps = []
        for index, step in enumerate(trajectory.steps):
            reward = transformed = of_forgiven.get(index, of_others)
            if self.step_reward_transformation is not None and is_bounded(transformed):
                with own_code():
                    reward = self.step_reward_transformation(trajectory, index, transformed)
                    check_step(step)
            if not is_bounded(reward):
                raise SelfplayError(
                    f"the reward of step {index} of player {trajectory.pid} in {env_id} became "
                    f"{shown(reward)}: the game gave {final}, the final transforms {shown(transformed)}, "
                    f"the step transforms {shown(reward)}"
                )
            stages = {"final": final, "final_transformed": transformed, "step": reward}
            info = {
                **step.info,
                "rollout_id": trajectory.rollout_id,
                "step_index": index,
                "game_turns": turns,
                "reward_stages": stages,
            }
            steps.append(step.scored(reward, info, env_id))
        return steps

    def _rewards_of_forgiven_moves(self, trajectory: Trajectory, env_id: str) -> dict[int, float]:
        """Return the transformed rewards of forgiven invalid moves by index; transforms keep their state."""
        transform = self.final_reward_transformation
        state = transform.state_dict() if transform is not None else {}
        rewards = {}
        for index, step in enumerate(trajectory.steps):
            of_all = dict(enumerate(step.info.get("invalid_rewards", ())))
            if of_all and of_all[trajectory.pid] < trajectory.final_reward:
                rewards[index] = self._final_transformed(of_all, trajectory.pid, env_id)
                if transform is not None:
                    transform.load_state_dict(state)
        return rewards

    def _final_transformed(self, rewards: dict[int, float], pid: int, env_id: str) -> float:
        """Return the reward of ``pid`` after the final transforms of the rewards of all players."""
        if self.final_reward_transformation is None:
            return rewards[pid]
        with own_code():
            transformed = self.final_reward_transformation.for_player(rewards, pid, env_id)
        if not isinstance(transformed, dict):
            raise SelfplayError(f"the final transforms returned {shown(transformed)}, not a dict of rewards")
        if pid not in transformed:
            raise SelfplayError(
                f"the final transforms returned no reward of player {pid} in {env_id}; return one for every "
                "player that is passed"
            )
        return transformed[pid]

    def _finish_batch(self, steps: list[Step]) -> list[Step]:
        """Apply the sampling transforms to the drawn steps, then count and log the batch."""
        self.sampled += len(steps)
        self.batches += 1
        if self.sampling_reward_transformation is not None:
            drawn = {id(step): step.info for step in steps}
            with own_code():
                steps = self.sampling_reward_transformation(steps)
            if not isinstance(steps, list) or not drawn.keys() >= set(map(id, steps)):
                raise SelfplayError(
                    "the sampling transforms returned other steps than they were given; "
                    "return those, not copies"
                )
            for step in steps:
                if step.info is not drawn[id(step)]:
                    raise SelfplayError("the sampling transforms replaced the info of a step; add to it")
                if not is_bounded(step.reward):
                    raise SelfplayError(
                        f"the sampling transforms gave a step of player {step.pid} in {step.env_id} "
                        f"the reward {shown(step.reward)}"
                    )
                check_step(step)
        for step in steps:
            step.info["reward_stages"]["sampled"] = step.reward
        if self.batch_log is not None:
            self.batch_log.write(self.batches, steps)
        if self.tracker is not None:
            self.tracker.log(self._metrics(steps))
        return steps

    def _metrics(self, steps: list[Step]) -> dict[str, float]:
        metrics: dict[str, float] = {f"buffer/{name}": count for name, count in self.counts().items()}
        for turns, (added, dropped) in self._by_turns.items() if self.dropped_stale else ():
            metrics[f"buffer/stale share, games of {turns} turns"] = dropped / added
        for stage in REWARD_STAGES if steps else ():
            rewards = [step.info["reward_stages"][stage] for step in steps]
            metrics[f"buffer/reward_{stage}"] = math.fsum(rewards) / len(rewards)
        return metrics

    def _take(self, entries: list[Entry], batch_size: int) -> list[Entry]:
        """Remove ``batch_size`` random entries and return them.

        Raises:
            InputError: ``batch_size`` is not positive.
            SelfplayError: fewer than ``batch_size`` entries are stored.
        """
        if batch_size < 1:
            raise InputError("batch_size", f"{batch_size} is not positive", "Ask for 1 or more.")
        if batch_size > len(entries):
            raise SelfplayError(
                f"a batch of {batch_size} was requested from a {type(self).__name__} that holds "
                f"{len(entries)}; collect more first"
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
            SelfplayError: fewer steps are stored, or a transform returned a reward that is not finite.
        """
        return self._finish_batch([_own(step) for step in self._take(self._steps, batch_size)])

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

    def _remove_stale(self, is_stale: Callable[[Step], bool]) -> list[Step]:
        self._steps, stale = _split(self._steps, is_stale)
        return stale

    def _remove_all(self) -> None:
        self._steps = []

    def stored_groups(self) -> list[list[Step]]:
        """See :meth:`BaseBuffer.stored_groups`."""
        return [self._steps[first : first + GROUP] for first in range(0, len(self._steps), GROUP)]


class EpisodeBuffer(BaseBuffer):
    """Stores episodes (one player's steps each) and draws whole episodes, except for stale steps.

    A single episode that is longer than ``max_buffer_size`` is evicted at once.
    """

    _episodes: list[list[Step]]
    _size: int

    def get_batch(self, batch_size: int) -> list[list[Step]]:
        """Draw ``batch_size`` random episodes without replacement, remove them and transform their rewards.

        The sampling transforms receive the steps of all episodes in one flat list. If they leave out all
        steps of an episode, the episode is missing from the batch.

        Raises:
            InputError: ``batch_size`` is not positive.
            SelfplayError: fewer episodes are stored, a transform returned a reward that is not finite, or it
                returned a step that it was not given.
        """
        taken = self._take(self._episodes, batch_size)
        episodes = [[_own(step) for step in episode] for episode in taken]
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
        """Return the number of stored steps of all episodes."""
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

    def _remove_stale(self, is_stale: Callable[[Step], bool]) -> list[Step]:
        parts = [_split(episode, is_stale) for episode in self._episodes]
        self._episodes = [fresh for fresh, _ in parts if fresh]
        self._size = sum(len(episode) for episode in self._episodes)
        return [step for _, stale in parts for step in stale]

    def _remove_all(self) -> None:
        self._episodes = []
        self._size = 0

    def stored_groups(self) -> list[list[Step]]:
        """See :meth:`BaseBuffer.stored_groups`."""
        return list(self._episodes)


def _own(step: Step) -> Step:
    """Return a copy of a drawn step, whose rewards change while the stored one may still be saved."""
    info = {**step.info, "reward_stages": dict(step.info["reward_stages"])}
    return step.scored(step.reward, info, step.env_id)


def _split(steps: list[Step], is_stale: Callable[[Step], bool]) -> tuple[list[Step], list[Step]]:
    """Return the steps that are not stale, and those that are."""
    fresh: list[Step] = []
    stale: list[Step] = []
    for step in steps:
        (stale if is_stale(step) else fresh).append(step)
    return fresh, stale


def _range_of(turns: int) -> str:
    """Return the range between powers of two that contains a game's length, for example ``8-15``."""
    low = 1 << (turns.bit_length() - 1)
    return "1" if low == 1 else f"{low}-{2 * low - 1}"
