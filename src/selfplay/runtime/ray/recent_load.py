"""RecentLoad: how much of the last seconds an engine had nothing to do."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

WINDOW_SECONDS = 5.0


class RecentLoad:
    """How much of the last five seconds, or of the time since the start if that is less, was idle."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.under_way = 0
        self._clock = clock
        self._started = self._changed = clock()
        self._idle: deque[tuple[float, float]] = deque()
        self._tokens: deque[tuple[float, int]] = deque([(self._started, 0)])

    @contextmanager
    def request(self) -> Iterator[None]:
        """Run the body as a request that is under way."""
        if self.under_way == 0:
            self._idle.append((self._changed, self._clock()))
            self._forget()
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._changed = self._clock()

    def idle_share(self) -> float:
        """Share of the window in which no request was under way, from 0 to 1."""
        now = self._clock()
        first = max(self._started, now - WINDOW_SECONDS)
        idle = [*self._idle, (self._changed, now)] if self.under_way == 0 else self._idle
        seconds = sum(max(0.0, end - max(begin, first)) for begin, end in idle)
        return seconds / (now - first) if now > first else 1.0

    def tokens_per_second(self, generated: int) -> float:
        """Tokens a second of an engine that has generated so many in all.

        Over the last five seconds, or since this was asked before if that is longer.
        """
        now = self._clock()
        self._tokens.append((now, generated))
        self._forget()
        before, count = self._tokens[0]
        return (generated - count) / (now - before) if now > before else 0.0

    def _forget(self) -> None:
        """Drop what is older than the window; the newest figure from before it is where it begins."""
        first = self._clock() - WINDOW_SECONDS
        while self._idle and self._idle[0][1] < first:
            self._idle.popleft()
        while len(self._tokens) > 1 and self._tokens[1][0] <= first:
            self._tokens.popleft()
