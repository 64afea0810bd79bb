"""Episode: a rollout protocol. Running one returns a GenerateResult, a tree of rollouts."""

import asyncio
import inspect
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from sparring.core.agents import seated
from sparring.core.arena import Arena
from sparring.core.client import ModelResponse
from sparring.core.current_episode import EpisodeContext, current_episode, inherit
from sparring.core.errors import TransientError
from sparring.core.messages import Messages
from sparring.core.own_code import awaitable, check_json, list_of, method_of, returned
from sparring.core.rubric import Rubric
from sparring.core.types import GenerateResult, Rollout, Step


@dataclass(frozen=True)
class Utterance:
    """A message in an episode, by a role or by the environment (author ``""``).

    ``to`` is the only role that hears it, or ``""`` for all roles. ``token_ids`` are those with which a model
    said it, if they are known.
    """

    author: str
    text: str
    to: str = ""
    token_ids: list[int] | None = None


@dataclass
class EpisodeState:
    """Mutable state of a rollout. It belongs to one execution and is discarded afterwards.

    ``roles`` are the roles that take turns, in episodes that set it.
    """

    trajectory: list[Step] = field(default_factory=list)
    current_actor: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    child_results: list[GenerateResult] = field(default_factory=list)
    transcript: list[Utterance] = field(default_factory=list)
    roles: tuple[str, ...] = ()

    def say(self, said: str | dict[str, str]) -> None:
        """Let the environment say one text to all roles, or one text to each; empty texts are skipped."""
        texts = {"": said} if isinstance(said, str) else said
        self.transcript += [Utterance("", text, to) for to, text in texts.items() if text]

    @property
    def turn(self) -> int:
        """Number of steps taken."""
        return len(self.trajectory)

    @property
    def last_step(self) -> Step | None:
        """The latest step, or ``None`` before the first."""
        return self.trajectory[-1] if self.trajectory else None

    @property
    def last_completion_text(self) -> str:
        """The latest answer, or an empty string before the first."""
        return self.trajectory[-1].completion_text if self.trajectory else ""


class Episode(ABC):
    """Abstract base of rollout logic. An instance holds no state of a run, because executions share it."""

    @property
    @abstractmethod
    def episode_type(self) -> str:
        """Unique name of this kind of episode."""

    @property
    @abstractmethod
    def rubric(self) -> Rubric:
        """The rubric that scores this episode."""

    @abstractmethod
    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Play: make model calls, append steps to the state's trajectory, run sub-episodes."""

    async def call_model(
        self,
        role_id: str,
        messages: Messages | str,
        arena: Arena,
        *,
        model: str | None = None,
        seed: int | None = None,
    ) -> ModelResponse:
        """Make a model call for a role."""
        return await arena.call_model(messages, role_id=role_id, model=model, seed=seed)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``rollout.extras``. Override to add episode-specific data."""
        return {}

    async def generate(
        self,
        arena: Arena,
        artifact: Any,
        meta: dict[str, Any] | None = None,
        is_trainable: bool = True,
    ) -> GenerateResult:
        """Play the episode, build its rollout and score it. Inside another episode it is a sub-episode and
        inherits from it. If ``is_trainable`` is false, its result is not trained on.

        Raises:
            EpisodeError: a method returned what it must not return. What a method raises passes.
            TransientError: the episode took longer than ``arena.episode_timeout``, not counting sub-episodes.
        """
        meta = inherit(meta)
        kind = returned(self.episode_type, str, method_of(self, "episode_type"))
        check_json(kind, method_of(self, "episode_type"))
        rollout = Rollout(
            episode_type=kind,
            artifact=artifact,
            meta=meta,
            id=meta.get("rollout_id") or uuid.uuid4().hex,
            agents=dict(seated.get()),
        )
        limit = asyncio.timeout(arena.episode_timeout)
        parent = current_episode.get()
        try:
            with parent.clock_stopped() if parent is not None else nullcontext():
                async with limit:
                    children = await self._fill(rollout, arena, limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TransientError(f"the episode took longer than {arena.episode_timeout:g} s") from error
        rollout.ended_at = time.time()
        return GenerateResult(rollout, children, is_trainable)

    async def _fill(self, rollout: Rollout, arena: Arena, limit: asyncio.Timeout) -> list[GenerateResult]:
        """Play and score the episode into ``rollout``; return the results of sub-episodes."""
        context = EpisodeContext(rollout.meta, rollout.id, rollout.meta.get("seed"), limit)
        outer = current_episode.set(context)
        try:
            playing = awaitable(self._rollout(arena, rollout.artifact), method_of(self, "rollout"))
            state = returned(await playing, EpisodeState, method_of(self, "rollout"))
            rollout.steps = list_of(Step, state.trajectory, "state.trajectory")
            children = list_of(GenerateResult, state.child_results, "state.child_results")
            rollout.extras = returned(self.get_extras(state), dict, method_of(self, "get_extras"))
            await returned(self.rubric, Rubric, method_of(self, "rubric")).score(rollout, arena)
        finally:
            context.limit = None
            current_episode.reset(outer)
        return children

    def _rollout(self, arena: Arena, artifact: Any) -> Awaitable[EpisodeState]:
        """Call ``rollout`` with a new state, if it takes one."""
        state = EpisodeState()
        if _takes(self.rollout, arena, artifact, state=state):
            return self.rollout(arena, artifact, state=state)
        if _takes(self.rollout, arena, artifact, state):
            return self.rollout(arena, artifact, state)
        return self.rollout(arena, artifact)


def _takes(function: Callable[..., object], *args: object, **kwargs: object) -> bool:
    """Return whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
