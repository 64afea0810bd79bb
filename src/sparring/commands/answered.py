"""Who is answered by a best response, and where: any agent in a game, or in a role of a program."""

from dataclasses import dataclass, replace
from pathlib import Path

from sparring.commands.best_response import POLICY, FrozenPolicy
from sparring.commands.members import Member, base_of, find_agent
from sparring.commands.model_source import ModelSource, base_difference, find_model
from sparring.commands.venues import program_venue, refuse_for_programs
from sparring.config import Config
from sparring.config.play import Games
from sparring.config.programs import DebateSettings, RoleSettings
from sparring.core import InputError, derive_seed
from sparring.core.adapters import BASE, TRAINED
from sparring.core.env_id import absolute_id
from sparring.core.errors import refuse
from sparring.engine.api_models import with_address
from sparring.envs.policy_lines import is_policy_file
from sparring.evaluation.venues import GameVenue, Venue
from sparring.programs.judge import JUDGE
from sparring.run.checks import checked_seats

AGENT = "agent"
"""Name in ``[frozen]`` of who holds a role of a program."""
FIELD = "MODEL_OR_RUN"


@dataclass(frozen=True)
class AgentQuery:
    """What is asked: who is answered, where, and what the response begins with.

    Attributes:
        name: the agent: a run, a checkpoint, an adapter, a mixture, a base model, ``base``, a scripted
            player, a policy's file, or a model behind an API.
        env_id: the game; ``None`` for a program, by default the one that the run trained in.
        program: the configuration of the program.
        role: the program's role that the agent holds, while others learn; ``None`` if it holds all roles.
        start: what the response begins with: ``run`` (the agent itself, where that is possible), ``base``, or
            a run, an adapter or a base model.
        template: how positions become prompts; by default as the run trained.
        num_players: number of seats; by default two where that is possible.
    """

    name: str
    env_id: str | None = None
    program: Config | None = None
    role: str | None = None
    start: str = "run"
    template: str | None = None
    num_players: int | None = None


@dataclass(frozen=True)
class Answered:
    """A frozen policy, where it plays, and the model of its best response.

    Attributes:
        agent: whom the user named. With a ``role`` it is part of the venue, and the policy is what the other
            roles' responses begin with.
        source: the model that the response consists of, with the adapter, if any, that shapes its own.
    """

    query: AgentQuery
    agent: Member
    venue: Venue
    policy: FrozenPolicy
    source: ModelSource

    @property
    def apis(self) -> dict[str, str]:
        """The addresses of the models behind an API that are asked, by name: the agent, and those that hold
        other roles of a program."""
        others = {name: one for name, one in self.policy.others.items() if not is_policy_file(one)}
        return others | dict(self.venue.frozen.apis)


def find_answered(query: AgentQuery, seed: int) -> Answered:
    """Find who is answered, and where.

    Raises:
        InputError: a name means nothing, or the agent cannot play there.
    """
    if query.env_id is not None:
        of_programs = {"program": query.program, "role": query.role}
        refuse(of_programs, "is for programs, but a game is played", "Leave it out")
        return _in_game(query)
    refuse_for_programs({"template": query.template, "num_players": query.num_players})
    return _in_program(query, seed)


def _in_game(query: AgentQuery) -> Answered:
    assert query.env_id is not None
    env_id = absolute_id(query.env_id, Path())
    if checked_seats(env_id, query.num_players, query.template) < 2:
        raise InputError("env.id", f"{env_id} is a game for one player", "Choose a game with opponents")
    agent = find_agent(query.name, POLICY, env_id, FIELD)
    source = _model_of(query, agent).for_game(env_id)
    venue = GameVenue(source.environment(env_id, query.template, query.num_players))
    return Answered(query, agent, venue, _policy(query, agent, source, venue), source)


def _in_program(query: AgentQuery, seed: int) -> Answered:
    agent = find_agent(query.name, POLICY if query.role is None else AGENT, None, FIELD)
    config = query.program or (agent.source.config if agent.source else None)
    if config is None:
        raise InputError(FIELD, f"{query.name} is not a run of a program", "Name one, or a game")
    source = _model_of(query, agent, config)
    config = config.model_copy(update={"seed": derive_seed(seed, "exploit"), "model": source.model})
    # Other requests than those of the training.
    name = query.name if query.program is None else "the configuration"
    if query.role is None:
        venue = program_venue(config, name, FIELD)
        return Answered(query, agent, venue, _policy(query, agent, source, venue), source)
    venue = program_venue(_with_role(config, query.role, agent), name, "program", least=1)
    others = ModelSource(source.model) if query.start in ("run", BASE) else find_model(query.start)
    return Answered(query, agent, venue, FrozenPolicy.of(others, venue), source)


def _model_of(query: AgentQuery, agent: Member, config: Config | None = None) -> ModelSource:
    """Return the model of the response: the agent's, or else what the response begins with."""
    found = _found_model(query, agent, config)
    name = found.model.name
    if not Path(name).is_dir():
        return found
    # A run's configuration names it relative to the run, or wholly.
    return replace(found, model=found.model.model_copy(update={"name": str(Path(name).absolute())}))


def _found_model(query: AgentQuery, agent: Member, config: Config | None) -> ModelSource:
    given = None if query.start in ("run", BASE) else find_model(query.start)
    if agent.source is not None:
        base, own = agent.source, agent.source.trained
        if given and (difference := base_difference(given.model, base.model, trained=own and given.trained)):
            raise InputError("start", f"the base model of {query.start} {difference}", "Name another")
        return base
    if given is not None:
        return given
    return ModelSource(base_of([agent]) if config is None else config.model)


def _policy(query: AgentQuery, agent: Member, source: ModelSource, venue: Venue) -> FrozenPolicy:
    """Return who is answered where the agent holds every seat, and what the response begins with."""
    seats, policies = len(venue.seats), venue.policies
    if agent.kind == "model":
        # The base model may be answered by what something else begins with.
        own = source if agent.source is not None else ModelSource(source.model, envs=source.envs)
        policy = FrozenPolicy.of(own, venue)
    elif agent.kind == "script" and not is_policy_file(agent.name):
        policy = FrozenPolicy((agent.name,) * seats, {}, {}, (TRAINED,) * seats)
    else:
        other = with_address(agent.name) if agent.kind == "api" else str(Path(agent.name).absolute())
        policies = (TRAINED,) * seats if isinstance(venue, GameVenue) else policies
        policy = FrozenPolicy((POLICY,) * seats, {}, {}, policies, {POLICY: other})
    if query.start == "run":
        return policy
    start = {} if query.start == BASE else FrozenPolicy.of(find_model(query.start), venue).start
    return FrozenPolicy(policy.seats, policy.adapters, start, policy.policies, policy.others)


def _with_role(config: Config, role: str, agent: Member) -> Config:
    """Return the program's configuration with the agent in a role."""
    if isinstance(config.play, Games):
        raise InputError("program", "the configuration plays games", "Name one of a program")
    held, frozen = BASE, dict(config.frozen)
    if agent.kind == "api":
        held, frozen[AGENT] = AGENT, with_address(agent.name)
    elif agent.source is not None and (adapters := agent.source.adapters()):
        held = AGENT
        if agent.source.members:
            raise InputError(FIELD, f"{agent.name} is a mixture, which holds no single role", "Name a member")
        frozen[AGENT] = str(_adapter_for(role, config, agent, adapters).absolute())
    if AGENT in config.frozen:
        raise InputError(f"frozen.{AGENT}", "is a name that the best response needs", "Rename it")
    changes: dict[str, object] = {"frozen": frozen}
    if role == JUDGE and isinstance(config.play, DebateSettings):
        if config.play.judge_by_score and agent.kind == "api":
            problem = f"{agent.name} is behind an API, which scores no verdicts"
            raise InputError("program.judge_by_score", problem, "Set it to false")
        changes["program"] = config.play.model_copy(update={"judge_model": held})
    else:
        own = config.roles.get(role, RoleSettings()).model_copy(update={"policy": held})
        changes["roles"] = {**config.roles, role: own}
    return config.model_copy(update=changes)


def _adapter_for(role: str, config: Config, agent: Member, adapters: dict[str, Path]) -> Path:
    """Return the agent's adapter for a role: its only one, or that of the policy that the role trains."""
    if len(adapters) == 1:
        return next(iter(adapters.values()))
    roles = {one.id: one.policy for one in program_venue(config, agent.name, "program").roles}
    policy = roles.get(role, "")
    if policy not in adapters:
        problem = f"{agent.name} has the policies {', '.join(adapters)}, and none of them plays {role}"
        raise InputError(FIELD, problem, "Name the adapter of one")
    return adapters[policy]
