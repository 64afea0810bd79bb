"""The actors of UnstableBaselines, started as Ray's own: ``Tracker.options(name="Tracker").remote(...)``.

A form takes the arguments that UnstableBaselines gives, checks them before any process is started, and starts
an actor with what that needs. Parameters that UnstableBaselines does not have are keyword-only.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import ray
from ray.actor import ActorHandle

from selfplay.cluster.actor_classes import (
    BufferActor,
    CollectorActor,
    ModelPoolActor,
    TrackerActor,
    restarting,
)
from selfplay.cluster.handles import Handle, Named
from selfplay.collection.buffer_entries import Demand
from selfplay.compat.unstable.actors import LearnerActor, build_loop
from selfplay.compat.unstable.actors import VLLMActor as EngineActor
from selfplay.compat.unstable.collector import CollectorSettings, Env, build_collector
from selfplay.compat.unstable.gpus import check_gpus
from selfplay.compat.unstable.settings import LearnerSettings, from_lora_config, from_vllm_config
from selfplay.config.learning import LearningSettings
from selfplay.config.model import ModelSettings
from selfplay.envs.scripted import PLAYER_NAMES
from selfplay.replay.buffers import BaseBuffer
from selfplay.replay.buffers import EpisodeBuffer as Episodes
from selfplay.replay.buffers import StepBuffer as Steps
from selfplay.replay.transforms import FinalRewardTransform, SamplingRewardTransform, StepRewardTransform

if TYPE_CHECKING:
    from selfplay.learning.algorithms import BaseAlgo

DEFAULT_OPPONENT = "google/gemini-2.0-flash-lite-001"
TRAIN_ALL = LearningSettings().max_batch_tokens
"""Tokens of one forward pass of the learner, which packs prefix trees."""


class Form:
    """What all forms have in common.

    Args:
        options: Ray's options.

    Attributes:
        cls: the class of the actor.
    """

    cls: type

    def __init__(self, **options: Any) -> None:
        self._options = options

    def options(self, **options: Any) -> Self:
        """Return this form with other Ray options, such as ``name``, ``num_gpus`` or ``resources``."""
        return type(self)(**(self._options | options))

    def _start(self, *args: Any, **kwargs: Any) -> Any:
        """Start the actor; return its handle.

        Raises:
            InputError: the cluster does not have this many GPUs.
        """
        check_gpus(self._options)
        return restarting(self.cls, **self._options).remote(*args, **kwargs)


class Tracker(Form):
    """Collects the metrics of a run."""

    cls = TrackerActor

    def remote(
        self,
        run_name: str,
        wandb_project: str | None = None,
        *,
        directory: str | None = None,
        tensorboard: bool = False,
    ) -> Any:
        """Start the tracker; see :class:`TrackerService`."""
        return self._start(run_name, wandb_project, directory=directory, tensorboard=tensorboard)


class StepBuffer(Form):
    """A replay buffer of steps."""

    cls = BufferActor
    kind: type[BaseBuffer] = Steps

    def remote(
        self,
        max_buffer_size: int,
        tracker: Any = None,
        final_reward_transformation: FinalRewardTransform | None = None,
        step_reward_transformation: StepRewardTransform | None = None,
        sampling_reward_transformation: SamplingRewardTransform | None = None,
        buffer_strategy: str = "random",
        *,
        seed: int = 0,
    ) -> Any:
        """Start the buffer; see :class:`selfplay.replay.buffers.BaseBuffer`."""
        build = partial(
            self.kind,
            max_buffer_size,
            final_reward_transformation=final_reward_transformation,
            step_reward_transformation=step_reward_transformation,
            sampling_reward_transformation=sampling_reward_transformation,
            buffer_strategy=buffer_strategy,
            seed=seed,
        )
        return self._start(build, named(tracker), run=run_directory(tracker))


class EpisodeBuffer(StepBuffer):
    """A replay buffer of whole episodes."""

    kind = Episodes


class ModelPool(Form):
    """The members of a run and their ratings."""

    cls = ModelPoolActor

    def remote(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: Any = None,
        lag_range: tuple[int, int] = (1, 7),
        *,
        seed: int = 0,
    ) -> Any:
        """Start the pool; see :class:`selfplay.population.model_pool.ModelPool`."""
        run = run_directory(tracker)
        return self._start(sample_mode, max_active_lora, named(tracker), lag_range, seed=seed, run=run)


class Collector(Form):
    """Plays games; it starts ``num_actors`` inference actors.

    Opponents are given by name: ``random`` or ``optimal`` (scripted), ``base`` (the untrained model), the
    directory of an adapter, or a model behind an API. With several evaluation environments,
    ``evaluation_opponent`` may be a list.
    """

    cls = CollectorActor

    def remote(
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
    ) -> Any:
        """Start the collector.

        Raises:
            InputError: an argument is impossible, or an opponent is not available.
        """
        settings = CollectorSettings(
            num_actors,
            vllm_config,
            training_envs,
            evaluation_envs,
            evaluation_opponent,
            max_eval_games_per_ckpt,
            filter_opponent_invalid,
            action_extraction,
            seed,
        )
        for name in settings.opponents():
            kind = "script" if name in PLAYER_NAMES else "fixed"
            ray.get(model_pool.add_fixed.remote(name, kind=kind, active=False))
        services = [named(one) for one in (step_buffer, model_pool, tracker)]
        return self._start(partial(build_collector, settings, *services))


class StandardLearner(Form):
    """Learns from the buffer's batches.

    Batches are packed as prefix trees, so ``mini_batch_size`` does not change the gradient; it only limits
    the tokens of a forward pass, and only if ``max_train_len`` is given too. Activations are recomputed where
    that saves memory, regardless of the two checkpointing switches, and training keeps no key-value cache.
    """

    cls = LearnerActor

    def remote(
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
        seed: int = 0,
    ) -> Any:
        """Start the learner.

        Raises:
            InputError: ``lora_cfg`` is impossible.
        """
        settings = LearnerSettings(
            model=ModelSettings(name=model_name),
            lora=from_lora_config(lora_cfg or {}),
            algorithm=algorithm,
            max_generation_len=max_generation_len,
            learning_rate=learning_rate,
            grad_clip=grad_clip,
            max_train_len=max_train_len,
            max_batch_tokens=max(TRAIN_ALL, mini_batch_size * (max_train_len or 0)),
            seed=seed,
            demand=Demand(batch_size, entries=math.ceil(batch_size * batch_delay_buffer)),
            initial_lora_path=initial_lora_path,
            num_learners=num_learners,
            ckpt_root=ckpt_root,
            save_every=save_every,
        )
        services = [named(one) for one in (step_buffer, model_pool, tracker)]
        return self._start(partial(build_loop, settings, run_directory(tracker), *services))


class VLLMActor(Form):
    """An inference actor from a ``vllm_config`` with UnstableBaselines' keys."""

    cls = EngineActor

    def remote(self, cfg: dict[str, Any], tracker: Any = None, name: str = "VLLMActor") -> Any:
        """Start the actor, whose calls are not repeated."""
        return self.options(max_task_retries=0)._start(from_vllm_config(cfg), name, named(tracker))


def named(handle: Any) -> Handle:
    """Return the name of an actor that has one; any other argument unchanged."""
    if isinstance(handle, ActorHandle):
        for one in ray.util.list_named_actors(all_namespaces=True):
            with suppress(ValueError):  # it has died meanwhile
                if ray.get_actor(one["name"], one["namespace"]) == handle:
                    return Named(one["name"], one["namespace"])
    return handle


def run_directory(tracker: Any) -> str | None:
    """Return the directory that a tracker has chosen for the run; ``None`` without a tracker."""
    if tracker is None:
        return None
    directory: str = ray.get(tracker.run_directory.remote())
    return directory
