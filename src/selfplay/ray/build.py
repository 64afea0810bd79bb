"""Build a whole system of UnstableBaselines' actors in one call, and ``start`` it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from selfplay.cluster.addresses import make_token
from selfplay.cluster.engines.api_models import check_opponent_name
from selfplay.cluster.ray_import import check_loopback
from selfplay.core import InputError
from selfplay.envs.scripted import PLAYER_NAMES
from selfplay.learning.algorithms import Reinforce
from selfplay.ray import forms
from selfplay.ray import reward_transformations as retra
from selfplay.ray.forms import DEFAULT_OPPONENT
from selfplay.ray.gpus import gpus_of_cluster

LORA = {"lora_rank": 32, "lora_alpha": 32, "lora_dropout": 0.0}
ENGINE = {"max_parallel_seq": 128, "max_loras": 8, "max_model_len": 8192}
NAMESPACE = "unstable"


@dataclass(frozen=True)
class TrainEnvSpec:
    """An environment to train in; the policy takes ``num_actors`` seats, opponents take the rest."""

    env_id: str
    num_players: int
    num_actors: int
    prompt_template: str
    action_extraction_fn: str = "default"

    def __post_init__(self) -> None:
        if not 1 <= self.num_actors <= self.num_players:
            raise InputError(
                "num_actors",
                f"{self.num_actors} of {self.num_players} seats cannot be trained",
                "Give a number from 1 to num_players",
            )


@dataclass(frozen=True)
class EvalEnvSpec:
    """An environment to evaluate in: the policy takes one seat, ``fixed_opponent`` takes the others."""

    env_id: str
    num_players: int
    prompt_template: str
    action_extraction_fn: str = "default"
    fixed_opponent: str = DEFAULT_OPPONENT


@dataclass(frozen=True)
class Run:
    """The handles of the actors that :func:`build` started."""

    tracker: Any
    step_buffer: Any
    model_pool: Any
    collector: Any
    learner: Any

    def start(
        self, learning_steps: int, num_collection_workers: int = 256, num_eval_workers: int = 16
    ) -> int:
        """Play and learn until there are ``learning_steps`` updates; return how many there are."""
        collecting = self.collector.collect.remote(num_collection_workers, num_eval_workers)
        learning = self.learner.train.remote(learning_steps)
        done, _ = ray.wait([collecting, learning], num_returns=1)
        if done == [collecting]:
            ray.get(collecting)  # it ended before the learner did: raise its error
        steps: int = ray.get(learning)
        return steps


def build(
    *,
    model_name: str,
    train_envs: Sequence[TrainEnvSpec],
    eval_envs: Sequence[EvalEnvSpec] | None = None,
    env_sampling_strategy: str = "random",
    opponent_sampling_strategy: str = "none",
    fixed_opponents: Sequence[str] = (DEFAULT_OPPONENT,),
    algorithm: str = "reinforce",
    max_train_len: int | None = None,
    max_generation_len: int = 4096,
    batch_size: int = 384,
    mini_batch_size: int = 1,
    learning_rate: float = 1e-5,
    gradient_clipping: float = 0.2,
    activation_checkpointing: bool = True,
    gradient_checkpointing: bool = True,
    use_trainer_cache: bool = False,
    buffer_size: int | None = None,
    lora_config: dict[str, Any] | None = None,
    vllm_config: dict[str, Any] | None = None,
    wandb_project: str | None = None,
    num_engines: int = 1,
    run_name: str = "run",
) -> Run:
    """Start the actors of a run. If Ray is not connected, a cluster is started for this machine only.

    Args:
        model_name: the base model.
        train_envs: the environments of training.
        eval_envs: the environments of evaluation; none by default.
        env_sampling_strategy: only ``random``.
        opponent_sampling_strategy: ``none`` or ``mirror`` (the policy takes all seats), or ``fixed``.
        fixed_opponents: the opponents to draw from with ``fixed``.
        algorithm: only ``reinforce``.
        max_train_len, max_generation_len, batch_size, mini_batch_size, learning_rate, gradient_clipping,
            activation_checkpointing, gradient_checkpointing, use_trainer_cache: as for ``StandardLearner``.
        buffer_size: maximum steps kept; twice the batch by default.
        lora_config, vllm_config: changes to the defaults.
        wandb_project: a Weights & Biases project to which metrics are sent too.
        num_engines: number of inference actors.
        run_name: name of the run's directory in ``runs``.

    Raises:
        InputError: an argument is wrong, or an API model has no key.
    """
    _check_choice("env_sampling_strategy", env_sampling_strategy, ("random",))
    _check_choice("opponent_sampling_strategy", opponent_sampling_strategy, ("none", "mirror", "fixed"))
    _check_choice("algorithm", algorithm, ("reinforce",))
    opponents = list(fixed_opponents) if opponent_sampling_strategy == "fixed" else []
    for name in opponents:
        check_opponent_name(name, "fixed_opponents")
    _connect()
    lora = LORA | (lora_config or {})
    engine = ENGINE | {"max_tokens": max_generation_len} | (vllm_config or {})
    engine |= {"model_name": model_name, "lora_config": lora}
    tracker = forms.Tracker(name="Tracker").remote(run_name, wandb_project)
    step_buffer = _step_buffer(buffer_size or 2 * batch_size, tracker)
    model_pool = _model_pool(opponents, tracker)
    collector = _collector(num_engines, step_buffer, model_pool, tracker, engine, train_envs, eval_envs or ())
    learner = forms.StandardLearner(name="Learner", num_gpus=1 if gpus_of_cluster() else 0).remote(
        model_name,
        step_buffer,
        model_pool,
        Reinforce(),
        batch_size,
        mini_batch_size,
        max_generation_len,
        learning_rate,
        gradient_clipping,
        lora_cfg=lora,
        tracker=tracker,
        activation_checkpointing=activation_checkpointing,
        gradient_checkpointing=gradient_checkpointing,
        use_trainer_cache=use_trainer_cache,
        max_train_len=max_train_len,
    )
    return Run(tracker, step_buffer, model_pool, collector, learner)


def _connect() -> None:
    """Start a cluster for this machine only, unless the program has connected to one."""
    if not ray.is_initialized():
        check_loopback()
        make_token()
        # "local": without it Ray would join whatever cluster runs on this machine.
        ray.init(address="local", namespace=NAMESPACE, include_dashboard=False)


def _step_buffer(size: int, tracker: Any) -> Any:
    return forms.StepBuffer(name="StepBuffer").remote(
        size,
        tracker,
        retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()]),
        retra.ComposeStepRewardTransforms(
            [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
        ),
        retra.ComposeSamplingRewardTransforms([retra.NormalizeRewardsByEnv(True)]),
    )


def _model_pool(opponents: Sequence[str], tracker: Any) -> Any:
    pool = forms.ModelPool(name="ModelPool").remote("fixed" if opponents else "mirror", 3, tracker)
    ray.get(pool.add_checkpoint.remote(None, -1))
    for name in opponents:
        ray.get(pool.add_fixed.remote(name, kind="script" if name in PLAYER_NAMES else "fixed"))
    return pool


def _collector(
    num_engines: int,
    step_buffer: Any,
    model_pool: Any,
    tracker: Any,
    engine: dict[str, Any],
    train_envs: Sequence[TrainEnvSpec],
    eval_envs: Sequence[EvalEnvSpec],
) -> Any:
    return forms.Collector(name="Collector").remote(
        num_engines,
        step_buffer,
        model_pool,
        tracker,
        engine,
        [(env.env_id, env.num_players, env.prompt_template, env.num_actors) for env in train_envs],
        [(env.env_id, env.num_players, env.prompt_template) for env in eval_envs],
        [env.fixed_opponent for env in eval_envs],
    )


def _check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(field, f"there is no {value!r}", f"Use {' or '.join(choices)}")
