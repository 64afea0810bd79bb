"""Agents of verifiers whose turns are model calls of an arena, for its environments' ``run(task, agents)``.

They only talk. Tools, containers and programs around a model (harnesses) are refused.
"""

import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.agent import Segment
from verifiers.v1.dialects import parse_message
from verifiers.v1.session import RolloutLimits, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, ModelCall, TraceTask
from verifiers.v1.types import Response, Usage
from verifiers.v1.utils.decorators import discover_decorated

from sparring.core import Arena, EpisodeError, InputError, Messages, ModelResponse, Step, derive_seed
from sparring.core.messages import remembered

FIELD = "program"
ONLY_TALK = "Name an environment that only talks"


@dataclass
class Execution:
    """One execution of an environment: the agents' runs and their steps.

    Runs are in the order in which verifiers has them, which plays one at a time: a run from when it begins,
    an interaction from when it ends. Steps are in the order in which they are asked for. So neither depends
    on which of several answers comes first. ``seed`` is the execution's, from which each run's calls have
    theirs, whatever runs beside it.
    """

    arena: Arena
    seed: int | None
    places: list["Exchange"] = field(default_factory=list)
    asked: list[list[Step]] = field(default_factory=list)
    begun: int = 0

    @property
    def ended(self) -> list["Exchange"]:
        """The runs that have ended."""
        return [one for one in self.places if one.trace.ok]

    @property
    def traces(self) -> list[Any]:
        """The traces of the runs that have ended."""
        return [one.trace for one in self.ended]

    @property
    def in_order(self) -> list[Step]:
        """The steps of all runs."""
        return [step for answer in self.asked for step in answer]

    def agent(self, name: str, config: Any) -> "TalkingAgent":
        """Return the agent of a name: what verifiers' ``Agents`` makes for each field of its settings."""
        return TalkingAgent(name, config, self)


class TalkingAgent:
    """One agent: its ``run`` and ``interaction`` are those of verifiers' ``Agent``, for tasks of text."""

    def __init__(self, name: str, config: Any, execution: Execution) -> None:
        self.name = name
        self.config = config
        self.execution = execution
        self.trainable = True

    async def run(self, task: Any) -> Any:
        """Let the agent answer the task's prompt, and return its trace."""
        check_task(task)
        exchange = Exchange(self, task)
        self.execution.places.append(exchange)
        await exchange.turn()
        exchange.trace.stop("agent_completed")
        await exchange.close()
        return exchange.trace

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator["Exchange"]:
        """Open a conversation with the agent, whose user is the caller; it is scored when it ends."""
        check_task(task)
        exchange = Exchange(self, task)
        yield exchange
        self.execution.places.append(exchange)
        await exchange.close()


class Exchange:
    """A conversation with an agent. A failed call raises an error: it costs the whole episode."""

    def __init__(self, agent: TalkingAgent, task: Any) -> None:
        self.agent = agent
        self.task = task
        seat = AgentInfo(config=agent.config, name=agent.name, trainable=agent.trainable)
        self.trace = vf.Trace(task=recorded(task), state=state_cls(type(task))(), agent=seat)
        self.steps: list[Step] = []
        caps = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
        self._limits = RolloutLimits(**{name: getattr(agent.config, name) for name in caps})
        self._stops = task.hooks("stop")
        self._heard: list[Any] = []
        self._messages: Messages = []
        self._number = agent.execution.begun
        agent.execution.begun += 1

    async def turn(self, message: str | list[Any] | None = None) -> Any:
        """Send one user turn, and return the answer; a task with a prompt is answered first, without one."""
        prompt, begins = self.task.data.prompt, not self.steps
        if (message is None) != (begins and prompt is not None):
            raise ValueError("a turn takes a message, except the first of a task that has a prompt")
        if begins and self.task.data.system_prompt:
            self._hear([vf.SystemMessage(content=self.task.data.system_prompt)])
        self._hear(prompt if message is None else message)
        if await self._refused():
            return Segment(messages=[], terminated=True)
        return Segment(messages=[await self._answer()])

    async def close(self) -> None:
        """End the conversation and score it."""
        self.trace.stop("user_closed")
        if own := _own(self.task, "finalize"):
            await own(self.trace)
        await self.task.score(self.trace)
        self.trace.is_completed = self.trace.ok = True

    def _hear(self, said: str | list[Any]) -> None:
        given = [vf.UserMessage(content=said)] if isinstance(said, str) else said
        for one in given:
            message = parse_message(one) if isinstance(one, dict) else one
            if not isinstance(message.content, str) or message.role not in ("system", "user", "assistant"):
                raise EpisodeError(f"{self.agent.name} heard a message that is not only text")
            self._heard.append(message)
            self._messages.append({"role": message.role, "content": message.content})

    async def _refused(self) -> bool:
        """Whether a limit or a ``@stop`` of the task ends the conversation here."""
        condition = self._limits.reached(self.trace)
        for stop in [] if condition else self._stops:
            stopped = stop(self.trace)
            if await stopped if inspect.isawaitable(stopped) else stopped:
                condition = stop.__name__
                break
        if condition:
            self.trace.stop(condition)
        return condition is not None

    async def _answer(self) -> Any:
        agent, execution = self.agent, self.agent.execution
        role = execution.arena.get_role(agent.name)
        asked = remembered(list(self._messages), role.history, len(self._messages) if not self.steps else 1)
        seed = None
        if execution.seed is not None:
            seed = derive_seed(execution.seed, "run", self._number, "call", len(self.steps))
        tokens = None if agent.trainable else False
        execution.asked.append(answer := list[Step]())
        response = await execution.arena.call_model(asked, role.id, seed=seed, return_tokens=tokens)
        step = response.to_step(role.id, asked, turn=len(self.steps))
        self.steps.append(step)
        answer.append(step)
        self._messages += response.completion
        return self._record(response)

    def _record(self, response: ModelResponse) -> Any:
        """Write the answer into the trace, as verifiers does, and return its message."""
        thought = response.reasoning.text if response.reasoning is not None else None
        message = vf.AssistantMessage(content=response.text, reasoning_content=thought)
        usage = Usage(
            prompt_tokens=len(response.prompt_token_ids or []), completion_tokens=len(response.drawn or [])
        )
        ended = "length" if response.finish_reason == "length" else "stop"
        answer = Response(
            id=self.trace.id,
            created=int(time.time()),
            model=response.policy or "model",
            message=message,
            finish_reason=ended,
            usage=usage,
        )
        node = graph.prepare_turn(self.trace, self._heard).commit(answer)
        self.trace.calls.append(ModelCall(node=node, finish_reason=ended, usage=usage))
        self._heard.append(message)
        return message


def recorded(task: Any) -> Any:
    """Return a task as traces and episodes have it."""
    return TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def check_task(task: Any) -> None:
    """Raise an InputError if a task needs more than talk."""
    name = type(task).__name__
    needs = {
        "a container": task.NEEDS_CONTAINER or task.data.image is not None,
        "tools": bool(task.toolsets(task.config)),
        "interception of messages": bool(discover_decorated(task, "intercept")),
        "a judge": bool(task.config.judges),
        "a set-up of its own": bool(_own(task, "setup")),
        "a runtime": any(_takes_runtime(one) for kind in ("reward", "metric") for one in task.hooks(kind)),
        "stops that look at messages": any(
            hook_boundary(one, allow_trace=True) is not vf.Trace for one in task.hooks("stop")
        ),
    }
    if missing := [what for what, is_needed in needs.items() if is_needed]:
        raise InputError(FIELD, f"{name} of verifiers needs {missing[0]}", ONLY_TALK)


def _own(task: Any, name: str) -> Callable[..., Any] | None:
    """Return a hook that the task overrides; one that takes a runtime raises an InputError."""
    hook: Callable[..., Any] = getattr(task, name)
    if getattr(type(task), name) is getattr(vf.Task, name):
        return None
    if _takes_runtime(hook):
        problem = f"{type(task).__name__}.{name} of verifiers needs a runtime"
        raise InputError(FIELD, problem, ONLY_TALK)
    return hook


def _takes_runtime(hook: Callable[..., Any]) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
