"""Collector, StandardLearner and VLLMActor with the constructors of UnstableBaselines."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from selfplay.cluster.actors import EngineActor, EngineForm, gpus_of_cluster
from selfplay.cluster.engines.api_models import check_opponent_name
from selfplay.cluster.engines.client import EngineClient
from selfplay.cluster.engines.settings import from_vllm_config, lora_shape
from selfplay.cluster.handles import found
from selfplay.cluster.learners.learner import LearnerService
from selfplay.cluster.services.batches import Demand
from selfplay.cluster.services.collector import CollectorService, Limits
from selfplay.cluster.services.games_in_flight import PlaySettings
from selfplay.collection.scheduler import EnvSpec
from selfplay.core import Episode, InputError
from selfplay.envs.catalog import check_playable
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.generators import lend_generators_for_good
from selfplay.envs.templates import get_template
from selfplay.ray.learner import LearningLoop

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo

DEFAULT_OPPONENT = "google/gemini-2.0-flash-lite-001"
TRAIN_ALL = 6144
"""Tokens of one forward pass of the learner, which packs prefix trees."""

LEARNERS_WAIT = 600.0
"""Maximum seconds that learners wait for each other."""

Env = Sequence[Any]
"""(environment id, number of players, prompt template), and optionally the number of trained seats, which
otherwise follows from the pool's mode."""


class VLLMActor(EngineActor):
    """An inference actor from a ``vllm_config`` with UnstableBaselines' keys."""

    def __init__(self, cfg: dict[str, Any], tracker: Any = None, name: str = "VLLMActor") -> None:
        super().__init__(from_vllm_config(cfg), name, tracker)


def env_of(env: Env) -> EnvSpec:
    """Return the scheduler's view of an environment given as UnstableBaselines gives it.

    Raises:
        InputError: there is no such environment or template.
    """
    env_id, num_players, template, *seats = env
    check_playable(env_id, num_players)
    get_template(template)
    return EnvSpec(f"{env_id}|{num_players}|{template}", env_id, num_players, *seats)


def episode_of(env: Env) -> Episode:
    """Return the episode that plays an environment."""
    return GameEpisode(env[0], env[1], get_template(env[2]))


def opponents_of(evaluation_envs: Sequence[Env], evaluation_opponent: str | Sequence[str]) -> list[str]:
    """Return the opponent of each evaluation environment."""
    if isinstance(evaluation_opponent, str):
        return [evaluation_opponent] * len(evaluation_envs)
    return list(evaluation_opponent)


def check_collector(
    num_actors: int,
    step_buffer: Any,
    model_pool: Any,
    tracker: Any,
    vllm_config: dict[str, Any],
    training_envs: Sequence[Env],
    evaluation_envs: Sequence[Env] = (),
    evaluation_opponent: str | Sequence[str] = DEFAULT_OPPONENT,
    max_eval_games_per_ckpt: int = 32,
    filter_opponent_invalid: bool = False,
    action_extraction: str = "default",
    **others: Any,
) -> None:
    """Reject arguments that cannot work, before any process is started.

    Raises:
        InputError: an argument is impossible, or an opponent is not available.
    """
    if num_actors < 1:
        raise InputError("num_actors", f"{num_actors} is not positive", "Give 1 or more")
    if action_extraction != "default":
        raise InputError(
            "action_extraction",
            f"there is no {action_extraction!r}",
            "A prompt template reads answers: default",
        )
    from_vllm_config(vllm_config)
    for env in [*training_envs, *evaluation_envs]:
        env_of(env)
    if not training_envs:
        raise InputError("training_envs", "is empty, so nothing is played", "Name an environment")
    for env, name in zip(evaluation_envs, opponents_of(evaluation_envs, evaluation_opponent), strict=True):
        if env[1] > 1:
            check_opponent_name(name, "evaluation_opponent")


class CollectorActor(CollectorService):
    """The collector with UnstableBaselines' constructor; it starts ``num_actors`` inference actors.

    An inference actor gets one GPU if the cluster has any. Opponents are given by name: ``random`` or
    ``optimal`` (scripted), ``base`` (the untrained model), the directory of an adapter, or a model behind an
    API. With several evaluation environments, ``evaluation_opponent`` may be a list.
    """

    def __init__(
        self,
        num_actors: int,
        step_buffer: Any,
        model_pool: Any,
        tracker: Any,
        vllm_config: dict[str, Any],
        training_envs: Sequence[Env],
        evaluation_envs: Sequence[Env] = (),
        evaluation_opponent: str | Sequence[str] = DEFAULT_OPPONENT,
        max_eval_games_per_ckpt: int = 32,
        filter_opponent_invalid: bool = False,
        action_extraction: str = "default",
        *,
        seed: int = 0,
    ) -> None:
        lend_generators_for_good()
        settings = from_vllm_config(vllm_config)
        context = ray.get_runtime_context()
        name = context.get_actor_name() or f"Collector-{context.get_actor_id()}"
        tracker = found(tracker)
        gpus = 1 if gpus_of_cluster() else 0
        self.engines = [
            EngineForm.options(num_gpus=gpus).remote(settings, f"Engine-{number}", tracker)
            for number in range(num_actors)
        ]
        names = opponents_of(evaluation_envs, evaluation_opponent)
        for opponent in names:
            check_opponent_name(opponent, "evaluation_opponent")  # here the environment may lack a key
        play = PlaySettings(
            environments=tuple(map(env_of, training_envs)),
            weights=(1.0,) * len(training_envs),
            evaluation=tuple(
                (env_of(env), f"fixed-{opponent}")
                for env, opponent in zip(evaluation_envs, names, strict=True)
            ),
            seed=seed,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            max_eval_games_per_ckpt=max_eval_games_per_ckpt,
        )
        episodes = {env_of(env).key: episode_of(env) for env in [*training_envs, *evaluation_envs]}
        super().__init__(
            name,
            EngineClient(self.engines, calls_per_engine=settings.max_queue),
            found(step_buffer),
            found(model_pool),
            tracker,
            play,
            episodes,
            Limits(max_calls=num_actors * settings.max_queue),
            filter_opponent_invalid=filter_opponent_invalid,
        )


class StandardLearnerActor(LearningLoop):
    """The learner with UnstableBaselines' constructor.

    Batches are packed as prefix trees, so ``mini_batch_size`` does not change the gradient; it only limits
    the tokens of a forward pass, and only if ``max_train_len`` is given too. Activations are recomputed where
    that saves memory, regardless of the two checkpointing switches, and training keeps no key-value cache.

    ``temperature`` is the sampling temperature of the collector's engines.
    """

    def __init__(
        self,
        model_name: str,
        step_buffer: Any,
        model_pool: Any,
        algorithm: "BaseAlgo",
        batch_size: int,
        mini_batch_size: int,
        max_generation_len: int,
        learning_rate: float = 1e-5,
        grad_clip: float = 1.0,
        batch_delay_buffer: float = 1.5,
        lora_cfg: dict[str, Any] | None = None,
        initial_lora_path: str | None = None,
        num_learners: int = 1,
        ckpt_root: str = "checkpoints",
        save_every: int = 1,
        tracker: Any = None,
        activation_checkpointing: bool = True,
        gradient_checkpointing: bool = True,
        use_trainer_cache: bool = False,
        max_train_len: int | None = None,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        run: str | None = None,
    ) -> None:
        from selfplay.cluster.learners.group import LearnerGroup
        from selfplay.cluster.learners.settings import (
            UnstableLearnerSettings,
            learners_from_unstable_settings,
        )

        settings = UnstableLearnerSettings(
            model=model_name,
            algorithm=algorithm,
            max_generation_len=max_generation_len,
            learning_rate=learning_rate,
            grad_clip=grad_clip,
            **lora_shape(lora_cfg or {}),
            max_train_len=max_train_len,
            max_batch_tokens=max(TRAIN_ALL, mini_batch_size * (max_train_len or 0)),
            temperature=temperature,
            seed=seed,
        )
        directory = Path(run or f"runs/learner-{ray.get_runtime_context().get_actor_id()}")
        group = LearnerGroup(
            functools.partial(learners_from_unstable_settings, settings),
            num_learners,
            gpus=len(ray.get_gpu_ids()),
            cpus=0,
            timeout_seconds=LEARNERS_WAIT,
        )
        initial = Path(initial_lora_path) if initial_lora_path is not None else None
        super().__init__(
            LearnerService(group, directory, model_name, initial_adapter=initial),
            found(step_buffer),
            found(model_pool),
            found(tracker),
            demand=Demand(batch_size, entries=math.ceil(batch_size * batch_delay_buffer)),
            add_every=save_every,
            checkpoint=lambda step: (
                directory / ckpt_root / f"step-{step:06d}" if step % save_every == 0 else None
            ),
        )
