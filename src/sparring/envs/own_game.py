"""A game of your own: a subclass of Game in a file, whose id is ``my_game.py:MyGame``, and the checks of its
answers.

The class is called with the id, the number of players, the seed and its options:
``MyGame(env_id, num_players, seed)``.
"""

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from sparring.core import EpisodeError, InputError
from sparring.core.env_id import parts_of
from sparring.core.errors import shown
from sparring.core.own_code import check_json, method_of, own_class, own_code, returned, text_of, truth
from sparring.core.played import finite_reward
from sparring.envs.game import Game

Value = TypeVar("Value")


class CheckedGame(Game):
    """Passes every call on to ``game``; an answer of the wrong kind is an EpisodeError that names the
    method."""

    def __init__(self, game: Game, env_id: str, num_players: int) -> None:
        super().__init__(env_id, num_players)
        self.game = game

    @property
    def current_pid(self) -> int:
        pid = self.game.current_pid
        if pid not in range(self.num_players):
            raise EpisodeError(
                f"{method_of(self.game, 'current_pid')} is {shown(pid)}, which is no player of "
                f"0 to {self.num_players - 1}"
            )
        return int(pid)

    def rules(self, pid: int) -> str:
        return self._text("rules", self.game.rules(pid))

    def observation(self, pid: int) -> str:
        return self._text("observation", self.game.observation(pid))

    def brief(self, pid: int) -> str:
        is_own = type(self.game).brief is not Game.brief
        return self._text("brief" if is_own else "observation", self.game.brief(pid))

    def view(self, pid: int) -> str:
        is_own = type(self.game).view is not Game.view
        return self._text("view" if is_own else "observation", self.game.view(pid))

    def legal_actions(self) -> list[str] | None:
        actions = self.game.legal_actions()
        if actions is None:
            return None
        moves = [self._text("legal_actions", action) for action in self._kind("legal_actions", actions, list)]
        if not self.done:
            check_moves(moves, method_of(self.game, "legal_actions"))
        return moves

    def apply(self, action: str) -> bool:
        return self._truth("apply", self.game.apply(action))

    def normalise(self, action: str) -> str:
        return self._text("normalise", self.game.normalise(action))

    def earned(self) -> dict[int, float]:
        source, paid = method_of(self.game, "earned"), self._kind("earned", self.game.earned(), dict)
        for pid in paid:
            if pid not in range(self.num_players):
                raise EpisodeError(f"{source} pays {shown(pid)}, no player of 0 to {self.num_players - 1}")
        return {int(pid): finite_reward(paid[pid], f"{source} for player {pid}") for pid in paid}

    @property
    def done(self) -> bool:
        return self._truth("_finished", self.game.done)

    def invalid_rewards(self, pid: int) -> list[float]:
        return self._kind("invalid_rewards", self.game.invalid_rewards(pid), list)

    def forfeit(self, pid: int, reason: str) -> None:
        self.game.forfeit(pid, reason)

    def break_off(self, pid: int, error: BaseException) -> None:
        self.game.break_off(pid, error)

    def truncate(self) -> None:
        self.game.truncate()

    def rewards(self) -> dict[int, float]:
        return self._kind("rewards", self.game.rewards(), dict)

    def game_info(self) -> dict[int, dict[str, Any]]:
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
        return text_of(value, method_of(self.game, method))

    def _truth(self, method: str, value: object) -> bool:
        return truth(value, method_of(self.game, method))


def check_moves(moves: list[str], source: str) -> None:
    """Raise an EpisodeError unless there is a move, moves differ, and an answer can be each of them."""
    seen = set[str]()
    if not moves:
        raise EpisodeError(f"{source} returned no move, but the game is not over")
    for move in moves:
        if not move or move != move.strip():
            raise EpisodeError(
                f"{source} returned {shown(move)}, which no answer can be: it has no spaces around it"
            )
        if move in seen:
            raise EpisodeError(f"{source} returned {shown(move)} twice")
        seen.add(move)


def possible_players(env_id: str) -> list[int]:
    """Return the possible numbers of players; raise an InputError if the game cannot be started."""
    return list(_checked_class(env_id).possible_players)


def start_game(env_id: str, num_players: int, seed: int) -> Game:
    """Start a game of your own."""
    kind, (_, options) = _checked_class(env_id), parts_of(env_id)
    game = returned(kind(env_id, num_players, seed, **options), Game, kind.__name__)  # type: ignore[type-abstract]
    return CheckedGame(game, env_id, num_players)


def tells_moves(env_id: str) -> bool:
    """Return whether the game lists its legal moves when it begins."""
    return start_game(env_id, possible_players(env_id)[0], 0).legal_actions() is not None


@lru_cache(maxsize=64)
def _checked_class(env_id: str) -> Any:
    """Import the class and start a game of each number of players; an InputError says what is wrong."""
    bare, options = parts_of(env_id)
    kind = own_class(bare, Game, "env.id")
    try:
        inspect.signature(kind).bind(env_id, 2, 0, **options)
    except TypeError as error:
        added = ", and its options as further arguments" if options else ""
        raise InputError(
            "env.id",
            f"{kind.__name__} cannot be started ({error})",
            f"Write it as __init__(self, env_id, num_players, seed){added}",
        ) from error
    possible = kind.possible_players
    numbers = isinstance(possible, Sequence) and [isinstance(one, int) and one > 0 for one in possible]
    if not numbers or not all(numbers):
        problem = f"the possible_players of {kind.__name__} are {shown(possible)}, not numbers from 1"
        raise InputError("env.id", problem, "Write it as possible_players = (2,)")
    for num_players in possible:
        with own_code(f"{kind.__name__} cannot be started with {num_players} players", "env.id"):
            game = kind(env_id, num_players, 0, **options)
        if not hasattr(game, "_verdict"):
            fix = "Call super().__init__(env_id, num_players) in it"
            raise InputError("env.id", f"{kind.__name__}.__init__ leaves out that of Game", fix)
    return kind
