"""Which fields of a configuration do nothing, because of what other fields say."""

from collections.abc import Iterator

from sparring.config.algorithms import Algorithm, CorrectedSettings, LossSettings
from sparring.config.config import NOT_FOR_PROGRAMS, Config
from sparring.config.play import Games
from sparring.config.programs import ProofsSettings
from sparring.core.own_classes import is_class_path

Found = Iterator[tuple[str, str]]
"""Fields by their dotted names, each with the reason why it does nothing."""

_CREDIT = {
    "group": ("grpo", "rloo", "reinforce_pp_baseline"),
    "normalize": ("grpo",),
    "positive_only": ("grpo",),
    "decay": ("rae",),
    "half_life": ("spo",),
    "options": ("python",),
}
"""The types of credit for which a field is."""
_CORRECTION = {
    "correction_level": ("tis", "mis", "icepop", "kpop"),
    "max_importance_weight": ("tis", "mis", "icepop", "kpop"),
    "min_importance_weight": ("icepop",),
    "kpop_threshold": ("kpop",),
}
"""The corrections for which a field is."""
_MODES = {
    "mirror_share": ("lagged", "random", "pfsp", "meta-nash", "fixed"),
    "lag_range": ("lagged",),
    "pfsp": ("pfsp",),
    "payoff_games": ("meta-nash",),
    "weights": ("fixed",),
    "places": ("fixed",),
}
"""The sample modes for which a field is."""
_PROTOCOLS = {
    "verifier_first": ("nip", "debate", "mnip"),
    "max_message_rounds": ("nip", "debate", "mnip"),
    "min_message_rounds": ("nip", "debate", "mnip"),
    "sequential": ("debate", "mnip"),
    "randomize_channel_order": ("debate", "mnip"),
    "randomize_prover_stance": ("nip", "adp", "mnip"),
    "prover_policy": ("nip", "adp", "debate", "mnip", "merlin_arthur"),
    "shared_reward": ("nip", "adp", "debate", "mnip", "merlin_arthur"),
}
"""The protocols for which a parameter is."""
_OF_FINETUNE = ("seed", "program", "roles", "collection", "tracking", "run", "finetune")
"""The sections that ``sparring finetune`` uses."""


def without_effect(config: Config) -> dict[str, str]:
    """Return the fields and sections that a run of this configuration does not use, each with the reason."""
    rules = (_of_credit, _of_rewards, _of_learning, _of_population, _of_evaluation, _of_engine, _of_play)
    return {field: reason for rule in rules for field, reason in rule(config)}


def without_effect_on_jobs(config: Config) -> dict[str, str]:
    """Return the sections that a run of fine-tuning jobs does not use."""
    is_local = config.finetune is not None and config.finetune.provider.type == "local"
    used = {*_OF_FINETUNE, "model", "inference"} if is_local else _OF_FINETUNE
    names = [name for name in type(config).model_fields if name not in used]
    return dict.fromkeys(names, "is for sparring train")


def _of_credit(config: Config) -> Found:
    if config.credit is not None:
        yield from _not_for(config.credit.type, _CREDIT, "credit", "credit.type")
        yield "rewards.sampling", "credit takes its place"


def _of_rewards(config: Config) -> Found:
    if not config.uses_buffer:
        for name in ("final", "step", "sampling"):
            yield f"rewards.{name}", "the program's episodes go through no buffer"
        yield "buffer", "the program's episodes go through none"
    elif config.learning.critic is not None:
        yield "rewards.sampling", "learning.critic takes its place"


def _of_learning(config: Config) -> Found:
    learning = config.learning
    if learning.schedule == "constant":
        yield "learning.learning_rate_end", 'learning.schedule is "constant"'
    if not learning.average_decay:
        yield "learning.average_power", "learning.average_decay is 0"
    used = [*_algorithms(config)]
    for field, one, steps in used:
        yield from _of_algorithm(one, field, steps)
    if not any(field == "learning.algorithm" for field, _, _ in used):
        yield "learning.algorithm", "every policy has its own"
    if not any(one.may_follow for _, one, _ in used):
        for name in ("reference_decay", "reference_every"):
            yield f"learning.{name}", "nothing is compared with the reference"
    if not any(one.may_normalise for _, one, _ in used):
        yield "learning.max_generation_len", "nothing is divided by it"


def _algorithms(config: Config) -> Iterator[tuple[str, Algorithm, int]]:
    """Yield each algorithm that is used: its field, its settings, and the optimizer steps of its updates."""
    learning = config.learning
    own = {name for name, one in learning.policies.items() if one.algorithm is not None}
    if not (isinstance(config.play, Games) and own >= set(config.policies)):
        steps = [learning.epochs * learning.minibatches]
        steps += [_steps(config, name) for name in learning.policies if name not in own]
        yield "learning.algorithm", learning.algorithm, max(steps)
    for name in own:
        yield f"learning.policies.{name}.algorithm", learning.of_policy(name).algorithm, _steps(config, name)


def _steps(config: Config, policy: str) -> int:
    of_policy = config.learning.of_policy(policy)
    return of_policy.epochs * of_policy.minibatches


def _of_algorithm(algorithm: Algorithm, field: str, steps: int) -> Found:
    """Return what an algorithm does not use in updates of so many optimizer steps."""
    if not isinstance(algorithm, LossSettings):
        return
    if algorithm.regulariser == "none":
        for name in ("regulariser_weight", "regulariser_weight_end"):
            yield f"{field}.{name}", f'{field}.regulariser is "none"'
    if not algorithm.kl_weight:
        for name in ("kl_to", "kl_estimator", "kl_in"):
            yield f"{field}.{name}", f"{field}.kl_weight is 0"
    if isinstance(algorithm, CorrectedSettings):
        yield from _not_for(algorithm.correction, _CORRECTION, field, f"{field}.correction")
    for name in algorithm.bounds_of_ratio if steps == 1 else ():
        if getattr(algorithm, name) is not None:
            yield f"{field}.{name}", "an update of one step has no ratio to bound"


def _of_population(config: Config) -> Found:
    mode, field = config.population.sample_mode, "population.sample_mode"
    if config.league is None:
        yield from _not_for(mode, _MODES, "population", field)
        if mode == "mirror":
            for name in ("fixed_opponents", "roles"):
                yield f"population.{name}", f'{field} is "mirror"'
            yield "collection.filter_opponent_invalid", f'{field} is "mirror"'
    else:
        for name in (*_MODES, "sample_mode", "fixed_opponents", "roles"):
            yield f"population.{name}", "[league] takes its place"
    if not config.keeps_copies:
        for name in ("max_active_lora", "add_every"):
            yield f"population.{name}", f'{field} is "{mode}", which draws no copies'


def _of_evaluation(config: Config) -> Found:
    evaluation = config.evaluation
    if not evaluation.every:
        for name in ("games_during", "patience"):
            yield f"evaluation.{name}", "evaluation.every is 0"
    for name, others in (("opponents", ()), ("nash_conv", ()), ("games", ("games_during",))):
        if evaluation.envs and all(getattr(env, name) is not None for env in evaluation.envs):
            for one in (name, *others):
                yield f"evaluation.{one}", f"every entry of evaluation.envs has its own {name}"
    exact = [evaluation.nash_conv if env.nash_conv is None else env.nash_conv for env in config.evaluated]
    if not any(exact):
        yield "evaluation.nash_conv_minutes", "no NashConv is computed"
    if evaluation.opponents == [] and not any(env.opponents for env in evaluation.envs):
        for name in ("games", "games_during", "games_alongside", "temperature"):
            yield f"evaluation.{name}", "evaluation.opponents is empty"


def _of_engine(config: Config) -> Found:
    if config.run.runtime == "local":
        yield "ray", 'run.runtime is "local"'
        yield "inference.max_adapters", 'run.runtime is "local"'
    if config.inference.engine == "embedded":
        for name in ("max_batch", "gpu_memory", "tensor_parallel"):
            yield f"inference.{name}", 'inference.engine is "embedded"'
    else:
        yield "inference.max_cached_tokens", 'inference.engine is "vllm"'


def _of_play(config: Config) -> Found:
    for name in ("finetune", "psro"):
        if getattr(config, name) is not None:
            yield name, f"is for sparring {name}"
    if isinstance(config.play, Games):
        if len(config.envs) == 1:
            yield "envs.0.weight", "there is one environment"
        yield "roles", "are of programs"
        return
    for name in NOT_FOR_PROGRAMS:
        yield name, "is for games"
    if isinstance(config.program, ProofsSettings) and not is_class_path(config.program.protocol):
        yield from _not_for(config.program.protocol, _PROTOCOLS, "program", "program.protocol")
        if not config.program.sequential:
            yield "program.prover0_first", "program.sequential is false"
        if config.program.shared_reward:
            yield "program.prover_reward", "program.shared_reward is true"


def _not_for(chosen: str, table: dict[str, tuple[str, ...]], section: str, field: str) -> Found:
    """Return the fields of a section that are for other values of ``field`` than the one that is chosen."""
    for name, of in table.items():
        if chosen not in of:
            yield f"{section}.{name}", f'{field} is "{chosen}"'
