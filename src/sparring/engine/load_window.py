"""LoadWindow: how busy an engine was in the last seconds."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

WINDOW_SECONDS = 5.0


class LoadWindow:
    """The load over the last five seconds, or over the time since the start if that is less."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.under_way = 0
        self._clock = clock
        self._started = self._changed = clock()
        self._idle: deque[tuple[float, float]] = deque()
        self._tokens: deque[tuple[float, int]] = deque([(self._started, 0)])

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count the body as a request in progress."""
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
        """Return the share of the window in which no request was in progress, from 0 to 1."""
        now = self._clock()
        first = max(self._started, now - WINDOW_SECONDS)
        idle = [*self._idle, (self._changed, now)] if self.under_way == 0 else self._idle
        seconds = sum(max(0.0, end - max(begin, first)) for begin, end in idle)
        return seconds / (now - first) if now > first else 1.0

    def tokens_per_second(self, generated: int) -> float:
        """Return the tokens per second of an engine that has generated ``generated`` tokens in all.

        The rate is over the last five seconds, or since the previous call if that is longer ago.
        """
        now = self._clock()
        self._tokens.append((now, generated))
        self._forget()
        before, count = self._tokens[0]
        return (generated - count) / (now - before) if now > before else 0.0

    def _forget(self) -> None:
        """Drop entries older than the window; the newest count from before it marks its beginning."""
        first = self._clock() - WINDOW_SECONDS
        while self._idle and self._idle[0][1] < first:
            self._idle.popleft()
        while len(self._tokens) > 1 and self._tokens[1][0] <= first:
            self._tokens.popleft()
