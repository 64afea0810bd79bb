"""EnvironmentGame: an Environment as a Game, whose answers are checked, and the objects that are open."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, get_args

from sparring.core import EpisodeError, TransientError
from sparring.core.concurrency import CallSlots
from sparring.core.current_episode import wait_for_slot
from sparring.core.errors import is_transient, shown
from sparring.core.own_code import (
    awaitable,
    check_json,
    is_from_outside,
    method_of,
    own_failure,
    returned,
    text_of,
)
from sparring.core.played import finite_reward
from sparring.envs.environment import End, Environment, Situation
from sparring.envs.game import Game
from sparring.envs.own_game import check_moves

Value = TypeVar("Value")
Make = Callable[[], Environment]


class EnvironmentGame(Game):
    """A game in an environment. Moves are kept until everyone who is to act has made one; ``settle`` then
    passes them on. An invalid move costs its player what ``invalid_rewards`` says, beyond what it earned."""

    def __init__(self, environment: Environment, env_id: str) -> None:
        super().__init__(env_id, environment.num_players)
        self.environment = environment
        self._total = dict.fromkeys(range(self.num_players), 0.0)
        self._paid = dict(self._total)
        self._ends: dict[int, End] = {}
        self._answers: dict[int, str] = {}
        self._now = Situation({})
        self._turn = 0

    async def start(self, seed: int) -> None:
        """Begin the game; a failure of the network is a TransientError."""
        self._take(await timed(self.environment, "reset", seed), "reset")

    async def settle(self) -> None:
        """Pass the moves on once all are made. Where several moved at once, nobody is at fault for an error,
        so it is an EpisodeError."""
        if self._answers.keys() != self._now.observations.keys():
            return
        answers, self._answers = self._answers, {}
        try:
            self._take(await timed(self.environment, "step", answers), "step")
        except BaseException as error:
            if is_from_outside(error) or len(answers) == 1 or isinstance(error, EpisodeError):
                raise
            raise EpisodeError(own_failure(error)) from error

    def acting(self) -> list[int]:
        return [player for player in self._now.observations if player not in self._answers]

    def turn_to(self, pid: int) -> None:
        self._turn = pid

    @property
    def current_pid(self) -> int:
        acting = self.acting()
        return self._turn if self._turn in acting else acting[0]

    def rules(self, pid: int) -> str:
        return text_of(self.environment.rules(pid), method_of(self.environment, "rules"))

    def observation(self, pid: int) -> str:
        return self._now.observations[pid]

    def legal_actions(self) -> list[str] | None:
        moves = self._now.moves.get(self.current_pid)
        return None if moves is None else list(moves)

    def apply(self, action: str) -> bool:
        self._answers[self.current_pid] = action
        return True

    def earned(self) -> dict[int, float]:
        paid, self._paid = self._paid, dict.fromkeys(self._total, 0.0)
        return paid

    def forfeit(self, pid: int, reason: str) -> None:
        super().forfeit(pid, reason)
        for player, reward in (self._verdict or {}).items():
            self._paid[player] += reward - self._total[player]

    @property
    def has_raised(self) -> bool:
        """Whether the environment raised on a move, so nobody knows what state it is in."""
        return self._broken

    def truncate(self) -> None:
        super().truncate()
        self._verdict = dict(self._total)

    def _finished(self) -> bool:
        return len(self._ends) == self.num_players

    def _own_rewards(self) -> dict[int, object]:
        return dict(self._total)

    def _own_info(self) -> dict[int, dict[str, Any]]:
        source = method_of(self.environment, "info")
        own: dict[int, dict[str, Any]] = returned(self.environment.info(), dict, source)
        check_json(own, f"what {source} returned")
        return {
            pid: {"truncated": self._ends.get(pid) == "truncated", **returned(own.get(pid, {}), dict, source)}
            for pid in range(self.num_players)
        }

    def _invalid_rewards(self, pid: int) -> dict[int, float]:
        added = self.environment.invalid_rewards(pid)
        if added is None:
            added = super()._invalid_rewards(pid)
        source = method_of(self.environment, "invalid_rewards")
        paid = self._by_player(added, source, lambda one: finite_reward(one, source))
        return {player: total + paid.get(player, 0.0) for player, total in self._total.items()}

    def _take(self, value: object, method: str) -> None:
        """Check what the environment answered, and go on from it."""
        source = method_of(self.environment, method)
        said = returned(value, Situation, source)
        observations = self._by_player(said.observations, source, lambda one: text_of(one, source))
        moves = self._by_player(said.moves, source, lambda one: _moves(one, source))
        rewards = self._by_player(said.rewards, source, lambda one: finite_reward(one, source))
        self._ends |= self._by_player(said.ends, source, lambda one: _end(one, source))
        for player, reward in rewards.items():
            self._total[player] += reward
            self._paid[player] += reward
        if not observations and not self._finished():
            left = min(self._total.keys() - self._ends.keys())
            raise EpisodeError(f"{source} lets nobody act, but it is not over for player {left}")
        for player, text in observations.items():
            if player in self._ends:
                raise EpisodeError(f"{source} lets player {player} act, for whom it is over")
            if not text.strip():
                raise EpisodeError(f"{source} shows player {player} an empty text")
            if self.environment.lists_moves and player not in moves:
                raise EpisodeError(f"{source} has no moves of player {player}, but lists_moves is true")
        self._now = Situation(observations, moves)

    def _by_player(self, value: object, source: str, checked: Callable[[Any], Value]) -> dict[int, Value]:
        table: dict[Any, Any] = returned(value, dict, source)
        for player in table:
            if player not in self._total:
                last = self.num_players - 1
                raise EpisodeError(f"{source} names {shown(player)}, which is no player of 0 to {last}")
        return {int(player): checked(one) for player, one in sorted(table.items())}


def _moves(value: object, source: str) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise EpisodeError(f"{source} has {shown(value)} for moves, not a list of texts")
    moves = [text_of(move, source) for move in value]
    check_moves(moves, source)
    return moves


def _end(value: object, source: str) -> End:
    for end in get_args(End):
        if value == end:
            return end  # type: ignore[no-any-return]
    raise EpisodeError(f'{source} ends with {shown(value)}; write "terminated" or "truncated"')


async def timed(environment: Environment, method: str, *args: Any) -> object:
    """Await a method of an environment within its time limit; if it takes longer, or the network fails, raise
    a TransientError."""
    source, limit = method_of(environment, method), environment.time_limit
    call: Awaitable[object] = awaitable(getattr(environment, method)(*args), source)
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            return await call
    except BaseException as error:
        if is_from_outside(error):  # also if the time was up at the same moment
            raise
        if clock.expired():
            raise TransientError(f"{source} took longer than {limit:g} s") from error
        if is_transient(error):
            raise TransientError(own_failure(error)) from error
        raise


UNLIMITED = 2**31


class Sessions:
    """The open objects of one environment in one event loop. They are shared by games one after the other,
    and closed when no game is left."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._idle: list[Environment] = []
        self._slots: CallSlots | None = None
        self.games = 0

    @asynccontextmanager
    async def lent(self, env_id: str) -> AsyncIterator[EnvironmentGame]:
        """Lend an object to a game; wait, with the episode's clock stopped, while as many as may be are in
        use."""
        self.games += 1
        try:
            async with self._slot():
                game, ended = EnvironmentGame(self._idle.pop() if self._idle else self._make(), env_id), False
                try:
                    yield game
                    ended = not game.has_raised
                finally:
                    if ended and self.games > 1:
                        self._idle.append(game.environment)
                    else:
                        await _close(game.environment)
        finally:
            try:
                while self._idle and self.games == 1:
                    async with AsyncExitStack() as stack:  # if one is cancelled, the others are still closed
                        for _ in self._idle:
                            stack.push_async_callback(self._close_idle)
            finally:
                self.games -= 1

    async def _close_idle(self) -> None:
        async with self._slot():
            if self._idle:
                await _close(self._idle.pop())

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold one of the objects that may be open at once."""
        if self._slots is None:
            first = self._make()
            self._slots = CallSlots(first.max_open or UNLIMITED)
            self._idle.append(first)
        await wait_for_slot(self._slots)
        try:
            yield
        finally:
            self._slots.release()


async def _close(environment: Environment) -> None:
    """Close an object; what goes wrong is a warning, because the game is over."""
    try:
        await timed(environment, "close")
    except BaseException as error:
        if is_from_outside(error):
            raise
        warnings.warn(own_failure(error), stacklevel=2)


_OPEN: dict[tuple[asyncio.AbstractEventLoop, str], Sessions] = {}
"""The sessions with games, by event loop and id."""


@asynccontextmanager
async def environment_game(env_id: str, seed: int, make: Make) -> AsyncIterator[EnvironmentGame]:
    """Begin a game in an environment, and leave it however the body ends."""
    key = asyncio.get_running_loop(), env_id
    sessions = _OPEN.setdefault(key, Sessions(make))
    try:
        async with sessions.lent(env_id) as game:
            await game.start(seed)
            yield game
    finally:
        if not sessions.games:
            _OPEN.pop(key, None)
