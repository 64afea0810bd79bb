"""The episode that is being played right now: where seeds and versions of nested calls come from.

A task of asyncio copies its context, so whatever an episode awaits or starts, however deep, sees the episode
it belongs to. Authors of episodes need not hand seeds and versions on.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from selfplay.core.seeds import derive_seed


@dataclass
class EpisodeContext:
    """One execution of an episode.

    ``meta`` is its rollout's; ``seed`` is its place in the seed tree. Calls and sub-episodes are numbered in
    the order in which they are started.
    """

    meta: dict[str, Any]
    rollout_id: str
    seed: int | None
    _calls: "count[int]" = field(default_factory=count)
    _children: "count[int]" = field(default_factory=count)

    def next_call_seed(self) -> int | None:
        """The seed of the episode's next model call; ``None`` if the episode has none."""
        number = next(self._calls)
        return None if self.seed is None else derive_seed(self.seed, "call", number)

    def next_child_meta(self) -> dict[str, Any]:
        """What the next sub-episode inherits: policy version, a seed and an id of its own, its parent."""
        number = next(self._children)
        inherited: dict[str, Any] = {
            key: self.meta[key] for key in ("policy_version", "step") if key in self.meta
        }
        inherited |= {"parent_id": self.rollout_id, "rollout_id": f"{self.rollout_id}.{number}"}
        if self.seed is not None:
            inherited["seed"] = derive_seed(self.seed, "child", number)
        return inherited


current_episode: ContextVar[EpisodeContext | None] = ContextVar("current_episode", default=None)
