"""Environment: what answers to moves after a while, such as a server or a library, and may pay on the way."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from sparring.core import EpisodeError
from sparring.core.own_code import own_failure, own_function

T = TypeVar("T")

End = Literal["terminated", "truncated"]
"""How an environment ended for a player: by its own rules, or because it took too long."""


@dataclass(frozen=True)
class Situation:
    """What an environment answers to ``reset`` and ``step``. Players are numbered from 0.

    ``observations`` are what each player who is to act now sees; they all act at once. ``moves`` are the
    legal moves of each of them, if the environment lists them. ``rewards`` are what players have earned since
    the last answer, who acted or not. ``ends`` names the players for whom it is over from now on, and how; it
    is over for all when nobody is left.
    """

    observations: Mapping[int, str]
    moves: Mapping[int, Sequence[str]] = field(default_factory=dict)
    rewards: Mapping[int, float] = field(default_factory=dict)
    ends: Mapping[int, End] = field(default_factory=dict)


def end_of(terminated: object, truncated: object) -> End | None:
    """Return how it ended for a player, by the two flags of many libraries; ``None`` if it goes on."""
    return "terminated" if terminated else "truncated" if truncated else None


@contextmanager
def reading() -> Iterator[None]:
    """Read what an environment shows after a move. What this raises is not the move's fault, so it is an
    EpisodeError."""
    try:
        yield
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(own_failure(error)) from error


def own_words(path: str) -> Callable[..., str] | None:
    """Return the function (``my_words.py:board``) that says what a player reads; ``None`` without a path."""
    return own_function(path, "env.options.render_text") if path else None


def with_moves(text: str, moves: Sequence[str]) -> str:
    """Return a text with the legal moves below it, if they are listed."""
    return f"{text}\nLegal moves: {', '.join(moves)}." if moves else text


class Environment(ABC):
    """One game at a time, for ``num_players`` players. ``reset`` begins the next one.

    The class is called with the ``options`` of the configuration, and opens nothing yet: a server, a process
    or a file is opened by ``reset``. ``close`` is awaited once for every object that was to be reset, also if
    the game failed, was forfeited or was cancelled. A player's reward is the sum of what it was paid.

    An object may be used for the next game, also after a game that was forfeited or cut short; one that
    raised, or whose game failed, is closed. A ``ConnectionError`` or a ``TimeoutError`` makes the whole game
    begin again in another object.

    ``lists_moves``: every situation has the legal moves of whoever is to act. ``time_limit``: seconds that
    each call may take. ``max_open``: how many objects are open at once in a process, ``None`` for as many as
    there are games. ``invalid_reward``: what an invalid move, which ends the game, pays its player on top of
    what was earned. ``None`` is -1, and 1 to the other of two; with one player it is 0. Where legal moves can
    lose more than that, as where each step has a price, write less than the least that they can still pay.
    """

    num_players: int = 2
    lists_moves: bool = False
    time_limit: float = 60.0
    max_open: int | None = None
    invalid_reward: float | None = None

    @abstractmethod
    async def reset(self, seed: int) -> Situation:
        """Begin a game, of which ``seed`` decides all chance."""

    @abstractmethod
    async def step(self, answers: dict[int, str]) -> Situation:
        """Take the moves of all players who were to act."""

    async def close(self) -> None:
        """Release what ``reset`` has opened."""
        return

    @abstractmethod
    def rules(self, player: int) -> str:
        """Return the text that introduces the game to ``player``; asked after ``reset``."""

    def invalid_rewards(self, player: int) -> dict[int, float] | None:
        """Return what an invalid move of ``player``, which ends the game, pays on top of what was earned: by
        default ``invalid_reward``; see there for ``None``."""
        return None if self.invalid_reward is None else {player: self.invalid_reward}

    def info(self) -> dict[int, dict[str, Any]]:
        """Return what to report about each player at the end."""
        return {}


class BlockingEnvironment(Environment):
    """An environment of a library that is not asynchronous: ``begin``, ``play`` and ``end`` take the places
    of ``reset``, ``step`` and ``close``. With ``in_thread`` they run in a thread of the object's own, one
    after the other, so a slow one holds back no other game; ``max_open`` is the number of threads."""

    in_thread: bool = False

    @abstractmethod
    def begin(self, seed: int) -> Situation:
        """Begin a game."""

    @abstractmethod
    def play(self, answers: dict[int, str]) -> Situation:
        """Take the moves of all players who were to act."""

    def end(self) -> None:
        """Release what ``begin`` has opened."""
        return

    async def reset(self, seed: int) -> Situation:
        """Begin a game; see ``begin``."""
        return await self._run(self.begin, seed) if self.in_thread else self.begin(seed)

    async def step(self, answers: dict[int, str]) -> Situation:
        """Take moves; see ``play``."""
        return await self._run(self.play, answers) if self.in_thread else self.play(answers)

    async def close(self) -> None:
        """Release everything; see ``end``."""
        if not self.in_thread:
            self.end()
            return
        # A call that was given up still runs. The end comes after it, also if nobody waits so long.
        ended = self._run(self._thread.submit(self.end).result)
        self._thread.shutdown(wait=False)
        await ended

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def _run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args))
