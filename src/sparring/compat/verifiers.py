"""Games and programs of this package played by agents of verifiers, for the packages of ``sparring export``.

A call of a seat or a role is a turn of its agent, in the conversation that its prompt continues or a new one.
"""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from sparring.config import Config, load_config
from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeError,
    EpisodeRequest,
    GenerateResult,
    InferenceClient,
    Messages,
    ModelResponse,
    PlaySpec,
    Rollout,
    derive_seed,
)
from sparring.core.current_episode import current_episode
from sparring.core.own_code import called
from sparring.core.play import seat_role
from sparring.envs.game_episode import build_episode
from sparring.programs.judge import JUDGE
from sparring.run.programs import build_program

TASKS = 1000
"""How many games, or at most how many requests of a program, are tasks."""
PATIENCE = 20
"""How many batches of a program in a row have nothing new once all of its requests have been seen."""
SECONDS = 600.0
"""The time limit of one model call."""


@dataclass
class Talk:
    """A conversation of an agent, and what was said in it so far; ``rollout_id`` is of our episode.

    ``said`` is ``None`` during a turn: what the role is asked meanwhile is another conversation.
    """

    rollout_id: str
    role_id: str
    interaction: Any
    said: Messages | None


@dataclass
class Talks:
    """The conversations of one execution, which all stay open until it ends."""

    agents: Any
    stack: AsyncExitStack
    every: list[Talk] = field(default_factory=list)

    async def answer(self, role_id: str, messages: Messages, max_tokens: int) -> str:
        """Return the agent's answer to a prompt."""
        context = current_episode.get()
        rollout_id = "" if context is None else context.rollout_id
        asked: Messages = [
            {"role": one["role"], "content": one.get("written", one["content"])} for one in messages
        ]
        talk = next((one for one in self.every if self._goes_on(one, rollout_id, role_id, asked)), None)
        if talk is None:
            talk = await self._begun(rollout_id, role_id, asked)
        new = [one for one in asked[len(talk.said or []) :] if one["role"] != "system"]
        talk.said = None
        _longest.set(max_tokens)
        segment = await talk.interaction.turn(new)
        if segment.terminated or not segment.messages:
            raise EpisodeError(f"{role_id} ended early: {talk.interaction.trace.stop_condition}")
        text: str = segment.messages[-1].content or ""
        talk.said = [*asked, {"role": "assistant", "content": text}]
        return text

    def _goes_on(self, talk: Talk, rollout_id: str, role_id: str, asked: Messages) -> bool:
        if talk.said is None or (talk.rollout_id, talk.role_id) != (rollout_id, role_id):
            return False
        return asked[: len(talk.said)] == talk.said and len(asked) > len(talk.said)

    async def _begun(self, rollout_id: str, role_id: str, asked: Messages) -> Talk:
        system = asked[0]["content"] if asked[0]["role"] == "system" else None
        agent = getattr(self.agents, role_id, None)
        if agent is None:
            raise EpisodeError(f"{role_id} is no agent, and only agents answer in verifiers")
        agent.trainable = role_id != JUDGE
        task = vf.Task(vf.TaskData(prompt=None, system_prompt=system))
        opened = await self.stack.enter_async_context(agent.interaction(task))
        self.every.append(talk := Talk(rollout_id, role_id, opened, None))
        return talk


_talks: ContextVar[Talks] = ContextVar("talks")
_longest: ContextVar[int] = ContextVar("longest")
"""The length of the answer that is asked for, in tokens."""


class AgentsClient(InferenceClient):
    """Answers by the agents of the execution that runs now; models are called as roles are.

    ``max_tokens`` is the longest answer where a call names none.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        **others: Any,
    ) -> ModelResponse:
        """Ask the agent named ``model``; how it draws is its own affair."""
        text = await _talks.get().answer(str(model), messages, max_tokens or self.max_tokens)
        return ModelResponse(text, [{"role": "assistant", "content": text}])


class ExportedPlay:
    """What an exported environment does: one game, or one request of a program, for each task.

    ``FILE`` is the configuration of what is played.
    """

    FILE: Path

    async def start(self) -> None:
        """Let the program start what its episodes share."""
        await called(_loaded(self.FILE).arena.startup, "the program's startup")

    async def stop(self) -> None:
        """Let the program stop that."""
        await called(_loaded(self.FILE).arena.shutdown, "the program's shutdown")

    async def run(self, task: Any, agents: Any) -> None:
        """Play the task, whose name is its number, and reward each trace with what its seat earned."""
        async with AsyncExitStack() as stack:
            _talks.set(talks := Talks(agents, stack))
            result = await play(self.FILE, int(task.data.name))
        rollouts = {rollout.id: rollout for rollout in result.all_rollouts()}
        for talk in talks.every:
            _reward(talk, rollouts)


def _reward(talk: Talk, rollouts: Mapping[str, Rollout]) -> None:
    rollout, trace = rollouts[talk.rollout_id], talk.interaction.trace
    earned = rollout.extras.get("final_rewards")
    by_role = rollout.rewards if earned is None else {seat_role(pid): one for pid, one in earned.items()}
    trace.record_reward("reward", float(by_role.get(talk.role_id, 0.0)))
    for name, value in rollout.metrics.items():
        trace.record_metric(name, value)


async def play(file: Path, number: int) -> GenerateResult:
    """Play a task; raise an EpisodeError if it fails."""
    played = _loaded(file)
    if played.requests is None:
        env = played.config.envs[0]
        agents = tuple(AgentSpec("model", seat_role(pid)) for pid in range(env.num_players))
        seed = derive_seed(played.config.seed, "task", number)
        episode = build_episode(env)
        spec = PlaySpec(episode.name, env.num_players, agents, seed)
        return await episode.generate(played.arena, spec, {"seed": seed})
    request = played.requests[number]
    (result,) = await played.arena.generate_rollouts([request])
    if result.rollout.error is not None:
        raise EpisodeError(result.rollout.error)
    return result


def tasks_of(file: Path) -> Iterator[Any]:
    """Return the tasks of an exported environment."""
    requests = _loaded(file).requests
    for number in range(TASKS if requests is None else len(requests)):
        yield vf.Task(vf.TaskData(name=str(number), prompt=None))


async def launch(context: Any, endpoint: str, secret: str, messages: list[Any]) -> Any:
    """Make the one model call of a turn from this process: what an exported harness does.

    The length of the answer is the configuration's, unless verifiers is told another.
    """
    import httpx

    said = [message_to_wire(one) for one in messages]
    body = {"model": context.model, "messages": said, "max_tokens": _longest.get()}
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        answer = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
    return ProgramResult(exit_code=0, stdout="", stderr="")


@dataclass(frozen=True)
class Loaded:
    """What a configuration plays: games, or a program with its first requests."""

    config: Config
    arena: Arena
    requests: list[EpisodeRequest] | None


@lru_cache(maxsize=8)
def _loaded(file: Path) -> Loaded:
    config = load_config(str(file), {})
    program = build_program(config)
    client = AgentsClient(config.inference.max_tokens)
    if program is None:
        return Loaded(config, Arena(client), None)
    program.client = client
    program.model_without_role = JUDGE
    program.retries = 0
    found: dict[tuple[str, str], EpisodeRequest] = {}
    newest = 0
    for program.step_num in range(1, TASKS + 1):
        before = len(found)
        for one in program.get_batch():
            found.setdefault((one.episode_type, repr(one.artifact)), one)
        newest = program.step_num if len(found) > before else newest
        if len(found) >= TASKS or program.step_num == newest + PATIENCE:
            break
    agents = {name: AgentSpec("model", name) for name in program.roles}
    requests = []
    for number, one in enumerate([*found.values()][:TASKS]):
        meta = {"seed": derive_seed(config.seed, "task", number)}
        requests.append(EpisodeRequest(one.episode_type, one.artifact, meta, agents=agents))
    return Loaded(config, program, requests)
