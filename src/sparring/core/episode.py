"""Episode, a rollout protocol, and Rubric, its reward functions. Running one returns a tree of rollouts."""

import asyncio
import inspect
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from sparring.core.arena import Arena
from sparring.core.client import ModelResponse
from sparring.core.current_episode import EpisodeContext, current_episode, inherit
from sparring.core.errors import EpisodeError, TransientError, shown
from sparring.core.messages import Messages
from sparring.core.own_code import awaitable, check_json, list_of, method_of, returned
from sparring.core.played import check_rewards, finite_reward, is_bounded
from sparring.core.types import GenerateResult, Rollout, Step, seated

RewardFn = Callable[[Rollout, Arena], dict[str, float] | Awaitable[dict[str, float]]]


class Rubric:
    """A weighted sum of reward functions, each of which returns rewards by role id.

    A function of weight 0 is a metric: it changes only ``rollout.metrics``, and its keys may be any texts.
    """

    def __init__(self, funcs: list[RewardFn], weights: list[float] | None = None) -> None:
        weights = [1.0] * len(funcs) if weights is None else weights
        if len(weights) != len(funcs):
            raise ValueError(f"{len(funcs)} reward functions but {len(weights)} weights")
        for number, func in enumerate(funcs):
            if not callable(func):
                raise ValueError(f"reward function {number} is {shown(func)}, which is not callable")
        for weight in weights:
            if not is_bounded(weight):
                raise ValueError(f"the weight {shown(weight)} is not a finite number")
        self.funcs = funcs
        self.weights = weights
        self.names = _distinct([getattr(func, "__name__", type(func).__name__) for func in funcs])

    async def score(self, rollout: Rollout, arena: Arena) -> None:
        """Set ``rollout.rewards``, ``rollout.metrics`` and every ``step.reward``, in place.

        The metric of a function and role is ``FUNCTION/ROLE``; the second function of a name is
        ``FUNCTION-2``. Raises EpisodeError if a function returned no dictionary of finite numbers, a reward
        is for a role that the arena does not have, or a role that acted got none.
        """
        rewards: dict[str, float] = {}
        for func, weight, name in zip(self.funcs, self.weights, self.names, strict=True):
            scored = func(rollout, arena)
            values = await scored if inspect.isawaitable(scored) else scored
            source = f"reward function {name}"
            for key, value in returned(values, dict, source).items():
                if not isinstance(key, str):
                    raise EpisodeError(f"{source} has the key {shown(key)}, which is not a text")
                rollout.metrics[f"{name}/{key}"] = finite_reward(value, f"{source} for {key}")
            if weight:
                _check_roles(name, values, rollout, arena)
                for role_id, value in values.items():
                    rewards[role_id] = rewards.get(role_id, 0.0) + weight * float(value)
        check_rewards(rewards, rollout.steps)
        rollout.rewards = rewards
        for step in rollout.steps:
            step.reward = rewards[step.role_id]


def _check_roles(name: str, values: dict[str, float], rollout: Rollout, arena: Arena) -> None:
    known = list(dict.fromkeys([*arena.roles, *(step.role_id for step in rollout.steps)]))
    unknown = [str(role_id) for role_id in values if role_id not in known]
    if unknown and arena.roles:
        raise EpisodeError(
            f"reward function {name} rewards {unknown[0]!r}, which is not a role; the roles are "
            f"{', '.join(known)} (a function of weight 0 may use other names)"
        )


def _distinct(names: list[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}-{number}"
        distinct.append(candidate)
    return distinct


@dataclass(frozen=True)
class Utterance:
    """Words of a role, or of the environment (author ``""``), to one role or to all (``""``).

    ``token_ids`` are the ids that were drawn, and ``written`` the whole answer if the role thought before it
    spoke; only the role itself sees that again.
    """

    author: str
    text: str
    to: str = ""
    token_ids: list[int] | None = None
    written: str | None = None


@dataclass
class EpisodeState:
    """Mutable state of a rollout, which belongs to one execution. ``roles`` are the ones that take turns."""

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

        Raises EpisodeError if a method returned what it must not return, and TransientError if the episode
        took longer than ``arena.episode_timeout``, not counting sub-episodes. What a method raises passes.
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
        context = EpisodeContext(rollout.meta, rollout.id, rollout.meta.get("seed"), limit)
        outer = current_episode.set(context)
        try:
            playing = awaitable(self._rollout(arena, rollout.artifact), method_of(self, "rollout"))
            state = returned(await playing, EpisodeState, method_of(self, "rollout"))
            rollout.steps = list_of(Step, state.trajectory, "state.trajectory")
            if len({role.policy for role in arena.roles.values()}) > 1:
                rollout.meta.setdefault("others", True)
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
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
