"""Runs of programs, evaluated or played: any checkpoint, or a person, in each role."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from sparring.commands.console import typed
from sparring.commands.model_source import base_difference, find_model
from sparring.commands.serving import build_engine
from sparring.commands.venues import frozen_of_program
from sparring.config import Config
from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeRequest,
    GenerateResult,
    InferenceClient,
    InputError,
    Messages,
    ModelResponse,
    SparringError,
)
from sparring.core.adapters import BASE
from sparring.core.own_code import called
from sparring.core.text import printable
from sparring.core.types import seated
from sparring.engine.paid_answers import PaidFile, paying_client
from sparring.evaluation.match import Progress
from sparring.evaluation.results import MeasureResult
from sparring.evaluation.venues import next_requests, started
from sparring.run.given_adapters import adapter_in
from sparring.run.programs import (
    build_program,
    check_roles_exist,
    drawn_by_role,
    failures_of_evaluation,
    measured,
    measured_agents,
    policies_of,
)
from sparring.run.progress_views import print_line

PERSON = "person"
"""The name of the person at the keyboard, where models have names."""
PERSONS_SECONDS = 24 * 3600.0
"""How long an episode with a person may take: people think longer than models."""


class ProgramRun:
    """The program of a run, or of one of its checkpoints, with its policies, ready to be played.

    ``players`` are who plays a role, by role: a checkpoint of a run, ``base`` or ``person``; by default its
    policy in the run's checkpoint.

    Raises:
        InputError: there is no such run, checkpoint or role, or the run plays games.
    """

    def __init__(self, name: str, players: Mapping[str, str], seed: int | None, progress: Progress) -> None:
        self.config, self.checkpoint = _run_and_checkpoint(name)
        if seed is not None:
            self.config = self.config.model_copy(update={"seed": seed})
        program = build_program(self.config)
        if program is None:
            raise InputError("RUN", f"{name} plays games, not a program", "Name a game with --env")
        check_roles_exist(program, players, "--role")
        self.arena: Arena = program
        adapters = {policy: adapter_in(self.checkpoint, policy, "RUN") for policy in policies_of(program)}
        frozen = frozen_of_program(self.config)
        adapters |= frozen.adapters
        self.agents = {role.id: AgentSpec("model", role.policy) for role in program.roles.values()}
        for role, player in players.items():
            served = player
            if player not in (BASE, PERSON):
                policy = program.roles[role].policy
                served = f"{player}/{policy}"
                adapters[served] = adapter_in(self._adapters_of(player), policy, "--role")
            self.agents[role] = AgentSpec("model", served)
        engine = build_engine(self.config.model, adapters, self.config.inference, self.config.seed, progress)
        answers = PaidFile(None, frozen.calls)
        self.arena.client = self.client = paying_client(engine, frozen.apis, answers, measured=True)
        self.arena.model_without_role = BASE
        if PERSON in players.values():
            self.arena.retries, self.arena.episode_timeout = 0, PERSONS_SECONDS

    def _adapters_of(self, player: str) -> Path:
        """Return the directory of an adapter, or of a run's for each policy."""
        found = find_model(player)
        if found.adapter is None:
            problem = f"{player} is a mixture or a base model, which plays no single role"
            raise InputError("--role", problem, f"Name a run, a checkpoint, an adapter, {BASE} or {PERSON}")
        if difference := base_difference(found.model, self.config.model, trained=found.trained):
            raise InputError("--role", f"the base model of {player} {difference}", "Name another")
        return found.adapter

    async def episode(self, request: EpisodeRequest) -> GenerateResult:
        """Run an episode with the agents."""
        seated.set(self.agents)
        (result,) = await self.arena.generate_rollouts([request])
        return result


def evaluate_program(
    name: str, players: Mapping[str, str], seed: int | None, progress: Progress
) -> dict[str, MeasureResult]:
    """Measure a program's policies as its training does, with its own ``evaluate``.

    Raises:
        InputError: see :class:`ProgramRun`.
        SparringError: the program's own code failed, too many of its episodes failed, or it measures nothing.
    """
    run = ProgramRun(name, players, seed, progress)
    seen = list[GenerateResult]()
    run.arena.on_result = seen.append

    def tell_failures() -> None:
        line = failures_of_evaluation(seen, run.config.collection.max_failed_fraction)
        if line:
            progress.say(line)

    async def evaluated() -> dict[str, MeasureResult]:
        async with started(run.arena, run.checkpoint):
            models = {role: agent.model for role, agent in run.agents.items()}
            agents = measured_agents(run.arena, run.config, models)
            seated.set(agents)
            try:
                measures = await called(run.arena.evaluate, "the program's evaluate")
            except SparringError:
                tell_failures()
                raise
            tell_failures()
            return measured(measures, drawn_by_role(run.arena, agents))

    with progress.doing("measuring"):
        measures = asyncio.run(evaluated())
    if not measures:
        raise SparringError("the program measures nothing: its evaluate returns no measure")
    return measures


class WithPerson(InferenceClient):
    """A client that asks the person for the answers of ``PERSON``, and another client for all others.

    ``ask`` returns what the person says to a prompt, or nothing to end the session. ``asked`` counts the
    person's answers; ``left`` is set when the person ends the session.
    """

    def __init__(self, client: InferenceClient, ask: Callable[[str], Awaitable[str]]) -> None:
        self.client = client
        self.ask = ask
        self.asked = 0
        self.left = False

    async def complete(
        self, messages: Messages, *asked: Any, model: str | None = None, **options: Any
    ) -> ModelResponse:
        """Answer, or let the person answer."""
        if model != PERSON:
            return await self.client.complete(messages, *asked, model=model, **options)
        said = await self.ask("\n\n".join(f"{one['role']}: {one['content'].strip()}" for one in messages))
        if not said:
            self.left = True
            raise SparringError("the person has left")
        self.asked += 1
        return ModelResponse(said, [{"role": "assistant", "content": said}])

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Score as the other client does."""
        return await self.client.score(messages, completions, model=model)


def play_program(
    name: str, role: str, seed: int | None, console: Console, progress: Progress | None = None
) -> None:
    """Let the person play a role in one episode after another, until the person leaves."""

    async def ask(prompt: str) -> str:
        console.print(Panel(Text(printable(prompt)), title="your turn"))
        return typed("your answer (an empty line or Ctrl-D ends)> ", console)

    run = ProgramRun(name, {role: PERSON}, seed, progress or Progress())
    run.arena.client = person = WithPerson(run.client, ask)
    with asyncio.Runner() as runner:  # only episodes run in the loop, which would hold back a Ctrl-C
        stack = AsyncExitStack()
        runner.run(stack.enter_async_context(started(run.arena, run.checkpoint)))
        try:
            _play_episodes(run, role, person, runner, console)
        finally:
            runner.run(stack.aclose())


def _play_episodes(
    run: ProgramRun, role: str, person: WithPerson, runner: asyncio.Runner, console: Console
) -> None:
    while True:
        result = runner.run(play_episode(run, role, person))
        if person.left:
            break
        _print_result(result, console)
        if typed("another? (y; anything else ends)> ", console).lower() not in ("y", "yes"):
            break


async def play_episode(run: ProgramRun, role: str, person: WithPerson) -> GenerateResult:
    """Play the first type of episode of the program's next step that asks the person.

    Raises:
        SparringError: none does.
    """
    asked = person.asked
    requests = await next_requests(run.arena)
    for request in {one.episode_type: one for one in reversed(requests)}.values():
        result = await run.episode(request)
        if person.left or person.asked > asked:
            return result
    raise SparringError(f"no episode of the program asks {role}")


def _print_result(result: GenerateResult, console: Console) -> None:
    for rollout in result.all_rollouts():
        for step in rollout.steps:
            console.print(Text(printable(f"{step.role_id}: {step.completion_text.strip()}")))
        for role_id, reward in rollout.rewards.items():
            print_line(console, f"reward of {role_id}: {reward:+g}")
        if rollout.error:
            print_line(console, f"the episode failed: {rollout.error}")


def _run_and_checkpoint(name: str) -> tuple[Config, Path]:
    source = find_model(name)
    if source.config is None or source.adapter is None:
        raise InputError("RUN", f"{name} is not a run", "Name one")
    return source.config, source.adapter
