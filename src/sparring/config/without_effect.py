"""Which fields of a configuration do nothing, because of what other fields say."""

from collections.abc import Iterator

from sparring.config.algorithms import Algorithm, LossSettings
from sparring.config.config import Config
from sparring.config.facts import without_effect_by_facts
from sparring.config.play import Games
from sparring.config.population import PopulationSettings

Found = Iterator[tuple[str, str]]
"""Fields by their dotted names, each with the reason why it does nothing."""

_OF_FINETUNE = ("seed", "program", "roles", "collection", "tracking", "run", "finetune")
"""The sections that ``sparring finetune`` uses."""


def without_effect(config: Config) -> dict[str, str]:
    """Return the fields and sections that a run of this configuration does not use, each with the reason."""
    rules = (without_effect_by_facts, _of_learning, _of_league, _of_evaluation, _of_play)
    return {field: reason for rule in rules for field, reason in rule(config)}


def without_effect_on_jobs(config: Config) -> dict[str, str]:
    """Return the fields and sections that a run of fine-tuning jobs does not use."""
    is_local = config.finetune is not None and config.finetune.provider.type == "local"
    used = {*_OF_FINETUNE, "model", "inference"} if is_local else _OF_FINETUNE
    names = [name for name in type(config).model_fields if name not in used]
    return dict.fromkeys([*names, "run.store"], "is for sparring train")


def _of_learning(config: Config) -> Found:
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
    settings = {name: learning.of_policy(name) for name in learning.policies}
    steps = {name: one.epochs * one.minibatches for name, one in settings.items()}
    own = [name for name, one in learning.policies.items() if one.algorithm is not None]
    if not (isinstance(config.play, Games) and {*own} >= {*config.policies}):
        shared = [count for name, count in steps.items() if name not in own]
        yield "learning.algorithm", learning.algorithm, max([learning.epochs * learning.minibatches, *shared])
    for name in own:
        yield f"learning.policies.{name}.algorithm", settings[name].algorithm, steps[name]


def _of_algorithm(algorithm: Algorithm, field: str, steps: int) -> Found:
    """Yield what an algorithm does not use in updates of so many optimizer steps."""
    if isinstance(algorithm, LossSettings) and algorithm.regulariser == "none":
        for name in ("regulariser_weight", "regulariser_weight_end"):
            yield f"{field}.{name}", f'{field}.regulariser is "none"'
    for name in algorithm.bounds_of_ratio if steps == 1 else ():
        yield f"{field}.{name}", "an update of one step has no ratio to bound"


def _of_league(config: Config) -> Found:
    if config.league is not None:
        used = {"max_active_lora", "add_every", "sampling", "fixed_opponents"}
        for name in PopulationSettings.model_fields.keys() - used:
            yield f"population.{name}", "[league] takes its place"


def _of_evaluation(config: Config) -> Found:
    evaluation = config.evaluation
    for name, others in (("opponents", ()), ("nash_conv", ()), ("games", ("games_during",))):
        if evaluation.envs and all(getattr(env, name) is not None for env in evaluation.envs):
            for one in (name, *others):
                yield f"evaluation.{one}", f"every entry of evaluation.envs has its own {name}"
    if not any(evaluation.nash_conv if env.nash_conv is None else env.nash_conv for env in config.evaluated):
        yield "evaluation.nash_conv_minutes", "no NashConv is computed"
    if evaluation.opponents == [] and not any(env.opponents for env in evaluation.envs):
        for name in ("games", "games_during", "games_alongside"):
            yield f"evaluation.{name}", "evaluation.opponents is empty"
        if not evaluation.tasks:
            for name in ("temperature", "sampling"):
                yield f"evaluation.{name}", "evaluation.opponents is empty"


def _of_play(config: Config) -> Found:
    for name in ("finetune", "psro"):
        if getattr(config, name) is not None:
            yield name, f"is for sparring {name}"
    if len(config.envs) == 1:
        yield "envs.0.weight", "there is one environment"
