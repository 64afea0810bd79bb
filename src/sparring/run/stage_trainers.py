"""Build the stage trainer of a configuration: claims, agents and their models, and where jobs are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sparring.config import Config
from sparring.config.finetune import DEFAULT_AGENT, FinetuneSettings, parameters_of
from sparring.config.programs import ProofsSettings
from sparring.core import CallSettings, InferenceClient, InputError, derive_seed
from sparring.core.adapters import BASE, TRAINED
from sparring.core.errors import check_installed
from sparring.core.own_code import is_class_path, own_class
from sparring.core.reasoning import ReasoningTags
from sparring.core.sampling import Sampling
from sparring.engine.adapters import FINE_TUNED
from sparring.engine.api_connection import HOSTED, checked_address, key_of
from sparring.engine.openai_client import OpenAIClient
from sparring.finetune.algorithms import PureTextEiTrainer, PureTextMaltTrainer
from sparring.finetune.hyper_params import ExperimentSettings, HyperParameters
from sparring.finetune.jobs.schema import (
    DpoHyperparameters,
    SupervisedHyperparameters,
    TinkerHyperparameters,
)
from sparring.finetune.model_groups import JobRecords, PureTextSharedModelGroup
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import DryRunJobs, JobMethod, JobProvider, drawing_agents
from sparring.finetune.run_files import RunFiles
from sparring.finetune.scenario import PureTextEnvironment, ScenarioInstance, agents_of
from sparring.finetune.statistics import View
from sparring.finetune.trainer import PureTextRlTrainer
from sparring.programs.proofs.arena import ProofArena
from sparring.programs.proofs.claims import Claim
from sparring.programs.proofs.episode import ProofEpisode
from sparring.run.programs import build_program, calls_in_tests
from sparring.run.run_names import last_part


def build_trainer(
    config: Config,
    scenario: ScenarioInstance,
    directory: Path,
    view: View | None = None,
    *,
    accept_changes: bool = False,
    wandb_run: Any | None = None,
) -> PureTextRlTrainer:
    """Build the trainer of a configuration and of the components built from it."""
    given = settings_of(config)
    program = _proofs_of(config)
    roles = {
        name: role.model_dump(exclude_none=True, exclude={"policy"}) for name, role in config.roles.items()
    }
    params = HyperParameters(
        **dict(given),
        interaction_protocol=program.protocol,
        seed=config.seed,
        program=program.model_dump(),
        roles={name: role for name, role in roles.items() if role},
        model=config.model.model_dump(include={"name", "dtype", "quantization"}) if _is_local(given) else {},
    )
    settings = ExperimentSettings(
        run_dir=directory,
        num_rollout_workers=given.provider.concurrency,
        force_more_iterations=True,
        accept_changes=accept_changes,
        poll_seconds=given.provider.poll_seconds,
        job_timeout=given.provider.job_timeout,
        recreate_failed_jobs=given.provider.recreate_failed_jobs,
        wandb_run=wandb_run,
    )
    return trainer_class(given.trainer)(params, scenario, settings, view)


def trainer_class(name: str) -> type[PureTextRlTrainer]:
    """Return the trainer of a name, or of a file and a class."""
    if is_class_path(name):
        own: type[PureTextRlTrainer] = own_class(name, PureTextRlTrainer, "finetune.trainer")
        return own
    return PureTextEiTrainer if name == "pure_text_ei" else PureTextMaltTrainer


MAX_JOB_SEED = 2**31
"""Seeds of jobs are smaller, which every API accepts."""


def build_scenario(
    config: Config, directory: Path, say: Callable[[str], None] = lambda line: None, *, connect: bool = True
) -> ScenarioInstance:
    """Build the components of an experiment: the claims, the protocol, the agents and their models.

    ``say`` is told when a provider lets a job wait for long, and what a local one loads. Without ``connect``,
    a local provider does not load its model. Raises InputError if the configuration does not fit.
    """
    given = settings_of(config)
    _proofs_of(config)
    arena = build_program(config)
    assert isinstance(arena, ProofArena)
    names = [agent.name for agent in arena.protocol.agents]
    _check_models(config, names)
    groups = _groups(config, names, directory)
    _check_hyperparameters(given, groups)
    arena.client, provider = _api(config, arena, directory, say, connect)
    groups = {name: replace(group, provider=provider) for name, group in groups.items()}
    arena.set_concurrency(given.provider.concurrency)
    parameters = {agent: parameters_of(given.agents, agent) for agent in arena.roles}

    def environment(claims: Sequence[Claim], count: int, *, train: bool) -> PureTextEnvironment:
        calls = {name: CallSettings(one.temperature) for name, one in parameters.items()}
        if not train:
            # An agent is a role as well; its own table goes before that of the role.
            calls = {
                name: CallSettings(one.test_temperature).over(calls_in_tests(config, name)).over(calls[name])
                for name, one in parameters.items()
            }
        return PureTextEnvironment(
            *(arena, arena.protocol, claims, count, lambda: agents_of(groups, calls)),
            seed=config.seed,
            train=train,
        )

    claims = list(arena.claims.values())
    rows = given.rl.rollouts_per_iteration or len(claims)
    tests = len(arena.held_out) if given.text_rl.test_on_whole_dataset else rows
    episode = arena.episodes["proof"]
    assert isinstance(episode, ProofEpisode)
    return ScenarioInstance(
        arena.protocol,
        episode,
        environment(claims, rows, train=True),
        environment(arena.held_out, tests * given.rl.num_test_iterations, train=False),
        groups,
    )


def _check_models(config: Config, agents: list[str]) -> None:
    """Check that the agents start from models that the provider has, as far as that is known."""
    given = settings_of(config)
    url, is_local = given.provider.address, _is_local(given)
    if is_local and given.provider.base_url is not None:
        problem = f"is {url}, but a local provider asks no API"
        raise InputError("finetune.provider.base_url", problem, 'Leave it out, or set type = "openai"')
    is_tinker = given.provider.type == "tinker"
    if is_tinker and given.trainer == "pure_text_malt":
        problem = "is pure_text_malt, which makes jobs of DPO, and Tinker's API has no DPO"
        raise InputError("finetune.trainer", problem, "Use pure_text_ei, or another provider")
    local = {TRAINED, BASE, last_part(config.model.name)}
    for name in agents:
        model = parameters_of(given.agents, name).model_name
        field = f"finetune.agents.{name}.model_name"
        if is_local and model not in local and not model.startswith(FINE_TUNED):
            problem = f"is {model!r}, which is not the model of [model]"
            raise InputError(
                field, problem, f"Use {', '.join(sorted(local))}, or the model of an earlier job"
            )
        if is_tinker and model in (TRAINED, BASE):
            fix = "Write the base model's name, such as Qwen/Qwen3-8B"
            raise InputError(field, f"is {model!r}, and Tinker's API has no model of that name", fix)
        if model == TRAINED and not is_local and checked_address(url).hostname in HOSTED:
            problem = f"is {TRAINED!r}, which {url} does not have"
            raise InputError(field, problem, "Write the name of the model that it starts from")


def _groups(config: Config, agents: list[str], directory: Path) -> dict[str, PureTextSharedModelGroup]:
    """Return the groups of agents that share a model, with jobs that do nothing."""
    given = settings_of(config)
    unknown = given.agents.keys() - {*agents, DEFAULT_AGENT}
    if unknown:
        raise InputError(
            "finetune.agents", f"the protocol has no agent {min(unknown)}", f"It has: {', '.join(agents)}"
        )
    parameters = {name: parameters_of(given.agents, name) for name in agents}
    members: dict[str, list[str]] = {}
    for name in agents:
        members.setdefault(parameters[name].shared_model_group or name, []).append(name)
    groups = {}
    for group, names in members.items():
        first = parameters[names[0]]
        same = {"shared_model_group": None, "temperature": None, "test_temperature": None}
        if any(parameters[n].model_copy(update=same) != first.model_copy(update=same) for n in names):
            raise InputError(
                "finetune.agents",
                f"the agents of {group} share a model but differ: {', '.join(names)}",
                "Give them the same model, beta, hyperparameters and freezing",
            )
        groups[group] = PureTextSharedModelGroup(
            group,
            tuple(names),
            first.model_name,
            DryRunJobs(),
            JobRecords(RunFiles(directory).jobs),
            first.freeze_agent,
            first.fine_tune_from_scratch,
            first.dpo_beta,
            first.hyperparameters,
            derive_seed(config.seed, "job", group) % MAX_JOB_SEED,
        )
    return groups


FORMS: dict[str, dict[JobMethod, type[BaseModel]]] = {
    "local": {"supervised": SupervisedHyperparameters, "dpo": DpoHyperparameters},
    "tinker": {"supervised": TinkerHyperparameters},
}
"""The hyperparameters that jobs may have, by provider and method, where they are known."""


def _check_hyperparameters(given: FinetuneSettings, groups: Mapping[str, PureTextSharedModelGroup]) -> None:
    """Check the hyperparameters of the jobs that a trainer of this package makes."""
    imitates = given.pure_text_malt.num_initial_ei_iterations > 0 or given.trainer == "pure_text_ei"
    used = {"supervised": imitates, "dpo": given.trainer == "pure_text_malt"}
    forms = FORMS.get(given.provider.type, {})
    methods = [] if is_class_path(given.trainer) else [method for method in forms if used[method]]
    for group in groups.values():
        for method in [] if group.freeze_agent else methods:
            try:
                forms[method].model_validate(group.hyperparameters_of(method))
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                field = f"finetune.agents.{group.agent_names[0]}.hyperparameters"
                known = f"A job has: {', '.join(forms[method].model_fields)}"
                raise InputError(field, f"{first['loc'][0]}: {first['msg']}", known) from None


def _api(
    config: Config, arena: ProofArena, directory: Path, say: Callable[[str], None], connect: bool
) -> tuple[InferenceClient, JobProvider]:
    given = settings_of(config).provider
    if given.type == "tinker":
        from sparring.finetune.tinker_client import check_call

        _check_calls(config, arena, check_call)
        check_installed("finetune.provider.type", "tinker", "tinker")
    if given.draws_answers or (given.type in ("local", "tinker") and not connect):
        return drawing_agents(arena.protocol), DryRunJobs()
    if given.type == "tinker":
        return _tinker_api(config, directory)
    if given.type == "local":
        return _local_api(config, directory, say)
    client = OpenAIClient(model=TRAINED, base_url=given.address, timeout=config.collection.game_timeout)
    _check_calls(config, arena, client.beyond_openai)
    if given.type == "dry_run":
        return client, DryRunJobs()
    return client, OpenAIJobs(
        key_of(checked_address(given.address).hostname or "")[1],
        given.address,
        least_examples=given.least_examples,
        fields={str(name): other for name, other in given.fields.items()},
        states=dict(given.states),
        say=say,
    )


def _check_calls(
    config: Config,
    arena: ProofArena,
    check: Callable[[int | None, Sampling | None, ReasoningTags], object],
) -> None:
    """Raise an InputError at the field that the user wrote if an API lacks what an agent's calls ask for."""
    for name, role in arena.roles.items():
        own = config.roles.get(name)
        limited = "inference" if own is None or own.max_reasoning is None else f"roles.{name}"
        asked = {
            f"{limited}.max_reasoning": (role.max_reasoning, None),
            f"roles.{name}.sampling": (None, role.sampling),
            f"roles.{name}.test_sampling": (None, calls_in_tests(config, name).sampling),
        }
        for field, call in asked.items():
            try:
                check(*call, role.reasoning)
            except InputError as error:
                raise InputError(field, error.problem, error.fix) from None


def _local_api(
    config: Config, directory: Path, say: Callable[[str], None]
) -> tuple[InferenceClient, JobProvider]:
    """Load the model of a configuration; its jobs are in the run's directory, as those of a server.

    A run that plays tests again has the models of its base run's jobs.
    """
    from sparring.finetune.jobs.launch import train_in_process
    from sparring.finetune.jobs.records import ServedBase
    from sparring.finetune.jobs.service import JobService
    from sparring.finetune.local_jobs import LocalJobs
    from sparring.run.assembly import publish_models

    base_run, jobs = settings_of(config).base_run, RunFiles(directory).server
    if base_run.base_run_type == "rerun_tests":
        jobs = RunFiles(Path(str(base_run.run_id))).server
    base = last_part(config.model.name)
    published = publish_models(config.model, {}, config.inference, base=base, say=say)
    for name in (TRAINED, BASE):
        published.engine.publish(name, BASE, 0)

    def open_service() -> JobService:
        return JobService(
            jobs,
            published,
            ServedBase.of(base, config.model.name, published.engine.facts()),
            adapters={},
            aliases={TRAINED: base, BASE: base},
            say=say,
            launch=train_in_process,
        )

    return published.engine, LocalJobs(open_service, settings_of(config).provider.least_examples)


def _tinker_api(config: Config, directory: Path) -> tuple[InferenceClient, JobProvider]:
    """Return what samples and trains at a service with Tinker's API."""
    from sparring.finetune.tinker_client import TinkerClient
    from sparring.finetune.tinker_jobs import TinkerJobs
    from sparring.finetune.tinker_service import TinkerService

    given = settings_of(config).provider
    service = TinkerService(given.address)
    client = TinkerClient(service, config.collection.game_timeout)
    return client, TinkerJobs(service, RunFiles(directory).tinker, given.least_examples)


def _is_local(given: FinetuneSettings) -> bool:
    return given.provider.type == "local"


def settings_of(config: Config) -> FinetuneSettings:
    """Return the settings of fine-tuning."""
    if config.finetune is None:
        raise InputError("finetune", "is missing", "Add [finetune]; see docs/howto-finetune.md")
    return config.finetune


def _proofs_of(config: Config) -> ProofsSettings:
    if not isinstance(config.play, ProofsSettings):
        raise InputError("program", "is not an interactive proof", 'Set program.type = "proofs"')
    return config.play
