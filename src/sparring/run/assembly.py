"""Build the objects that a configuration describes.

torch is imported only by the functions that build a model or what works on it: on Ray, most processes of a
run do neither.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.collection.collector import Limits
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.collection.pool_state import AddFixed
from sparring.collection.results import EnvSpec, TakeIn
from sparring.config import Config
from sparring.config.league import Seats, seats_of
from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.config.play import Games, GameSettings
from sparring.core import Arena, InferenceClient, derive_seed
from sparring.core.adapters import BASE, TRAINED, average_of
from sparring.envs.catalog import reward_bounds
from sparring.envs.game_episode import GameEpisode, build_episode
from sparring.envs.scripted import PLAYER_NAMES
from sparring.learn.model_files import resolve_model
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.population.opponent_choice import SamplingRule
from sparring.population.pool_members import POLICY_UID
from sparring.run.evaluation_opponents import all_evaluation_opponents, evaluation_opponents, opponent_calls
from sparring.run.given_adapters import frozen_of
from sparring.run.hardware import available_cores, base_dtype, chosen_threads

if TYPE_CHECKING:
    from sparring.engine.engine import EmbeddedEngine
    from sparring.engine.published_adapters import PublishedAdapters
    from sparring.engine.vllm_engine import VLLMEngine
    from sparring.learn.learner import Learner
    from sparring.learn.policy import PolicyModel


def build_policy(
    model: ModelSettings,
    lora: LoraSection,
    seed: int,
    say: Callable[[str], None],
    policies: Sequence[str] = (TRAINED,),
    *,
    shard_base: bool = False,
) -> "PolicyModel":
    """Load the base model with a fresh adapter for each policy.

    Raises InputError if the model cannot be loaded, or the device does not exist.
    """
    import torch

    from sparring.learn.policy import LoraSettings, PolicyModel
    from sparring.run.hardware import choose_device

    torch.set_num_threads(chosen_threads(model, available_cores(), say))
    device = choose_device(model.device)
    return PolicyModel(
        resolve_model(model.name, say),
        LoraSettings(lora.rank, float(lora.alpha), list(lora.target_modules)),
        dtype=base_dtype(model.dtype, device),
        device=device,
        quantization=model.quantization,
        shard_base=shard_base,
        seed=derive_seed(seed, "adapter"),
        policies=policies,
        template_options=model.template_options,
    )


def build_engine(settings: InferenceSettings, policy: "PolicyModel") -> "EmbeddedEngine":
    """Build the embedded engine that serves ``policy``."""
    from sparring.engine.engine import EmbeddedEngine

    return EmbeddedEngine(
        policy,
        max_tokens=settings.max_tokens,
        max_context=settings.max_context,
        max_queue=settings.max_queue,
        max_cached_tokens=settings.max_cached_tokens,
    )


def build_vllm(
    model: ModelSettings, lora: LoraSection, inference: InferenceSettings, say: Callable[[str], None]
) -> "VLLMEngine":
    """Build vLLM's engine, not started, for adapters of the shape ``lora``. Raises InputError."""
    from sparring.engine.vllm_engine import VLLMEngine
    from sparring.run.hardware import choose_device

    dtype = base_dtype(model.dtype, choose_device(model.device))  # vLLM's own "auto" may be another than ours
    return VLLMEngine(
        str(resolve_model(model.name, say)),
        max_tokens=inference.max_tokens,
        max_context=inference.max_context,
        max_queue=inference.max_queue,
        max_batch=inference.max_batch,
        max_adapters=inference.max_adapters,
        max_lora_rank=lora.rank,
        dtype=str(dtype).removeprefix("torch."),
        gpu_memory=inference.gpu_memory,
        tensor_parallel=inference.tensor_parallel,
        sleeps=inference.sleep > 0,
        template_options=model.template_options,
    )


def build_learner(config: Config, model: "PolicyModel", policy: str = TRAINED) -> "Learner":
    """Build the learner of one policy's adapter, with the settings of this policy."""
    from sparring.learn.algorithms import build_algorithm
    from sparring.learn.learner import Learner

    if config.league is not None and config.league.evolution is not None:
        from sparring.learn.adapter_evolution import check_crossable

        check_crossable(model.adapter_shapes(policy), config.lora.rank)
    settings = config.learning_of(policy)
    seed = derive_seed(config.seed, "learner", policy)
    return Learner(model, build_algorithm(settings.algorithm), settings, adapter=policy, seed=seed)


def build_arena(config: Config, client: InferenceClient, max_calls: int) -> Arena:
    """Build an arena that plays with the client, with the limits of the configuration."""
    return Arena(
        client,
        max_calls=max_calls,
        episode_timeout=config.collection.game_timeout,
        retries=config.collection.retries,
    )


def unit_of_play(config: Config) -> tuple[str, int | None]:
    """Return what an update plays, and how many: ``("games", 1536)``; ``None`` where the program decides."""
    if isinstance(config.play, Games):
        return "games", config.collection.games_per_step
    return "episodes", None


def adapter_paths(checkpoint: Path, policies: list[str]) -> list[Path]:
    """Return the directories of a checkpoint's adapters."""
    return [checkpoint] if policies == [TRAINED] else [checkpoint / policy for policy in policies]


def env_spec(config: Config, env: GameSettings) -> EnvSpec:
    """Return the scheduler's view of an environment."""
    key = f"{env.name}|{env.num_players}|{env.template}"
    policies = (f"fixed-{one}" if one in config.frozen else one for one in env.policies)
    rewards = reward_bounds(env.env_id) or EnvSpec.rewards
    return EnvSpec(key, env.name, env.num_players, policies=tuple(policies), rewards=rewards)


def build_episodes(config: Config) -> dict[str, GameEpisode]:
    """Return the episodes of training, and of evaluation games beside it, by the keys of their specs."""
    episodes = {env_spec(config, env).key: build_episode(env, env.temperature) for env in config.envs}
    return episodes | {
        _evaluation_spec(config, env).key: build_episode(env, env.temperature) for env in config.evaluated
    }


def evaluation_specs(config: Config) -> list[tuple[EnvSpec, str]]:
    """Return the games of evaluations, each with an opponent of the pool."""
    return [
        (_evaluation_spec(config, env), f"fixed-{name}")
        for env in config.evaluated
        for name in evaluation_opponents(config, env)
    ]


def _evaluation_spec(config: Config, env: GameSettings) -> EnvSpec:
    spec = env_spec(config, env)
    return replace(spec, key=f"evaluation|{spec.key}", env_id=config.label(env))


def fixed_members(config: Config) -> list[AddFixed]:
    """Return the fixed opponents of training, and frozen seats and opponents of evaluations.

    Only the first are active; ``policy`` is the one in whose place they play.
    """
    training, evaluating = config.population.fixed_opponents, all_evaluation_opponents(config)
    games = [*config.envs, *config.evaluated]
    seated = [name for game in games for name in game.seats if name in config.frozen]
    places, files = config.population.places, frozen_of(config, "policy")
    return [
        AddFixed(
            name,
            kind="script" if name in (*PLAYER_NAMES, *files) else "fixed",
            active=name in training,
            policy=places.get(name, ""),
            path=files.get(name, ""),
        )
        for name in dict.fromkeys([*training, *seated, *evaluating])
    ]


def evaluated_uid(config: Config, policy: str = POLICY_UID) -> str:
    """Return the pool's member that evaluations play and rate: a policy, or its running average if any."""
    return average_of(policy) if config.learning.average_decay else policy


def pool_arguments(config: Config, policies: Sequence[str], roles: Seats | None = None) -> dict[str, Any]:
    """Return the arguments of a run's :class:`PoolService` that its configuration decides.

    ``roles`` are those of a program that are trained, with their policies.
    """
    population = config.population
    weights = population.weights_by_name if population.weights else {}
    rule = SamplingRule(population.mirror_share, population.pfsp, population.payoff_games, weights)
    if roles is not None and len({*roles.values()}) > 1:
        rule = replace(rule, sides=tuple(roles.values()))
    return {
        "sample_mode": config.sample_mode,
        "max_active_lora": population.max_active_lora,
        "lag_range": population.lag_range,
        "policies": policies,
        "seed": derive_seed(config.seed, "pool"),
        "rule": rule,
        "build_league": partial(build_league, config, roles=roles),
    }


def build_pool(
    config: Config,
    policies: Sequence[str],
    tracker: LocalHandle | None = None,
    roles: Seats | None = None,
) -> PoolService:
    """Build the pool of a run with its policies, and the roles of its program; it keeps no journal."""
    return PoolService(tracker=tracker, **pool_arguments(config, policies, roles))


def build_league(config: Config, pool: ModelPool, roles: Seats | None = None) -> League | None:
    """Build the league, if one is configured, whose members are in the pool."""
    if config.league is None:
        return None
    games = Games(config.envs).seats if roles is None else [roles]
    settings = config.league.seated(games)
    draws = 1 if roles else config.collection.games_per_step  # those of a program have their update's number
    return League(settings, pool, config.seed, config.population.add_every, seats_of(games), draws)


def play_settings(config: Config, *, limited: bool = True) -> PlaySettings:
    """Return the games of a run; without ``limited``, games are played for as long as they are asked for."""
    alongside = config.evaluation.games_alongside
    return PlaySettings(
        environments=tuple(env_spec(config, env) for env in config.envs),
        weights=tuple(env.weight for env in config.envs),
        evaluation=tuple(evaluation_specs(config)) if alongside else (),
        seed=config.seed,
        temperature=config.inference.temperature,
        max_tokens=config.inference.max_tokens,
        opponents=opponent_calls(config),
        curriculum=config.collection.curriculum,
        games_per_step=config.collection.games_per_step if limited else None,
        max_staleness=config.collection.max_staleness,
        eval_games_per_step=alongside if limited else None,
    )


def limits(config: Config, max_calls: int) -> Limits:
    """Return the limits on the games of a run, with so many model calls at a time."""
    return Limits(config.collection.game_timeout, config.collection.retries, max_calls)


def take_in(config: Config) -> TakeIn:
    """Return what becomes of the games of a run."""
    collection = config.collection
    return TakeIn(collection.filter_opponent_invalid, config.tracking.games_logged, collection.games_per_step)


def publish_models(
    model: ModelSettings,
    adapters: Mapping[str, Path],
    inference: InferenceSettings,
    *,
    base: str = BASE,
    versions: Mapping[str, int] | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> "PublishedAdapters":
    """Load a model here; return an engine that answers with it and, by name, with adapters in PEFT's format.

    Args:
        base: the name of the base model.
        versions: the version that an adapter's answers carry, by name; by default they are numbered.

    Raises InputError if the model cannot be loaded, or an adapter belongs to another, and DeliveryError if an
    adapter is not the one that its learner wrote.
    """
    from sparring.engine.published_adapters import PublishedAdapters

    policy = build_policy(model, LoraSection(rank=1), seed, say)
    published = PublishedAdapters(build_engine(inference, policy))
    for name, directory in adapters.items():
        published.publish(name, directory, (versions or {}).get(name))
    published.engine.publish(base, BASE, 0)
    return published
