"""Build a program's arena from its configuration, and find the policies of an arena."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sparring.config import Config
from sparring.config.adversarial_programs import CorpusSettings, ProverVerifierSettings, SelfJudgedSettings
from sparring.config.base import Sharing
from sparring.config.league import Seats
from sparring.config.play import Games
from sparring.config.programs import (
    DebateSettings,
    Program,
    ProofsSettings,
    ProposerSolverSettings,
    PythonProgram,
    QuestionsSettings,
    RoleSettings,
    VerifiersSettings,
    WorkflowSettings,
)
from sparring.core import (
    AgentSpec,
    AlternatingRolesEpisode,
    Arena,
    CallSettings,
    EpisodeError,
    EpisodeRequest,
    EpisodicRewardCredit,
    GenerateResult,
    InferenceClient,
    InputError,
    Messages,
    MockInferenceClient,
    Role,
    SparringError,
    derive_seed,
)
from sparring.core.adapters import BASE, NAMES_OF_POLICIES, TRAINED, is_policy_name
from sparring.core.errors import first_line, shown
from sparring.core.own_code import build_own, list_of, method_of, own_class, own_code, returned
from sparring.core.played import is_bounded
from sparring.core.reasoning import checked_tags
from sparring.core.sampling import drawn_text
from sparring.core.text import counted
from sparring.evaluation.results import MeasureResult
from sparring.learn.own_sampling import drawing
from sparring.programs.corpus import CorpusArena
from sparring.programs.debate import DebateArena
from sparring.programs.program_arena import QuestionArena
from sparring.programs.proofs.arena import ProofArena
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.programs.prover_verifier import ProverVerifierArena
from sparring.programs.self_judged import SelfJudgedArena
from sparring.programs.workflows import WorkflowArena
from sparring.run.rewards import build_credit

NOTHING_TO_PLAY = "the program's get_batch has nothing to play"
LONGEST_NAME = 100
"""Characters of the name of a measure, which names a file."""
MIN_TEMPERATURE = 0.01
"""The lowest temperature at which a role is trained, as for games (``inference.temperature``)."""


def _too_early(messages: Messages, seed: int | None) -> str:
    raise SparringError("a program called the model while it was built")


def build_program(config: Config) -> Arena | None:
    """Build the arena of the configured program, without its client; ``None`` if games are configured.

    Raises:
        InputError: the program cannot be built, or its roles do not fit the configuration.
    """
    settings = config.play
    if isinstance(settings, Games):
        return None
    client = MockInferenceClient(_too_early)  # the roles say which policies the engine's model must have
    seed = derive_seed(config.seed, "program")
    arena = _arena(config, settings, client, seed)
    _set_credit(arena, config)
    arena.episode_timeout = config.collection.game_timeout
    arena.retries = config.collection.retries
    arena.model_without_role = BASE
    arena.frozen |= config.frozen.keys()
    if settings.policies is not None:
        _set_policies(arena, settings.policies)
    _set_roles(arena, config)
    _check_roles(arena, config)
    if config.league is not None:
        config.league.check_seats([(config.play.names[0], seats_of_program(arena))])
    config.check_policies(trained_policies(config, arena))
    return arena


def _arena(config: Config, settings: Program, client: InferenceClient, seed: int) -> Arena:
    match settings:
        case DebateSettings(judge_sampling=sampling):
            drawn = drawing(sampling, config.model.name, "program.judge_sampling")
            return DebateArena(client, settings, judge_draws=drawn, seed=seed)
        case ProposerSolverSettings():
            return ProposerSolverArena(client, settings, seed=seed)
        case ProofsSettings():
            return ProofArena(client, settings, seed=seed)
        case ProverVerifierSettings():
            if config.uses_buffer:
                problem = "makes advantages of rewards, but the verifier learns from right answers"
                raise InputError("buffer", problem, "Leave out [buffer] and [rewards]")
            return ProverVerifierArena(client, settings, seed=seed)
        case CorpusSettings():
            return CorpusArena(client, settings, seed=seed)
        case SelfJudgedSettings():
            return SelfJudgedArena(client, settings, seed=seed)
        case QuestionsSettings():
            return QuestionArena(client, settings, seed=seed)
        case WorkflowSettings():
            return WorkflowArena(client, settings, seed=seed)
        case VerifiersSettings():
            from sparring.programs.verifiers_arena import VerifiersArena  # needs the extra verifiers

            return VerifiersArena(client, settings, seed=seed)
        case PythonProgram():
            return _python_program(settings, client, seed)


def check_first_batch(arena: Arena) -> None:
    """Check the first batch of an arena that is not used afterwards.

    Raises:
        InputError: the batch is empty or names an unknown episode, or ``get_batch`` fails.
    """
    with own_code("get_batch failed", "program"):
        asked = arena.get_batch()
    try:
        requests = list_of(EpisodeRequest, asked, f"what {method_of(arena, 'get_batch')} returned")
    except EpisodeError as error:
        raise InputError("program", first_line(error), "Return a list of EpisodeRequests") from error
    unknown = [one.episode_type for one in requests if one.episode_type not in arena.episodes]
    if not requests:
        raise InputError("program", "get_batch has nothing to play", "Let it return requests")
    if unknown:
        known = ", ".join(arena.episodes) or "none"
        raise InputError("program", f"get_batch asks for the episode {unknown[0]}", f"There are: {known}")


def check_roles_exist(arena: Arena, names: Iterable[str], field: str) -> None:
    """Raise an InputError if the arena has no role of one of these names."""
    if unknown := {*names} - arena.roles.keys():
        fix = f"It has: {', '.join(arena.roles)}"
        raise InputError(field, f"the program has no role {min(unknown)}", fix)


def seats_of_program(arena: Arena) -> Seats:
    """Return the roles of an arena that are trained, in their order, with their policies."""
    return {role.id: role.policy for role in arena.roles.values() if role.policy not in arena.frozen}


def policies_of(arena: Arena) -> list[str]:
    """Return the policies that the roles of an arena name and train, in the order of the roles."""
    return list(dict.fromkeys(seats_of_program(arena).values()))


def trained_policies(config: Config, arena: Arena | None) -> list[str]:
    """Return the policies that a run of games or a program trains."""
    return config.policies if arena is None or config.league is not None else policies_of(arena)


def roles_of_policies(config: Config, arena: Arena) -> dict[str, list[str]]:
    """Return the roles that each policy may play and learn in a run of a program."""
    roles = seats_of_program(arena)
    if config.league is not None:
        players = config.league.seated([roles]).players
        return {name: [str(role) for role in player.seats] for name, player in players.items()}
    return {name: [str(role) for role, one in roles.items() if one == name] for name in policies_of(arena)}


def roles_with_answers(arena: Arena) -> list[Role]:
    """Return the roles that choose among listed answers, in a program that is not a user's own."""
    names = arena.protocol.verifiers if isinstance(arena, ProofArena) else []
    return [arena.roles[name] for name in names]


def measured(measures: object, drawn: Mapping[str, str] | None = None) -> dict[str, MeasureResult]:
    """Return what a program's ``evaluate`` has returned, played as ``drawn``; see :func:`drawn_by_role`.

    Raises:
        SparringError: it is no dictionary of lists of finite numbers.
    """
    source = "the program's evaluate"
    found = returned(measures, dict, source)
    for name, values in found.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            problem = f"is not a text of 1 to {LONGEST_NAME} characters"
            raise SparringError(f"{source} gave a measure whose name, {shown(name)[:50]}, {problem}")
        if not isinstance(values, list) or not all(map(is_bounded, values)):
            raise SparringError(f"{source} gave no list of finite numbers up to 1e30 for {name!r}")
    return {
        name: MeasureResult(name, [float(value) for value in values], dict(drawn or {}))
        for name, values in found.items()
    }


def failures_of_evaluation(results: list[GenerateResult], max_failed_fraction: float) -> str:
    """Return a line about the episodes of an evaluation that failed; empty if none has.

    Raises:
        SparringError: more failed than this fraction of the episodes.
    """
    errors = [rollout.error for result in results for rollout in result.all_rollouts() if rollout.error]
    if not errors:
        return ""
    line = f"{counted(len(errors), 'episode')} of the evaluation failed; the last: {errors[-1]}"
    if len(errors) > max_failed_fraction * len(results):
        raise SparringError(line)
    return line


def drawn_by_role(arena: Arena, agents: Mapping[str, AgentSpec]) -> dict[str, str]:
    """Return in words how each role draws in an evaluation, unless it does so from the model's whole
    distribution at temperature 1."""
    calls = {name: CallSettings().over(agent).over(arena.roles[name]) for name, agent in agents.items()}
    texts = {name: drawn_text(one.temperature, one.sampling) for name, one in calls.items()}
    return {name: text for name, text in texts.items() if text}


def measured_agents(arena: Arena, config: Config, models: Mapping[str, str]) -> dict[str, AgentSpec]:
    """Return who plays each role while the program is measured.

    Args:
        arena: the program.
        config: the run's configuration, which may give roles another temperature or sampling in tests.
        models: the model of each role, by role; the other roles keep their policy.
    """
    agents = {}
    for name, role in arena.roles.items():
        calls = calls_in_tests(config, name)
        model = models.get(name, role.policy)
        agents[name] = AgentSpec("model", model, calls.temperature, sampling=calls.sampling)
    return agents


def calls_in_tests(config: Config, role: str) -> CallSettings:
    """Return how a role draws in tests, as far as the configuration says so."""
    settings = config.roles.get(role, RoleSettings())
    drawn = drawing(settings.test_sampling, config.model.name, f"roles.{role}.test_sampling")
    return CallSettings(settings.test_temperature).over(drawn)


def _set_credit(arena: Arena, config: Config) -> None:
    """Replace the program's credit assigner where the configuration has another, or critics."""
    if config.credit is not None:
        arena.credit_assigner = build_credit(config.credit)
    if config.learning.critic is not None:
        arena.credit_assigner = EpisodicRewardCredit()
    arena.critics = config.learning.own_critics


def _set_policies(arena: Arena, sharing: Sharing) -> None:
    """Give the roles that are trained one policy, or each its own, which is named after it."""
    found: dict[str, str] = {}
    for role in list(arena.roles.values()):
        if role.policy in arena.frozen:
            continue
        own = TRAINED if sharing == "shared" else re.sub(r"[^A-Za-z0-9_-]+", "-", role.id).lower()
        if sharing == "isolated" and (own in found or own in arena.frozen):
            taken = f"role {found[own]} has" if own in found else "is frozen"
            problem = f"role {role.id} would get the policy {own}, which {taken}"
            raise InputError("program.policies", problem, "Rename one of them")
        found[own] = role.id
        arena.add_role(replace(role, policy=own))


def _set_roles(arena: Arena, config: Config) -> None:
    """Change the roles as configured; a setting of ``[inference]`` is for roles that have none themselves."""
    inference, plain = config.inference, Role("plain")
    for role in list(arena.roles.values()):
        own: dict[str, Any] = {
            "temperature": inference.temperature,
            "stop": tuple(inference.stop),
            "reasoning": checked_tags(inference.reasoning),
            "max_reasoning": inference.max_reasoning,
        }
        changes = {name: one for name, one in own.items() if getattr(role, name) == getattr(plain, name)}
        arena.add_role(replace(role, **changes))
    check_roles_exist(arena, config.roles, "roles")
    for role_id, settings in config.roles.items():
        drawn = drawing(settings.sampling, config.model.name, f"roles.{role_id}.sampling")
        of_draws = {name for name in RoleSettings.model_fields if "sampling" in name or "temperature" in name}
        given = settings.model_dump(exclude_none=True, exclude=of_draws)
        calls = CallSettings(settings.temperature).over(drawn)
        given |= {} if calls.temperature is None else {"temperature": calls.temperature}
        given |= {} if calls.sampling is None else {"sampling": calls.sampling}
        if "stop" in given:
            given["stop"] = tuple(given["stop"])
        if "reasoning" in given:
            given["reasoning"] = checked_tags(given["reasoning"])
        arena.add_role(replace(arena.roles[role_id], **given))


def _check_roles(arena: Arena, config: Config) -> None:
    if not arena.roles:
        raise InputError("program", "the arena has no role, so nothing is trained", "Add one with add_role")
    for name, episode in arena.episodes.items():
        if isinstance(episode, AlternatingRolesEpisode):
            with own_code(f"the roles of the episode {name} failed", "program"):
                episode.turn_takers(arena)
    if not policies_of(arena):
        raise InputError("roles", "no role trains a policy", "Give one a policy that is not frozen")
    for field in ("judge_model", "reward_model"):
        judge = getattr(config.play, field, None) or BASE
        if judge not in (*arena.frozen, *policies_of(arena)):
            fix = "Use base, a name in [frozen], or one of the policies"
            raise InputError(f"program.{field}", f"{judge} is not served", fix)
    _check_population(arena, config)
    for role in arena.roles.values():
        if role.policy in arena.frozen:
            continue
        if not is_policy_name(role.policy):
            problem = f"role {role.id} has policy {role.policy!r}, which is not a valid name"
            raise InputError("policy", problem, NAMES_OF_POLICIES)
        if role.sampling is not None:
            problem = f"the policy {role.policy} is trained, so it draws from the distribution that it learns"
            fix = "Set test_sampling, or give the role a policy that is not trained"
            raise InputError(f"roles.{role.id}.sampling", problem, fix)
        if role.temperature < MIN_TEMPERATURE:
            problem = f"role {role.id} samples at {role.temperature:g}, where nothing can be learned"
            raise InputError("temperature", problem, f"Use at least {MIN_TEMPERATURE}")


def _check_population(arena: Arena, config: Config) -> None:
    trained = seats_of_program(arena)
    if config.population.sample_mode == "meta-nash" and len(trained) != 2:
        problem = (
            f"meta-nash needs two roles that are trained, but the program has {', '.join(map(str, trained))}"
        )
        raise InputError("population.sample_mode", problem, "Choose another mode, such as pfsp")
    check_roles_exist(arena, config.population.roles, "population.roles")
    for name in config.population.roles:
        if (policy := arena.roles[name].policy) in arena.frozen:
            problem = f"{name} plays {policy}, which is not trained"
            raise InputError("population.roles", problem, "Name roles that are trained")
    if models := {*config.population.fixed_opponents} - {BASE, *config.frozen}:
        problem = f"{min(models)} cannot play a role of a program"
        raise InputError("population.fixed_opponents", problem, f"Use {BASE}, or a name in [frozen]")


def _python_program(settings: PythonProgram, client: InferenceClient, seed: int) -> Arena:
    kind: type[Arena] = own_class(settings.path, Arena, "program.path")
    for name in ("run", "step", "play_step"):
        if getattr(kind, name) is not getattr(Arena, name):
            raise InputError(
                "program.path",
                f"{kind.__name__} overrides {name}, which training does not call",
                "Override get_batch, adjust_rewards or end_step",
            )
    parameters = inspect.signature(kind).parameters
    fix = "Write it as __init__(self, client, *, seed=0, ...)"
    if "seed" not in parameters:
        raise InputError("program.path", f"{kind.__name__} does not take a seed", fix)
    if all(one.kind is one.KEYWORD_ONLY or one.name == "seed" for one in parameters.values()):
        raise InputError("program.path", f"{kind.__name__} does not take a client", fix)
    unbuilt = InputError(
        "program.path",
        f"{kind.__name__}.__init__ does not build the arena",
        "Begin it with super().__init__(client, seed=seed)",
    )
    try:
        arena = build_own(kind, "program", settings.options, client, seed=seed)
    except InputError as error:
        if _needs_what_arena_builds(error.__cause__):
            raise unbuilt from error
        raise
    if not hasattr(arena, "credit_assigner"):
        raise unbuilt
    return arena


def _needs_what_arena_builds(error: BaseException | None) -> bool:
    """Whether an own arena has used something of Arena before its constructor."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, Arena):
        return False
    return error.name in vars(Arena(MockInferenceClient()))
