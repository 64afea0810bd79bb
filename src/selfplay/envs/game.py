"""Game: one game in progress, whatever library it comes from. Synchronous, cheap, owner of its randomness."""

from abc import ABC, abstractmethod
from typing import Any

from selfplay.core import EpisodeError
from selfplay.core.rubric import finite_reward


class Game(ABC):
    """One game in progress.

    Args:
        env_id: the id it was made from.
        num_players: seats, numbered from 0.
    """

    def __init__(self, env_id: str, num_players: int) -> None:
        self.env_id = env_id
        self.num_players = num_players
        self._verdict: dict[int, float] | None = None
        self._verdict_info: dict[int, dict[str, Any]] = {}

    @property
    @abstractmethod
    def current_pid(self) -> int:
        """Whose turn it is. Meaningless once ``done``."""

    @abstractmethod
    def rules(self, pid: int) -> str:
        """What ``pid`` is told once: the same text all game long (and for every game, where that can be)."""

    @abstractmethod
    def observation(self, pid: int) -> str:
        """What ``pid``, whose turn it is, reads now. It does not repeat the rules and is never empty."""

    def brief(self, pid: int) -> str:
        """Like ``observation``, but only the position where that says everything: equal ones read alike."""
        return self.observation(pid)

    def view(self, pid: int) -> str:
        """Like ``observation``, but only the position, as a person likes to see it, where that suffices."""
        return self.observation(pid)

    @abstractmethod
    def legal_actions(self) -> list[str] | None:
        """Names of the current player's legal moves; ``None`` where the game does not tell them."""

    @abstractmethod
    def apply(self, action: str) -> bool:
        """Play ``action`` for the current player; return whether it was valid.

        What an invalid move does is the game's own rule: the player is asked again, is out, or has lost.
        """

    @abstractmethod
    def _finished(self) -> bool:
        """Whether the game reached an end of its own."""

    @abstractmethod
    def _own_rewards(self) -> dict[int, object]:
        """The rewards that the game itself gives at its end, as they come."""

    def _own_info(self) -> dict[int, dict[str, Any]]:
        """What the game itself tells of each player at its end."""
        return {pid: {} for pid in range(self.num_players)}

    def _invalid_rewards(self, pid: int) -> dict[int, float]:
        """Rewards when an invalid move of ``pid`` ends the game.

        Two players: -1 and +1. More: -1 for ``pid`` and 0 for the others. One: 0.
        """
        if self.num_players == 1:
            return {0: 0.0}
        others = 1.0 if self.num_players == 2 else 0.0
        return {seat: -1.0 if seat == pid else others for seat in range(self.num_players)}

    def normalise(self, action: str) -> str:
        """Return ``action`` spelled as ``legal_actions`` would spell it."""
        return action.strip()

    @property
    def done(self) -> bool:
        """Whether the game is over."""
        return self._verdict is not None or self._finished()

    def forfeit(self, pid: int, reason: str) -> None:
        """End the game at once because of an invalid move of ``pid``."""
        self._verdict = self._invalid_rewards(pid)
        self._verdict_info = {seat: {"reason": reason} for seat in range(self.num_players)}
        self._verdict_info[pid]["invalid_move"] = True

    def truncate(self) -> None:
        """End the game at once as a draw (0 for everyone), because it takes too long."""
        self._verdict = dict.fromkeys(range(self.num_players), 0.0)
        self._verdict_info = {
            seat: {"reason": "the turn limit was reached", "truncated": True}
            for seat in range(self.num_players)
        }

    def rewards(self) -> dict[int, float]:
        """Return the final reward of every player.

        Raises:
            EpisodeError: the game is not over, or gives something that is not a finite number (game libraries
                do: strings, ``None``).
        """
        if self._verdict is not None:
            return dict(self._verdict)
        rewards = self._own_rewards()
        missing = set(range(self.num_players)) - set(rewards)
        if missing:
            raise EpisodeError(f"{self.env_id} gave no reward to player {min(missing)}")
        return {
            pid: finite_reward(rewards[pid], f"{self.env_id} for player {pid}")
            for pid in range(self.num_players)
        }

    def game_info(self) -> dict[int, dict[str, Any]]:
        """Return for every player ``invalid_move`` (bool), ``truncated`` (bool) and what the game tells."""
        own = self._own_info()
        return {
            pid: {
                "invalid_move": False,
                "truncated": False,
                **own.get(pid, {}),
                **self._verdict_info.get(pid, {}),
            }
            for pid in range(self.num_players)
        }
