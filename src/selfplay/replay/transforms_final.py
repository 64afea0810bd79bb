"""Final-reward transforms: they map a game's final rewards to the rewards from which its steps start."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from selfplay.core import InputError
from selfplay.replay.transforms_base import ComposedTransforms, RewardTransform


class FinalRewardTransform(RewardTransform, ABC):
    """Maps rewards by player id to new rewards by player id.

    Buffers add one player's trajectory at a time and pass only that player's reward, so each seat of a game
    reaches the transform once.
    """

    @abstractmethod
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the transformed rewards for the same players."""


class ComposeFinalRewardTransforms(ComposedTransforms[FinalRewardTransform], FinalRewardTransform):
    """Applies transforms one after the other."""

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return ``x`` after every transform."""
        for transform in self.transforms:
            x = transform(x, env_id)
        return x


class WinDrawLossFormatter(FinalRewardTransform):
    """Replaces a score by the reward of a win (above 0), a draw (0) or a loss (below 0)."""

    def __init__(self, win_reward: float = 1.0, draw_reward: float = 0.0, loss_reward: float = -1.0) -> None:
        self.win_reward = win_reward
        self.draw_reward = draw_reward
        self.loss_reward = loss_reward

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the win, draw or loss reward of every player."""
        return {pid: self._reward(score) for pid, score in x.items()}

    def _reward(self, score: float) -> float:
        if score > 0:
            return self.win_reward
        return self.loss_reward if score < 0 else self.draw_reward


class DivideByGameRange(FinalRewardTransform):
    """Divides rewards by half the range of their game's rewards.

    Constants in units of reward, such as the weight of a regulariser, then mean the same in all games.

    Args:
        scale_of: half the range of each environment, by its id; 1 for an environment that is not in it.
    """

    def __init__(self, scale_of: Mapping[str, float]) -> None:
        self.scale_of = dict(scale_of)

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return every player's reward in units of half the range."""
        scale = self.scale_of.get(env_id or "", 1.0)
        return {pid: reward / scale for pid, reward in x.items()}


class RoleAdvantageFormatter(FinalRewardTransform):
    """Subtracts from each reward a running mean of the earlier rewards of its seat.

    For a seat with baseline b and reward r the advantage is A = r - b, and then b <- (1 - tau) b + tau r.
    The baseline is read before it is updated, as in SPIRAL's code, so a reward never counts against itself.
    UnstableBaselines, from which the class has its name, updates first, which shrinks every advantage by
    the factor 1 - tau.

    Args:
        role_advantage: initial baselines by player id (copied); a missing seat starts at 0.
        tau: weight of the newest reward, 0 to 1; the decay is 1 - tau. The default 0.05 is SPIRAL's decay of
            0.95. UnstableBaselines' value is 0.001, which needs about 1000 games to follow a change.

    Raises:
        InputError: ``tau`` is outside 0 to 1.
    """

    def __init__(self, role_advantage: dict[int, float] | None = None, tau: float = 0.05) -> None:
        self.role_advantage = dict(role_advantage or {})
        self.tau = _checked_tau(tau)

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return each player's advantage over its seat's baseline, then update the baselines."""
        advantages = {}
        for pid, reward in x.items():
            baseline = self.role_advantage.get(pid, 0.0)
            advantages[pid] = reward - baseline
            self.role_advantage[pid] = (1 - self.tau) * baseline + self.tau * reward
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines by player id (as a string)."""
        return {"role_advantage": {str(pid): value for pid, value in self.role_advantage.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines."""
        self.role_advantage = {int(pid): value for pid, value in state["role_advantage"].items()}


class RoleAdvantageByEnvFormatter(FinalRewardTransform):
    """``RoleAdvantageFormatter`` with separate baselines for every environment id.

    Args:
        default_role_adv: the baseline of a seat that is new in an environment.
        tau: see ``RoleAdvantageFormatter``.

    Raises:
        InputError: ``tau`` is outside 0 to 1.
    """

    def __init__(self, default_role_adv: float = 0.0, tau: float = 0.05) -> None:
        self.default_role_adv = default_role_adv
        self.tau = _checked_tau(tau)
        self.role_advantage: dict[tuple[str, int], float] = {}

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return each player's advantage over its baseline in ``env_id``, then update the baselines."""
        advantages = {}
        for pid, reward in x.items():
            key = (env_id or "", pid)
            baseline = self.role_advantage.get(key, self.default_role_adv)
            advantages[pid] = reward - baseline
            self.role_advantage[key] = (1 - self.tau) * baseline + self.tau * reward
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines as a list of (environment id, player id, baseline)."""
        return {"role_advantage": [[env_id, pid, b] for (env_id, pid), b in self.role_advantage.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines."""
        self.role_advantage = {(env_id, pid): value for env_id, pid, value in state["role_advantage"]}


def _checked_tau(tau: float) -> float:
    if not 0.0 <= tau <= 1.0:
        raise InputError(
            "tau", f"{tau} is not between 0 and 1", "Give the weight of the newest reward, such as 0.05."
        )
    return tau
