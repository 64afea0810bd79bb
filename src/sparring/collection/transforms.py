"""Reward transforms, in three families: of a game's final rewards, of a step's reward, and of a drawn batch.

The first two change what a step earned, its ``reward``. The third sets its ``advantage``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sparring.core import CreditAssigner, GenerateResult, InputError, Rollout, Step, Trajectory
from sparring.core.credit.assigners import assigned
from sparring.core.own_code import state_of

Transform = TypeVar("Transform", bound="RewardTransform")

# Bounds a division by a very small deviation; the value of UnstableBaselines.
STD_EPSILON = 1e-8

# Weight of the seat's mean in ``SamePromptBaseline``, as a number of steps at the same prompt.
SEAT_WEIGHT = 4.0


class RewardTransform:
    """Base of all reward transforms. One with memory, such as a baseline, overrides both methods."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must keep, as plain JSON-able data; empty without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""


class ComposedTransforms(RewardTransform, Generic[Transform]):
    """Transforms that are applied one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = list(transforms)

    def state_dict(self) -> dict[str, Any]:
        """Return the transforms' states in order, each with the name of its class."""
        return {
            "transforms": [{"type": type(one).__name__, "state": state_of(one)} for one in self.transforms]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the transforms' states; raise an InputError for those of another stack."""
        saved = state.get("transforms", [])
        saved_names = [entry["type"] for entry in saved]
        names = [type(transform).__name__ for transform in self.transforms]
        if saved_names != names:
            raise InputError(
                "replay transforms",
                f"the checkpoint was saved with {saved_names}, but the buffer has {names}",
                "Resume with the transforms with which the run was started.",
            )
        for transform, entry in zip(self.transforms, saved, strict=True):
            transform.load_state_dict(entry["state"])


class FinalRewardTransform(RewardTransform, ABC):
    """Maps the rewards of all players of a game, by player id, to new rewards of the same players.

    A buffer passes the rewards of everybody who played, trained or not, once for each trained player, whose
    steps start from the new reward. A trajectory without ``final_rewards`` has only its own.
    """

    @abstractmethod
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the transformed rewards for the same players."""

    def for_player(self, x: dict[int, float], pid: int, env_id: str | None = None) -> dict[int, float]:
        """Return the transformed rewards, of which ``pid``'s is the one that is learned from.

        Buffers call this. A transform that remembers rewards overrides it to remember only that of ``pid``:
        then it counts a game once for each trained player, and opponents' rewards not at all.
        """
        return self(x, env_id)

    def factor(self, env_id: str | None = None) -> float:
        """Return by what rewards on the way of a game are multiplied, so that they fit the new ones.

        It is 1 unless the transform gives rewards another unit, and 0 if what counts is the end alone.
        """
        return 1.0


class ComposeFinalRewardTransforms(ComposedTransforms[FinalRewardTransform], FinalRewardTransform):
    """Applies transforms one after the other."""

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return ``x`` after every transform."""
        for transform in self.transforms:
            x = transform(x, env_id)
        return x

    def for_player(self, x: dict[int, float], pid: int, env_id: str | None = None) -> dict[int, float]:
        """Return ``x`` after every transform."""
        for transform in self.transforms:
            x = transform.for_player(x, pid, env_id)
        return x

    def factor(self, env_id: str | None = None) -> float:
        """Return the product of all factors."""
        return math.prod(transform.factor(env_id) for transform in self.transforms)


class WinDrawLossFormatter(FinalRewardTransform):
    """Gives the best reward the value of a win, every other one that of a loss; equal ones draw.

    Players who share the best reward all win. A reward alone is compared with 0.
    """

    def __init__(self, win_reward: float = 1.0, draw_reward: float = 0.0, loss_reward: float = -1.0) -> None:
        self.win_reward = win_reward
        self.draw_reward = draw_reward
        self.loss_reward = loss_reward

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the win, draw or loss reward of every player."""
        compared = [*x.values()] if len(x) > 1 else [*x.values(), 0.0]
        best, worst = max(compared), min(compared)
        if best == worst:
            return dict.fromkeys(x, self.draw_reward)
        return {pid: self.win_reward if reward == best else self.loss_reward for pid, reward in x.items()}

    def factor(self, env_id: str | None = None) -> float:
        """Return 0: who wins is known at the end."""
        return 0.0


class DivideByGameRange(FinalRewardTransform):
    """Divides rewards by half their game's range, so that constants mean the same in all games.

    ``scale_of`` has half the range of each environment, by its id; of any other it is 1.
    """

    def __init__(self, scale_of: Mapping[str, float]) -> None:
        self.scale_of = dict(scale_of)

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return every player's reward in units of half the range."""
        scale = self.scale_of.get(env_id or "", 1.0)
        return {pid: reward / scale for pid, reward in x.items()}

    def factor(self, env_id: str | None = None) -> float:
        """Return 1 by half the range."""
        return 1.0 / self.scale_of.get(env_id or "", 1.0)


class RoleAdvantageFormatter(FinalRewardTransform):
    """Subtracts from each reward a running mean of the earlier rewards of its seat.

    For a seat with baseline b and reward r the advantage is A = r - b, and then b <- (1 - tau) b + tau r. The
    baseline is read before it is updated, as in SPIRAL's code; UnstableBaselines, from which the class has
    its name, updates first, which shrinks every advantage by 1 - tau. In a buffer, only the trained player's
    reward updates a baseline; there, the opponents' do too.

    Args:
        role_advantage: initial baselines by player id (copied); a missing seat starts at 0.
        tau: weight of the newest reward, 0 to 1. The default 0.05 is SPIRAL's; UnstableBaselines' 0.001 needs
            about 1000 games to follow a change.
    """

    def __init__(self, role_advantage: Mapping[int, float] | None = None, tau: float = 0.05) -> None:
        if not 0.0 <= tau <= 1.0:
            raise InputError(
                "tau", f"{tau} is not between 0 and 1", "Give the weight of the newest reward, such as 0.05."
            )
        self.tau = tau
        self.role_advantage: dict[Any, float] = dict(role_advantage or {})

    def _key(self, pid: int, env_id: str | None) -> Hashable:
        return pid

    def _first(self, pid: int) -> float:
        return 0.0

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return each player's advantage over its role's baseline, then update the baselines of all."""
        return self._advantages(x, x, env_id)

    def for_player(self, x: dict[int, float], pid: int, env_id: str | None = None) -> dict[int, float]:
        """Return each player's advantage, then update the baseline of ``pid`` alone."""
        return self._advantages(x, [pid], env_id)

    def _advantages(self, x: dict[int, float], learns: Iterable[int], env_id: str | None) -> dict[int, float]:
        baselines = {pid: self.role_advantage.get(self._key(pid, env_id), self._first(pid)) for pid in x}
        for pid in learns:
            self.role_advantage[self._key(pid, env_id)] = (1 - self.tau) * baselines[pid] + self.tau * x[pid]
        return {pid: reward - baselines[pid] for pid, reward in x.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines."""
        return {"role_advantage": [[key, value] for key, value in self.role_advantage.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines."""
        pairs = state["role_advantage"]
        self.role_advantage = {tuple(key) if isinstance(key, list) else key: value for key, value in pairs}


class RoleAdvantageByEnvFormatter(RoleAdvantageFormatter):
    """``RoleAdvantageFormatter`` with separate baselines for every environment id.

    Args:
        default_role_adv: the baseline of a seat that is new in an environment: a number for all seats, or one
            by player id, where a missing seat starts at 0.
        tau: weight of the newest reward, 0 to 1.
        role_advantage: another name of ``default_role_adv``, which UnstableBaselines 0.1 uses.
    """

    def __init__(
        self,
        default_role_adv: float | Mapping[int, float] = 0.0,
        tau: float = 0.05,
        *,
        role_advantage: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__(tau=tau)
        self.default_role_adv = default_role_adv if role_advantage is None else role_advantage

    def _key(self, pid: int, env_id: str | None) -> Hashable:
        return env_id or "", pid

    def _first(self, pid: int) -> float:
        first = self.default_role_adv
        return first.get(pid, 0.0) if isinstance(first, Mapping) else first


class StepRewardTransform(RewardTransform, ABC):
    """Maps the reward of one step to a new reward."""

    @abstractmethod
    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the reward of ``trajectory.steps[step_index]``, given the reward before this transform."""


class ComposeStepRewardTransforms(ComposedTransforms[StepRewardTransform], StepRewardTransform):
    """Applies transforms one after the other; each receives the output of the previous one."""

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the step's reward after every transform."""
        for transform in self.transforms:
            base_reward = transform(trajectory, step_index, base_reward)
        return base_reward


class BonusOrPenalty(StepRewardTransform):
    """Adds ``reward`` to the steps that are well made, and ``penalty`` to the others."""

    def __init__(self, reward: float = 0.0, penalty: float = 0.0) -> None:
        self.reward = reward
        self.penalty = penalty

    @abstractmethod
    def is_well_made(self, step: Step) -> bool:
        """Return whether a step gets the bonus."""

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        """Return the reward plus the bonus or the penalty."""
        is_well_made = self.is_well_made(trajectory.steps[step_index])
        return base_reward + (self.reward if is_well_made else self.penalty)


class RewardForFormat(BonusOrPenalty):
    """Adds ``reward`` to each step with a well-formatted answer, and ``penalty`` to every other step.

    A step without feedback about its format, as those of programs are, counts as not well formatted.
    """

    def is_well_made(self, step: Step) -> bool:
        """Return whether the answer has the requested form."""
        return bool(step.info.get("format_feedback", {}).get("correct_answer_format"))


class PenaltyForInvalidMove(BonusOrPenalty):
    """Adds ``penalty`` to each step with an invalid move, and ``reward`` to every other step.

    A step without feedback about its move counts as valid, because games report only invalid moves.
    """

    def is_well_made(self, step: Step) -> bool:
        """Return whether the move was valid."""
        return not step.info.get("format_feedback", {}).get("invalid_move")


class RewardForReasoning(BonusOrPenalty):
    """Adds ``reward`` to each step whose model thought before it spoke and ended the thought, and ``penalty``
    to every other step. A thought without a word is none."""

    def is_well_made(self, step: Step) -> bool:
        """Return whether there is a thought that ended."""
        return bool(step.reasoning.strip() and step.info.get("reasoning", {}).get("ended", False))


def return_from(
    trajectory: Trajectory, step_index: int, reward: float, discount: float, factor: float = 1.0
) -> float:
    """Return what the player receives from a step on, where ``reward`` is that of the whole game.

    With the rewards r_k after the player's steps k = i, ..., T (``info["step_reward"]``), the return of step
    i is

        G_i = sum_k discount^(k - i) r_k

    (Sutton and Barto 2018, equation 3.8), each of them times ``factor``. What a player receives after
    another's move belongs to its own last step; see :class:`~sparring.envs.game_episode.GameEpisode`. The
    last step also has what the final transforms added, and the whole ``reward`` of a game that pays at its
    end alone. So with a discount of 1, all steps of such a game have ``reward``.
    """
    later = [step.info for step in trajectory.steps[step_index:]]
    pays = any("step_reward" in info for info in later)
    received: list[float] = [factor * info.get("step_reward", 0.0) for info in later]
    received[-1] += reward - factor * trajectory.final_reward if pays else reward
    total = 0.0
    for one in reversed(received):
        total = one + discount * total
    return total


class SamplingRewardTransform(RewardTransform, ABC):
    """Changes the advantages of a batch in place. It may leave out steps, but must not add any.

    The ``advantage`` of each step is its ``reward`` before the first of a buffer's transforms.
    """

    @abstractmethod
    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their new advantages."""


class ComposeSamplingRewardTransforms(ComposedTransforms[SamplingRewardTransform], SamplingRewardTransform):
    """Applies transforms one after the other."""

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps after every transform."""
        for transform in self.transforms:
            steps = transform(steps)
        return steps


class NormalizeRewards(SamplingRewardTransform):
    """Subtracts the batch's mean: a - mean, or with ``z_score`` (a - mean) / (std + 1e-8).

    ``std`` is the population standard deviation. Equal advantages become exactly 0, never NaN.
    """

    def __init__(self, z_score: bool = False) -> None:
        self.z_score = z_score

    def _group(self, step: Step) -> Hashable:
        return ""

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with normalised advantages."""
        for bucket in _buckets(steps, self._group):
            _normalize(bucket, self.z_score)
        return steps


class NormalizeRewardsByEnv(NormalizeRewards):
    """``NormalizeRewards`` within the steps of each environment id.

    UnstableBaselines 0.2.0 to 0.2.2 adds 1e-8 after the division, which gives NaN if all rewards are equal.
    """

    def _group(self, step: Step) -> Hashable:
        return step.env_id


class NormalizeRewardsByRole(NormalizeRewards):
    """``NormalizeRewards`` within the steps of each role: one seat of an environment, trained as one policy.

    After ``rewards.discount = 1``, which credits a turn with what its player receives from then on, it is the
    advantage of MARSHAL (Yuan et al. 2025, arXiv 2510.15414): A = R - mean(R), where R is the sum of a
    player's rewards from a turn on, and the mean is over all turns of all games in its role. Rewards are
    summed first and normalised once. MARSHAL's code subtracts means at several stages, the last one over
    distinct values; here there is the one of the paper.
    """

    def _group(self, step: Step) -> Hashable:
        return step.env_id, step.role_id, step.policy


class NormalizeRewardsByTurn(NormalizeRewards):
    """``NormalizeRewards`` within the answers of one turn of a game (``envs.answers_per_turn``).

    With ``z_score``, it is the advantage of AT-GRPO (Zhao et al. 2025, arXiv 2510.11062): answers are
    compared if they have the game, the role and the turn in common, and therefore the prompt. A single answer
    gets 0.
    """

    def _group(self, step: Step) -> Hashable:
        return step.info.get("rollout_id"), step.role_id, step.policy, step.info.get("turn")


class SamePromptBaseline(SamplingRewardTransform):
    """Subtracts a baseline of other episodes at the same prompt and in the same seat.

    Let n steps of other episodes share a step's ``prompt_token_ids``, with advantages so far that sum to S,
    and let m be the mean of the step's seat, (env_id, pid), over the batch's other episodes; only steps of
    the same policy count. The baseline is (S + k m) / (n + k) with k = ``SEAT_WEIGHT``: with many steps about
    their mean, as in RLOO (arXiv 2402.14740); with few it shrinks towards the seat's mean, because one or two
    rewards are as noisy as a single one.

    All steps of a game carry its final reward, so the whole episode (``info["rollout_id"]``) is left out and
    the baseline never depends on the step's own outcome. In the seat's mean each episode counts once. A step
    that cannot be compared with any other episode stays as it is.
    """

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their advantages less the baselines."""
        at_prompt: dict[int, tuple[float, int]] = {}
        for bucket in _buckets([step for step in steps if step.prompt_token_ids is not None], _prompt):
            at_prompt |= _rewards_of_others(bucket, once_per_episode=False)
        in_seat: dict[int, tuple[float, int]] = {}
        for bucket in _buckets(steps, lambda step: (step.policy, step.env_id, step.pid)):
            in_seat |= _rewards_of_others(bucket, once_per_episode=True)
        for step in steps:
            prompt_sum, prompt_count = at_prompt.get(id(step), (0.0, 0))
            seat_sum, seat_count = in_seat[id(step)]
            if seat_count:
                seat_mean = seat_sum / seat_count
                step.advantage -= (prompt_sum + SEAT_WEIGHT * seat_mean) / (prompt_count + SEAT_WEIGHT)
            elif prompt_count:
                step.advantage -= prompt_sum / prompt_count
        return steps


def _prompt(step: Step) -> Hashable:
    return step.policy, tuple(step.prompt_token_ids or ())


def _episode(step: Step) -> Hashable:
    return step.info.get("rollout_id") or id(step)


def _rewards_of_others(bucket: list[Step], once_per_episode: bool) -> dict[int, tuple[float, int]]:
    """Return sum and number of the rewards of other episodes' steps in ``bucket``, by ``id`` of the step."""
    episodes = _buckets(bucket, _episode)
    rewards = [[step.advantage for step in episode] for episode in episodes]
    if once_per_episode:
        rewards = [[math.fsum(values) / len(values)] for values in rewards]
    total = math.fsum(value for values in rewards for value in values)
    count = sum(map(len, rewards))
    return {
        id(step): (total - math.fsum(own), count - len(own))
        for episode, own in zip(episodes, rewards, strict=True)
        for step in episode
    }


def _buckets(steps: list[Step], key_of: Callable[[Step], Hashable]) -> list[list[Step]]:
    """Group steps by a key; groups and steps are in order of appearance."""
    buckets: dict[Hashable, list[Step]] = {}
    for step in steps:
        buckets.setdefault(key_of(step), []).append(step)
    return list(buckets.values())


def _normalize(steps: list[Step], z_score: bool) -> None:
    values = [step.advantage for step in steps]
    if not values or min(values) == max(values):
        # Set to 0 directly, because rounding in the mean would leave a tiny remainder.
        centred, scale = [0.0] * len(values), 1.0
    else:
        mean = math.fsum(values) / len(values)
        centred = [value - mean for value in values]
        std = math.sqrt(math.fsum(value * value for value in centred) / len(values))
        scale = std + STD_EPSILON if z_score else 1.0
    for step, value in zip(steps, centred, strict=True):
        step.advantage = value / scale


class CreditTransform(SamplingRewardTransform):
    """Gives drawn steps the advantages of a credit assigner.

    The steps of one game are one episode again, in which each role has the mean reward of its steps; a step
    keeps its difference from it. Sub-episodes are in one group only if they have the same parent. If a batch
    has only some games of a group, they are compared with each other alone.
    """

    def __init__(self, credit: CreditAssigner) -> None:
        self.credit = credit

    def __call__(self, steps: list[Step]) -> list[Step]:
        """Return the steps with their advantages."""
        played: dict[str, list[Step]] = {}
        for step in steps:
            played.setdefault(step.info.get("rollout_id") or str(id(step)), []).append(step)
        episodes = [_played_again(rollout_id, own) for rollout_id, own in played.items()]
        advantages = assigned(self.credit, [GenerateResult(episode) for episode in episodes])
        for episode, own in zip(episodes, played.values(), strict=True):
            for index, step in enumerate(own):
                difference = step.advantage - episode.rewards[step.role_id]
                step.advantage = advantages.get((episode.id, index), 0.0) + difference
        return steps

    def state_dict(self) -> dict[str, object]:
        """Return the credit assigner's state."""
        return state_of(self.credit)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the credit assigner's state."""
        self.credit.load_state_dict(state)


def _played_again(rollout_id: str, steps: list[Step]) -> Rollout:
    of_role: dict[str, list[float]] = {}
    for step in steps:
        of_role.setdefault(step.role_id, []).append(step.advantage)
    rewards = {role_id: sum(values) / len(values) for role_id, values in of_role.items()}
    first = steps[0]
    return Rollout(
        episode_type=first.env_id,
        id=rollout_id,
        meta={"group": (first.info.get("parent_id"), first.info.get("group"))},
        steps=[step.scored(rewards[step.role_id], step.info, step.env_id) for step in steps],
        rewards=rewards,
    )
