"""A program for ``sparring.compat.unstable``, as somebody who knows UnstableBaselines would write it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import sparring.compat.unstable as unstable
import sparring.compat.unstable.reward_transformations as retra

NAMES = ("Tracker", "StepBuffer", "ModelPool", "Collector", "Learner")
NAMESPACE = "unstable"
TAK = ("SimpleTak-v0-train", 2, "qwen3-zs")
LORA = {"lora_rank": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
BATCH_SIZE = 16


@dataclass(frozen=True)
class Demo:
    """What there was to see when the program had ended.

    ``named`` are the actors that a lookup by name found, ``info`` is the tracker's for interfaces.
    """

    directory: Path
    named: list[str]
    snapshot: dict[str, Any]
    accounts: dict[str, int]
    steps: dict[str, int]
    info: dict[str, Any]


def train_on_tak(
    model: str, opponent: str, updates: int, engines: int, max_tokens: int, max_model_len: int
) -> Demo:
    """Train on the cluster that is connected, by remote calls only, look at the result and end the actors."""
    try:
        tracker = unstable.Tracker.options(name="Tracker").remote(run_name="tak", wandb_project="tests")
        step_buffer = buffer_of_tak(tracker)
        model_pool = unstable.ModelPool.options(name="ModelPool").remote(
            sample_mode="mirror", max_active_lora=3, tracker=tracker
        )
        ray.get(model_pool.add_checkpoint.remote(path=None, iteration=-1))
        services = {"step_buffer": step_buffer, "model_pool": model_pool, "tracker": tracker}
        collector = unstable.Collector.options(name="Collector").remote(
            num_actors=engines,
            vllm_config={
                "model_name": model,
                "lora_config": LORA,
                "max_loras": 5,
                "max_parallel_seq": 32,
                "max_tokens": max_tokens,
                "max_model_len": max_model_len,
            },
            training_envs=[TAK],
            evaluation_envs=[TAK, ("KuhnPoker-v0-train", 2, "qwen3-zs")],
            evaluation_opponent=opponent,
            **services,
        )
        learner = unstable.StandardLearner.options(num_gpus=0, name="Learner").remote(
            model_name=model,
            algorithm=unstable.algorithms.Reinforce(),
            lora_cfg=LORA,
            learning_rate=1e-5,
            grad_clip=0.2,
            batch_size=BATCH_SIZE,
            mini_batch_size=1,
            max_generation_len=max_tokens,
            max_train_len=None,
            activation_checkpointing=False,
            gradient_checkpointing=False,
            **services,
        )
        playing = collector.collect.remote(num_workers=16, num_eval_workers=4)
        ray.get(learner.train.remote(updates))
        ray.get(playing)
        return Demo(
            Path(ray.get(tracker.run_directory.remote())),
            [name for name in NAMES if find(name) is not None],
            ray.get(model_pool.snapshot.remote()),
            ray.get(model_pool.accounts.remote()),
            ray.get(step_buffer.counts.remote()),
            ray.get(tracker.get_interface_info.remote()),
        )
    finally:
        end()


def buffer_of_tak(tracker: Any) -> Any:
    """A buffer with a transform of each family."""
    return unstable.StepBuffer.options(name="StepBuffer").remote(
        max_buffer_size=3 * BATCH_SIZE,
        tracker=tracker,
        final_reward_transformation=retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()]),
        step_reward_transformation=retra.ComposeStepRewardTransforms(
            [retra.PenaltyForInvalidMove(0.5, -0.5), retra.RewardForFormat(1.0)]
        ),
        sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
            [retra.NormalizeRewardsByEnv(True)]
        ),
    )


def find(name: str) -> Any:
    """The actor of this name, or nothing."""
    with suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    return None


def end() -> None:
    """End the program's named actors, so that others can take their names."""
    for name in NAMES:
        while (actor := find(name)) is not None:
            ray.kill(actor)
