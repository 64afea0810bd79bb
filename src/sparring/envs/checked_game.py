"""CheckedGame: a game of a user's own, whose methods must return what they promise."""

from typing import Any, TypeVar

from sparring.core import EpisodeError
from sparring.core.errors import shown
from sparring.core.messages import check_text
from sparring.core.own_code import check_json, method_of, returned, truth
from sparring.envs.game import Game

Value = TypeVar("Value")


class CheckedGame(Game):
    """Passes every call on to ``game`` and checks the answer.

    Raises:
        EpisodeError: from every method whose answer is of the wrong kind; it names the method.
    """

    def __init__(self, game: Game, env_id: str, num_players: int) -> None:
        super().__init__(env_id, num_players)
        self.game = game

    @property
    def current_pid(self) -> int:
        """See ``Game``."""
        pid = self.game.current_pid
        if pid not in range(self.num_players):
            raise EpisodeError(
                f"{method_of(self.game, 'current_pid')} is {shown(pid)}, which is no player of "
                f"0 to {self.num_players - 1}"
            )
        return int(pid)

    def rules(self, pid: int) -> str:
        """See ``Game``."""
        return self._text("rules", self.game.rules(pid))

    def observation(self, pid: int) -> str:
        """See ``Game``."""
        return self._text("observation", self.game.observation(pid))

    def brief(self, pid: int) -> str:
        """See ``Game``."""
        is_own = type(self.game).brief is not Game.brief
        return self._text("brief" if is_own else "observation", self.game.brief(pid))

    def view(self, pid: int) -> str:
        """See ``Game``."""
        is_own = type(self.game).view is not Game.view
        return self._text("view" if is_own else "observation", self.game.view(pid))

    def legal_actions(self) -> list[str] | None:
        """See ``Game``."""
        actions = self.game.legal_actions()
        if actions is None:
            return None
        return [self._text("legal_actions", action) for action in self._kind("legal_actions", actions, list)]

    def apply(self, action: str) -> bool:
        """See ``Game``."""
        return self._truth("apply", self.game.apply(action))

    def normalise(self, action: str) -> str:
        """See ``Game``."""
        return self._text("normalise", self.game.normalise(action))

    @property
    def done(self) -> bool:
        """See ``Game``."""
        return self._truth("_finished", self.game.done)

    def invalid_rewards(self, pid: int) -> list[float]:
        """See ``Game``."""
        return self._kind("invalid_rewards", self.game.invalid_rewards(pid), list)

    def forfeit(self, pid: int, reason: str) -> None:
        """See ``Game``."""
        self.game.forfeit(pid, reason)

    def break_off(self, pid: int, error: BaseException) -> None:
        """See ``Game``."""
        self.game.break_off(pid, error)

    def truncate(self) -> None:
        """See ``Game``."""
        self.game.truncate()

    def rewards(self) -> dict[int, float]:
        """See ``Game``."""
        return self._kind("rewards", self.game.rewards(), dict)

    def game_info(self) -> dict[int, dict[str, Any]]:
        """See ``Game``."""
        info: dict[int, dict[str, Any]] = self._kind("game_info", self.game.game_info(), dict)
        check_json(info, f"what {method_of(self.game, 'game_info')} returned")
        return info

    def _finished(self) -> bool:
        return self.game.done

    def _own_rewards(self) -> dict[int, object]:
        return dict(self.game.rewards())

    def _kind(self, method: str, value: object, kind: type[Value]) -> Value:
        return returned(value, kind, method_of(self.game, method))

    def _text(self, method: str, value: object) -> str:
        text = self._kind(method, value, str)
        try:
            check_text(text)
        except ValueError as error:
            raise EpisodeError(f"{method_of(self.game, method)}: {error}") from error
        return text

    def _truth(self, method: str, value: object) -> bool:
        return truth(value, method_of(self.game, method))
