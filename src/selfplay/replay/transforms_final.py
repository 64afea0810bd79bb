"""Final-reward transforms: they map a game's final rewards to the rewards from which its steps start."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from selfplay.core import InputError
from selfplay.replay.transforms_base import ComposedTransforms, RewardTransform

Key = TypeVar("Key")


class FinalRewardTransform(RewardTransform, ABC):
    """Maps the rewards of all players of a game, by player id, to new rewards of the same players.

    A buffer adds one trajectory at a time. It passes the rewards of everybody who played, trained or not, and
    the trajectory's steps start from the new reward of its own player. A game of self-play therefore reaches
    a transform once for each trained player. A trajectory without ``final_rewards`` has only its own.
    """

    @abstractmethod
    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return the transformed rewards for the same players."""

    def for_player(self, x: dict[int, float], pid: int, env_id: str | None = None) -> dict[int, float]:
        """Return the transformed rewards, of which ``pid``'s is the one that is learned from.

        Buffers call this. A transform that remembers rewards of players overrides it to remember only that
        of ``pid``: then it counts a game once for each trained player, and opponents' rewards not at all.
        """
        return self(x, env_id)


class ComposeFinalRewardTransforms(ComposedTransforms[FinalRewardTransform], FinalRewardTransform):
    """Applies transforms one after the other."""

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        """Return ``x`` after every transform."""
        for transform in self.transforms:
            x = transform(x, env_id)
        return x

    def for_player(self, x: dict[int, float], pid: int, env_id: str | None = None) -> dict[int, float]:
        """Return ``x`` after every transform; see :meth:`FinalRewardTransform.for_player`."""
        for transform in self.transforms:
            x = transform.for_player(x, pid, env_id)
        return x


class WinDrawLossFormatter(FinalRewardTransform):
    """Compares the players' rewards: the best one becomes that of a win, every other one that of a loss.

    Players who share the best reward all win; if everybody has the same, it is a draw. A reward alone is
    compared with 0.
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


class _RoleBaselines(FinalRewardTransform, Generic[Key]):
    """Subtracts from each reward the baseline of its role, and moves it towards the reward of who learns."""

    role_advantage: dict[Key, float]

    def __init__(self, tau: float) -> None:
        if not 0.0 <= tau <= 1.0:
            raise InputError(
                "tau", f"{tau} is not between 0 and 1", "Give the weight of the newest reward, such as 0.05."
            )
        self.tau = tau

    @abstractmethod
    def _key(self, pid: int, env_id: str | None) -> Key:
        """Return the key of a role in ``role_advantage``."""

    @abstractmethod
    def _first(self, pid: int) -> float:
        """Return the baseline of a role that has none yet."""

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


class RoleAdvantageFormatter(_RoleBaselines[int]):
    """Subtracts from each reward a running mean of the earlier rewards of its seat.

    For a seat with baseline b and reward r the advantage is A = r - b, and then b <- (1 - tau) b + tau r.
    The baseline is read before it is updated, as in SPIRAL's code, so a reward never counts against itself.
    UnstableBaselines, from which the class has its name, updates first, which shrinks every advantage by
    the factor 1 - tau. In a buffer, only the trained player's reward updates a baseline; there, the
    opponents' do too.

    Args:
        role_advantage: initial baselines by player id (copied); a missing seat starts at 0.
        tau: weight of the newest reward, 0 to 1; the decay is 1 - tau. The default 0.05 is SPIRAL's decay of
            0.95. UnstableBaselines' value is 0.001, which needs about 1000 games to follow a change.

    Raises:
        InputError: ``tau`` is outside 0 to 1.
    """

    def __init__(self, role_advantage: Mapping[int, float] | None = None, tau: float = 0.05) -> None:
        super().__init__(tau)
        self.role_advantage = dict(role_advantage or {})

    def _key(self, pid: int, env_id: str | None) -> int:
        return pid

    def _first(self, pid: int) -> float:
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines by player id (as a string)."""
        return {"role_advantage": {str(pid): value for pid, value in self.role_advantage.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines."""
        self.role_advantage = {int(pid): value for pid, value in state["role_advantage"].items()}


class RoleAdvantageByEnvFormatter(_RoleBaselines[tuple[str, int]]):
    """``RoleAdvantageFormatter`` with separate baselines for every environment id.

    Args:
        default_role_adv: the baseline of a seat that is new in an environment: a number for all seats, or one
            by player id, where a missing seat starts at 0.
        tau: see ``RoleAdvantageFormatter``.
        role_advantage: another name of ``default_role_adv``, which UnstableBaselines 0.1 uses.

    Raises:
        InputError: ``tau`` is outside 0 to 1.
    """

    def __init__(
        self,
        default_role_adv: float | Mapping[int, float] = 0.0,
        tau: float = 0.05,
        *,
        role_advantage: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__(tau)
        self.default_role_adv = default_role_adv if role_advantage is None else role_advantage
        self.role_advantage = {}

    def _key(self, pid: int, env_id: str | None) -> tuple[str, int]:
        return env_id or "", pid

    def _first(self, pid: int) -> float:
        first = self.default_role_adv
        return first.get(pid, 0.0) if isinstance(first, Mapping) else first

    def state_dict(self) -> dict[str, Any]:
        """Return the baselines as a list of (environment id, player id, baseline)."""
        return {"role_advantage": [[env_id, pid, b] for (env_id, pid), b in self.role_advantage.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines."""
        self.role_advantage = {(env_id, pid): value for env_id, pid, value in state["role_advantage"]}
