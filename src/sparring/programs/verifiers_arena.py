"""VerifiersArena: environments of verifiers, with one agent or several, played as episodes."""

import itertools
from collections.abc import Collection
from statistics import fmean
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.agent import Agents
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.env import SharedEnvConfig, default_agent_harness
from verifiers.v1.episode import EnvInfo
from verifiers.v1.utils.loaders import load_environment, load_harness, resolve_env_config

from sparring.config.programs import VerifiersSettings
from sparring.core import (
    Arena,
    Episode,
    EpisodeError,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    InputError,
    Role,
    Rollout,
    Rubric,
    SparringError,
)
from sparring.core.current_episode import count_started, current_episode
from sparring.core.errors import first_line
from sparring.core.own_code import loggable, own_code
from sparring.programs.program_arena import ProgramArena
from sparring.programs.tasks import hold_out
from sparring.programs.verifiers_agents import FIELD, ONLY_TALK, Exchange, Execution, check_task, recorded

BASH = "bash"
"""The harness that verifiers takes where nobody names one."""
OF_ENVIRONMENTS = {"taskset", "max_concurrent_agents"}
"""The fields of every environment of verifiers that a user may set."""
OF_AGENTS = {
    *("harness", "runtime", "model", "client", "sampling", "max_turns"),
    *("max_input_tokens", "max_output_tokens", "max_total_tokens"),
}
"""The fields of every agent that a user may set, or that are refused by themselves."""


class VerifiersEpisode(Episode):
    """One execution of an environment on one of its tasks, whose number is the artifact.

    An agent that runs once is a role of the rollout. Each run of one that runs several times is a
    sub-episode, so its runs are compared with each other.
    """

    episode_type = "environment"

    def __init__(self, env: Any, tasks: list[Any]) -> None:
        self.env = env
        self.tasks = tasks
        self._rubric = Rubric([reward, measured], [1.0, 0.0])

    @property
    def rubric(self) -> Rubric:
        """The rewards and the metrics that the environment recorded."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: int, state: EpisodeState | None = None) -> EpisodeState:
        """Run the environment."""
        state = state or EpisodeState()
        context = current_episode.get()
        assert context is not None
        execution = Execution(arena, context.seed)
        await self._run(self.tasks[artifact], execution)
        names = [run.agent.name for run in execution.ended]
        alone = [run for run in execution.ended if names.count(run.agent.name) == 1]
        inside = {id(step) for run in alone for step in run.steps}
        state.trajectory += [step for step in execution.in_order if id(step) in inside]
        state.data["runs"] = [_summary(run.trace) for run in alone]
        for run in execution.ended:
            if run not in alone:
                state.child_results.append(_child(run, arena, artifact, context.next_child_meta()))
        count_started(len(state.child_results))
        return state

    async def _run(self, task: Any, execution: Execution) -> None:
        """Let the environment run and judge; of several errors, raise the first."""
        episode = vf.Episode(env=EnvInfo(id=self.env.config.env_id), task=recorded(task))
        agents = Agents(self.env.config, execution.agent)
        try:
            await self.env.setup(agents)
            await self.env.run(task, agents)
            if not execution.traces:
                raise EpisodeError(f"{type(self.env).__name__}.run let no agent run")
            episode.traces += execution.traces
            await self.env.finalize(task, episode)
        except ExceptionGroup as group:
            raise _first_of(group) from group

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``runs``: of each agent that ran once, its name, rewards, metrics, end and notes."""
        return dict(state.data)


def reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Return each agent's reward."""
    return {run["agent"]: run["reward"] for run in rollout.extras["runs"]}


def measured(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Return each agent's metrics, and its rewards by name."""
    return {
        f"{run['agent']}/{name}": value
        for run in rollout.extras["runs"]
        for name, value in {**run["rewards"], **run["metrics"]}.items()
    }


def _summary(trace: Any) -> dict[str, Any]:
    return {
        "agent": trace.agent.name,
        "reward": float(trace.reward),
        "rewards": {name: one.value for name, one in trace.rewards.items() if one is not None},
        "metrics": {name: one for name, one in trace.metrics.items() if one is not None},
        "ended": trace.stop_condition,
        "info": loggable(trace.info),
    }


def _child(exchange: Exchange, arena: Arena, artifact: int, meta: dict[str, Any]) -> GenerateResult:
    """Return one of several runs of an agent as the result of a sub-episode."""
    run = _summary(exchange.trace)
    rollout = Rollout(
        episode_type=f"environment/{run['agent']}",
        artifact=artifact,
        meta=meta,
        id=meta["rollout_id"],
        steps=exchange.steps,
        extras={"runs": [run]},
    )
    rollout.set_reward(run["agent"], run["reward"])
    rollout.metrics = {f"measured/{name}": one for name, one in measured(rollout, arena).items()}
    return GenerateResult(rollout)


def _first_of(error: Exception) -> Exception:
    """Return the error that says most in a group: one of this package, else the first."""
    if not isinstance(error, ExceptionGroup):
        return error
    leaves = [_first_of(one) for one in error.exceptions]
    return next((one for one in leaves if isinstance(one, SparringError)), leaves[0])


class VerifiersArena(ProgramArena[VerifiersSettings]):
    """Executions of an environment on its tasks. Each of its agents is a role.

    An agent that the environment calls not trainable plays with its role's policy and is not trained.
    """

    def set_up(self) -> None:
        """Load the environment, and add its agents as roles."""
        settings = self.settings
        self.env = _environment(settings)
        with own_code(f"the tasks of {settings.taskset} cannot be loaded", f"{FIELD}.taskset"):
            self.tasks = list(itertools.islice(self.env.taskset, settings.tasks))
        if self.env.taskset.toolsets(self.env.taskset.config):
            raise InputError(f"{FIELD}.taskset", f"{settings.taskset} shares tools", ONLY_TALK)
        for task in self.tasks[:1]:
            check_task(task)
        keys = [task.key for task in self.tasks]
        self.trained, self.held_out = hold_out(keys, settings.test_size, settings.seed, f"{FIELD}.tasks")
        agents = agent_config_fields(self.env.config)
        _check_options(settings.options, agents)
        default = default_agent_harness(settings.taskset)
        for name, config in agents.items():
            _check_agent(name, config, default)
            sampling = config.sampling
            most = None if sampling is None else sampling.max_tokens
            self.add_role(Role(name, max_tokens=most))
        self.add_episode("environment", VerifiersEpisode(self.env, self.tasks))

    async def startup(self) -> None:
        """Let the environment start what its executions share."""
        await self.env.start()

    async def shutdown(self) -> None:
        """Let the environment stop that."""
        await self.env.stop()

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` requests for the next tasks, ``episodes_per_task`` for each."""
        size, each = self.settings.batch_size, self.settings.episodes_per_task
        return self.requests_in_turns("environment", self.trained, size, each, int)

    async def evaluate(self) -> dict[str, list[float]]:
        """Run held-out tasks, always the same: ``AGENT reward`` has an entry for each task, the mean over the
        agent's runs in it, because these are not independent."""
        numbers = self.held_out[: self.settings.evaluation_tasks]
        requests = self.evaluation_requests("environment", numbers, int)
        measures: dict[str, list[float]] = {}
        for result in await self.generate_rollouts(requests):
            earned: dict[str, list[float]] = {}
            for rollout in result.all_rollouts():
                for name, reward in rollout.rewards.items():
                    earned.setdefault(name, []).append(reward)
            for name, rewards in earned.items():
                measures.setdefault(f"{name} reward", []).append(fmean(rewards))
        return measures


def _environment(settings: VerifiersSettings) -> Any:
    taskset = settings.options.get("taskset", {})
    if not isinstance(taskset, dict) or "id" in settings.options or "id" in taskset:
        fix = "Name them in taskset and environment"
        raise InputError(f"{FIELD}.options", "id and taskset.id are not options", fix)
    given = {**settings.options, "id": settings.environment or ""}
    given["taskset"] = {**taskset, "id": settings.taskset}
    try:
        return load_environment(resolve_env_config(given))
    except Exception as error:  # other people's packages raise any kind
        reason = _reason(error)
        fix = "Install its package, and write its [env] table into options"
        raise InputError(f"{FIELD}.taskset", f"verifiers cannot load it: {reason}", fix) from error


def _reason(error: Exception) -> str:
    """Return an error in one line; of a table that does not fit, the first field that is wrong."""
    if not isinstance(error, ValidationError):
        return first_line(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def _check_options(options: dict[str, Any], agents: Collection[str]) -> None:
    """Raise an InputError if the user sets what this package does in its own way."""
    for field in sorted(options.keys() & (SharedEnvConfig.model_fields.keys() - OF_ENVIRONMENTS)):
        raise InputError(f"{FIELD}.options", f"{field} has no effect here", "Leave it out")
    for name in sorted(options.keys() & agents):
        for field in sorted(options[name].keys() & (vf.AgentConfig.model_fields.keys() - OF_AGENTS)):
            raise InputError(f"{FIELD}.options", f"{field} of {name} has no effect here", "Leave it out")
        if {*(options[name].get("sampling") or {})} - {"max_tokens", "max_completion_tokens"}:
            problem = f"sampling of {name} sets more than max_tokens"
            raise InputError(f"{FIELD}.options", problem, f"Leave the others out, and set [roles.{name}]")


def _check_agent(name: str, config: Any, default: Any) -> None:
    """Raise an InputError if an agent is to run a program, or to be another model.

    ``default`` is the harness of the tasks: verifiers' own, or one that comes with them.
    """
    if config.harness is not None and config.harness.id != "null":
        raise _not_talk(name, config.harness.id)
    if config.harness is None and default.id != BASH and load_harness(default).EXECUTES_CODE:
        raise _not_talk(name, default.id)
    if config.model is not None or config.client is not None:
        problem = f"{name} names a model of its own"
        raise InputError(f"{FIELD}.options", problem, f"Leave it out, and set [roles.{name}] policy")


def _not_talk(name: str, harness: str) -> InputError:
    problem = f"{name} runs the harness {harness}, and only null, which talks, is known here"
    return InputError(f"{FIELD}.options", problem, f'Set {name} = {{harness = {{id = "null"}}}}')
