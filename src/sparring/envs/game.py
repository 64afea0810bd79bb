"""Game: one game in progress, from any library. It is synchronous and cheap, and owns its randomness."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from sparring.core import EpisodeError
from sparring.core.errors import shown
from sparring.core.own_code import method_of, own_failure, returned
from sparring.core.played import finite_reward


class Game(ABC):
    """One game in progress of ``num_players`` seats, which are numbered from 0.

    ``possible_players`` are the possible numbers of players of a game of your own; the libraries know theirs.
    """

    possible_players: ClassVar[Sequence[int]] = (2,)

    def __init__(self, env_id: str, num_players: int) -> None:
        self.env_id = env_id
        self.num_players = num_players
        self._verdict: dict[int, float] | None = None
        self._verdict_info: dict[int, dict[str, Any]] = {}
        self._broken = False

    @property
    @abstractmethod
    def current_pid(self) -> int:
        """Player id of the player to move; undefined once ``done``."""

    @abstractmethod
    def rules(self, pid: int) -> str:
        """Return the text that introduces the game to ``pid``, constant during a game and, if possible, the
        same for every game."""

    @abstractmethod
    def observation(self, pid: int) -> str:
        """Return what ``pid``, the player to move, sees now, without the rules. It is never empty."""

    def brief(self, pid: int) -> str:
        """Like ``observation``, but only the position where it suffices, so equal positions read the same."""
        return self.observation(pid)

    def view(self, pid: int) -> str:
        """Like ``observation``, but only the position, drawn for a human reader, where it suffices."""
        return self.observation(pid)

    @abstractmethod
    def legal_actions(self) -> list[str] | None:
        """Return the names of the current player's legal moves; ``None`` if the game does not list them."""

    def acting(self) -> list[int]:
        """Return the players who move now, at once."""
        return [self.current_pid]

    def turn_to(self, pid: int) -> None:
        """Make one of those who move now the player to move."""
        return

    @abstractmethod
    def apply(self, action: str) -> bool:
        """Play ``action`` for the current player; return whether it was valid. The game's rules say what an
        invalid move causes."""

    def copy(self) -> "Game":
        """Return a copy that goes on by itself, with the same chance to come; an EpisodeError is raised where
        there can be none."""
        raise EpisodeError(f"{self.env_id} cannot be copied")

    async def settle(self) -> None:
        """Wait for what the last move causes, where that takes time."""
        return

    def earned(self) -> dict[int, float]:
        """Return what each player has earned since the last call, in games that pay on the way; else
        nothing. Final rewards include it."""
        return {}

    @abstractmethod
    def _finished(self) -> bool:
        """Return whether the game has ended by its own rules."""

    @abstractmethod
    def _own_rewards(self) -> dict[int, object]:
        """Return the rewards that the game itself gives at its end, unchecked."""

    def _own_info(self) -> dict[int, dict[str, Any]]:
        """Return what the game itself reports about each player at its end."""
        return {pid: {} for pid in range(self.num_players)}

    def _invalid_rewards(self, pid: int) -> dict[int, float]:
        """Return the rewards if an invalid move of ``pid`` ends the game: with two players -1 and +1, with
        more -1 for ``pid`` and 0 for the others, with one 0.

        A game that pays other rewards, or the same to all players, overrides this: nobody should gain by an
        invalid move.
        """
        if self.num_players == 1:
            return {0: 0.0}
        others = 1.0 if self.num_players == 2 else 0.0
        return {seat: -1.0 if seat == pid else others for seat in range(self.num_players)}

    def invalid_rewards(self, pid: int) -> list[float]:
        """Return the reward of every seat, in order, if an invalid move of ``pid`` ends the game."""
        return [*self._checked("_invalid_rewards", self._invalid_rewards(pid)).values()]

    def normalise(self, action: str) -> str:
        """Return ``action`` in the spelling of ``legal_actions``."""
        return action.strip()

    @property
    def done(self) -> bool:
        """Whether the game is over."""
        return self._verdict is not None or self._finished()

    def forfeit(self, pid: int, reason: str) -> None:
        """End the game at once because of an invalid move of ``pid``."""
        self._verdict = self._checked("_invalid_rewards", self._invalid_rewards(pid))
        self._verdict_info = {seat: {"reason": reason} for seat in range(self.num_players)}
        self._verdict_info[pid]["invalid_move"] = True

    def break_off(self, pid: int, error: BaseException) -> None:
        """End the game at once because it raised on or after a move of ``pid``, which then counts as invalid.

        The game itself is not queried any more. ``game_info`` of ``pid`` holds the type of the error under
        ``raised``.
        """
        kind = type(error.__cause__ or error).__name__
        self.forfeit(pid, f"the game failed on the move: {own_failure(error)}")
        self._verdict_info[pid]["raised"] = kind
        self._broken = True

    def truncate(self) -> None:
        """End the game at once as a draw (0 for every player), because it takes too long."""
        self._verdict = dict.fromkeys(range(self.num_players), 0.0)
        self._verdict_info = {
            seat: {"reason": "the turn limit was reached", "truncated": True}
            for seat in range(self.num_players)
        }

    def rewards(self) -> dict[int, float]:
        """Return the final reward of every player; raise an EpisodeError if one is not a finite number."""
        if self._verdict is not None:
            return dict(self._verdict)
        return self._checked("_own_rewards", self._own_rewards())

    def _checked(self, method: str, value: object) -> dict[int, float]:
        rewards = returned(value, dict, method_of(self, method))
        missing = set(range(self.num_players)) - set(rewards)
        if missing:
            raise EpisodeError(f"{self.env_id} gave no reward to player {min(missing)}")
        if unknown := [pid for pid in rewards if pid not in range(self.num_players)]:
            last = self.num_players - 1
            raise EpisodeError(f"{self.env_id} rewards {shown(unknown[0])}, no player of 0 to {last}")
        return {
            pid: finite_reward(rewards[pid], f"{self.env_id} for player {pid}")
            for pid in range(self.num_players)
        }

    def game_info(self) -> dict[int, dict[str, Any]]:
        """Return for every player ``invalid_move`` (bool), ``truncated`` (bool) and the game's own report."""
        own = {} if self._broken else returned(self._own_info(), dict, method_of(self, "_own_info"))
        return {
            pid: {
                "invalid_move": False,
                "truncated": False,
                **returned(own.get(pid, {}), dict, method_of(self, "_own_info")),
                **self._verdict_info.get(pid, {}),
            }
            for pid in range(self.num_players)
        }
