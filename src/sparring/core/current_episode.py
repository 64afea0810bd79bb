"""The current episode: the source of the seeds and policy versions of nested calls.

An asyncio task copies its context, so everything that an episode awaits or starts sees the episode it belongs
to.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sparring.core.concurrency import CallSlots
from sparring.core.seeds import derive_seed


@dataclass(slots=True, eq=False, weakref_slot=True)
class EpisodeContext:
    """One execution of an episode: its rollout's ``meta``, its node in the seed tree, and its time limit.

    Calls and sub-episodes are numbered in the order in which they start. Seeds are therefore repeatable only
    if that order is; run concurrent chains of calls as sub-episodes.
    """

    meta: dict[str, Any]
    rollout_id: str
    seed: int | None
    limit: asyncio.Timeout | None = None
    _calls: int = 0
    _children: int = 0
    _clock_stops: int = 0
    _seconds_left: float = 0.0

    def next_call_seed(self) -> int | None:
        """Return the seed of the episode's next model call; ``None`` if the episode has no seed."""
        number, self._calls = self._calls, self._calls + 1
        return None if self.seed is None else derive_seed(self.seed, "call", number)

    def next_child_meta(self) -> dict[str, Any]:
        """Return what the next sub-episode inherits: policy version, step, parent, its own seed and id."""
        number, self._children = self._children, self._children + 1
        inherited: dict[str, Any] = {
            key: self.meta[key] for key in ("policy_version", "step") if key in self.meta
        }
        inherited |= {"parent_id": self.rollout_id, "rollout_id": f"{self.rollout_id}.{number}"}
        if self.seed is not None:
            inherited["seed"] = derive_seed(self.seed, "child", number)
        return inherited

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Stop the episode's clock, for example while it waits for sub-episodes with their own limits."""
        self._clock_stops += 1
        if self._clock_stops == 1:
            self._stop_clock()
        try:
            yield
        finally:
            self._clock_stops -= 1
            if self._clock_stops == 0:
                self._start_clock()

    def _stop_clock(self) -> None:
        deadline = self.limit.when() if self.limit is not None else None
        if self.limit is not None and deadline is not None and not self.limit.expired():
            self._seconds_left = deadline - asyncio.get_running_loop().time()
            self.limit.reschedule(None)

    def _start_clock(self) -> None:
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + self._seconds_left)


current_episode: ContextVar[EpisodeContext | None] = ContextVar("current_episode", default=None)


episode_counts: ContextVar[Counter[str] | None] = ContextVar("episode_counts", default=None)
"""Where the episodes that are ``started`` from now on are counted, sub-episodes included."""


def count_started(episodes: int) -> None:
    """Count episodes as started; further attempts at one do not count."""
    if (counts := episode_counts.get()) is not None:
        counts["started"] += episodes


def inherit(meta: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy of ``meta``. Inside an episode, add what a sub-episode inherits."""
    own = dict(meta or {})
    parent = current_episode.get()
    if parent is None or "parent_id" in own:
        return own
    return parent.next_child_meta() | own


async def wait_for_slot(slots: CallSlots) -> None:
    """Wait for a slot with the episode's clock stopped, because the episode does not cause this wait."""
    episode = current_episode.get()
    with episode.clock_stopped() if episode is not None else nullcontext():
        await slots.acquire()
