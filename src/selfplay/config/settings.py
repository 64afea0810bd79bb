"""The configuration of a run: one validated tree, every field documented. Free of torch."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from selfplay.config.base import Settings
from selfplay.config.programs import CreditSettings, Program
from selfplay.config.ray import RaySettings
from selfplay.core import InputError

DEFAULT_TEMPLATE = "fewshot-chat"


class ModelSettings(Settings):
    """The base model, which stays frozen."""

    name: str = "smollm2-135m"
    """`smollm2-135m`, a local Hugging Face directory, or a Hugging Face id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the base weights. `auto` takes bfloat16 where the machine computes it faster than float32."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU if there is one."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for torch; all cores if not given."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise InputError("model.device", f"there is no device {device!r}", "Use auto, cpu or cuda")
        return device


class LoraSection(Settings):
    """The adapter that is trained. Its weights are float32 whatever the base's are."""

    rank: int = Field(default=16, ge=1)
    """Rank of the two factors."""
    alpha: int = Field(default=32, ge=1)
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Only 0 is possible: in a prefix tree samples share tokens, with dropout they would not."""
    target_modules: list[str] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    """Names of the linear layers that get an adapter."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float) -> float:
        if dropout != 0:
            raise InputError(
                "lora.dropout",
                f"must be 0 (got {dropout}): in a prefix tree samples share tokens, with dropout not",
                "Leave it out",
            )
        return dropout


class EnvSettings(Settings):
    """One environment to train in."""

    id: str
    """A TextArena id (`TicTacToe-v0-train`) or an OpenSpiel name (`kuhn_poker`)."""
    num_players: int = Field(default=2, ge=1)
    """How many seats."""
    template: str = DEFAULT_TEMPLATE
    """How observations become prompts and answers become moves."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the games, relative to the other environments'."""
    max_turns: int = Field(default=200, ge=1)
    """A game that takes more turns (of all players together) is cut and counts as a draw."""
    error_allowance: int = Field(default=0, ge=0)
    """How many invalid moves in a row are forgiven; the next ends the game."""


class InferenceSettings(Settings):
    """Where answers come from."""

    engine: Literal["embedded", "vllm"] = "embedded"
    """The engine of this package, or vLLM, which needs `run.runtime` ray and the extra `vllm`."""
    max_tokens: int = Field(default=16, ge=1)
    """Most tokens of one answer."""
    temperature: float = Field(default=1.0, ge=0.01)
    """At which trained seats draw. The learner uses the same."""
    max_context: int | None = Field(default=None, ge=8)
    """Most tokens of prompt and answer together; the model's own limit if not given."""
    max_queue: int = Field(default=16384, ge=1)
    """Most requests under way; one more is refused."""
    max_cached_tokens: int = Field(default=32768, ge=64)
    """Most tokens whose keys and values are kept, for each adapter version."""
    max_adapters: int = Field(default=8, ge=1)
    """Most adapters in an inference actor at once (`run.runtime` ray)."""
    max_batch: int = Field(default=256, ge=1)
    """Most requests that vLLM computes together."""
    gpu_memory: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that vLLM may take."""


class CollectionSettings(Settings):
    """How games are played."""

    games_per_step: int = Field(default=256, ge=1)
    """Games for one learner update."""
    concurrency: int = Field(default=1024, ge=1)
    """Most games in flight."""
    max_staleness: int = Field(default=0, ge=0)
    """How many versions may lie between acting and learning. 0: play and learning take turns."""
    retries: int = Field(default=2, ge=0)
    """How often a failed game is tried again before it is kept as failed."""
    max_failed_fraction: float = Field(default=0.5, ge=0, le=1)
    """The run stops when more than this part of a step's games failed."""
    game_timeout: float = Field(default=3600.0, gt=0)
    """Seconds one game may take, waiting for the model included."""
    filter_opponent_invalid: bool = False
    """Leave out games that an opponent's invalid move decided."""


class WinDrawLoss(Settings):
    """Final reward: maps a score to win, draw or loss."""

    type: Literal["win_draw_loss"] = "win_draw_loss"
    """Names this transform."""
    win: float = 1.0
    """For a score above 0."""
    draw: float = 0.0
    """For a score of 0."""
    loss: float = -1.0
    """For a score below 0."""


class RoleAdvantage(Settings):
    """Final reward: subtracts a moving average of each seat's rewards, read before it is updated."""

    type: Literal["role_advantage", "role_advantage_by_env"] = "role_advantage_by_env"
    """Whether all environments share the averages or each has its own."""
    tau: float = Field(default=0.05, gt=0, le=1)
    """Weight of the newest reward. SPIRAL uses 0.05, UnstableBaselines 0.001."""


class FormatReward(Settings):
    """Step reward: adds `reward` to well-formed answers and `penalty` to others."""

    type: Literal["reward_for_format"] = "reward_for_format"
    """Names this transform."""
    reward: float = 0.0
    """For an answer of the form that the template asks for."""
    penalty: float = 0.0
    """For any other answer; negative to punish."""


class InvalidMovePenalty(Settings):
    """Step reward: adds `penalty` to invalid moves and `reward` to others."""

    type: Literal["penalty_for_invalid_move"] = "penalty_for_invalid_move"
    """Names this transform."""
    reward: float = 0.0
    """For a valid move."""
    penalty: float = 0.0
    """For an invalid move; negative to punish."""


class Normalize(Settings):
    """Sampling reward: centres the batch's rewards, and with `z_score` divides by their deviation."""

    type: Literal["normalize_rewards", "normalize_rewards_by_env"] = "normalize_rewards_by_env"
    """Over the whole batch, or over each environment's part of it."""
    z_score: bool = False
    """Divide by the standard deviation too."""


class SamePrompt(Settings):
    """Sampling reward: subtracts the mean reward of the batch's other steps with the same prompt."""

    type: Literal["same_prompt_baseline"] = "same_prompt_baseline"
    """Names this transform."""


FinalReward = Annotated[WinDrawLoss | RoleAdvantage, Field(discriminator="type")]
StepReward = Annotated[FormatReward | InvalidMovePenalty, Field(discriminator="type")]
SamplingReward = Annotated[Normalize | SamePrompt, Field(discriminator="type")]


class RewardSettings(Settings):
    """Reward transforms, each list applied in order."""

    final: list[FinalReward] = []
    """Once for each player's game."""
    step: list[StepReward] = []
    """Once for each step."""
    sampling: list[SamplingReward] = [SamePrompt()]
    """On the batch that is trained on."""


class BufferSettings(Settings):
    """The replay buffer."""

    type: Literal["step", "episode"] = "step"
    """Whether single steps or whole episodes are drawn."""
    max_size: int = Field(default=100_000, ge=1)
    """Most steps kept."""
    batch_size: int | None = Field(default=None, ge=1)
    """Steps (or episodes) of one update; everything there is if not given."""
    log_batches: bool = True
    """Write each batch trained on to `batches/`: who, what, which reward at each stage."""


class ReinforceSettings(Settings):
    """REINFORCE with Dr.GRPO's constant normaliser."""

    type: Literal["reinforce"] = "reinforce"
    """Names this algorithm."""
    regulariser: Literal["none", "uniform", "base"] = "uniform"
    """Cross-entropy from this reference over the legal answers: uniform, or the untrained model's."""
    regulariser_weight: float = Field(default=0.2, ge=0)
    """Its weight at the first update, in units of reward."""
    regulariser_weight_end: float = Field(default=0.02, ge=0)
    """Its weight at the last update; between, it falls geometrically."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the untrained model on the sampled tokens."""
    max_importance_weight: float = Field(default=2.0, gt=0)
    """Bound of the importance weights of tokens from older versions."""


class LearningSettings(Settings):
    """The learner."""

    steps: int = Field(default=100, ge=1)
    """Updates in the whole run."""
    algorithm: ReinforceSettings = ReinforceSettings()
    """How gradients are made."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Of AdamW, after warm-up."""
    learning_rate_end: float = Field(default=5e-6, ge=0)
    """At the last update; between, it falls along a cosine."""
    policy_rates: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Factors on both rates for policies of a program, by name."""
    warmup_steps: int = Field(default=4, ge=0)
    """Updates over which the rate rises."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest global L2 norm of the gradient."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the adapter's weights, which is what is evaluated and kept; 0: none."""
    max_generation_len: int | None = Field(default=None, ge=1)
    """The loss's constant normaliser; `inference.max_tokens` if not given."""
    max_train_len: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and answer that are trained on."""
    max_batch_tokens: int = Field(default=6144, ge=16)
    """Most tokens fed in one forward pass; larger trees are cut into subtrees."""
    max_mismatch: float = Field(default=0.2, gt=0)
    """Largest mean difference (nats a token) between engine and learner before the run stops."""


class PopulationSettings(Settings):
    """Who plays against the policy in training."""

    sample_mode: Literal["mirror", "fixed", "lagged", "random", "match-quality", "ts-dist", "exploration"] = (
        "mirror"
    )
    """`mirror`: the policy plays and trains every seat. The others draw an opponent from the pool."""
    max_active_lora: int = Field(default=4, ge=1)
    """Most checkpoints that may be drawn."""
    lag_range: tuple[int, int] = Field(default=(1, 7), strict=False)
    """For `lagged`: how many checkpoints back, at least and at most."""
    fixed_opponents: list[str] = []
    """Further members of the pool: `random` or `optimal` (scripted), or `base` (the untrained model)."""
    add_every: int = Field(default=10, ge=1)
    """Every so many updates the policy joins the pool."""

    @field_validator("lag_range")
    @classmethod
    def _lags_in_order(cls, lag_range: tuple[int, int]) -> tuple[int, int]:
        low, high = lag_range
        if not 0 <= low <= high:
            raise InputError(
                "population.lag_range", f"[{low}, {high}] is not a range of lags", "Give [1, 7], say"
            )
        return lag_range

    @model_validator(mode="after")
    def _somebody_to_sample(self) -> "PopulationSettings":
        if self.sample_mode == "fixed" and not self.fixed_opponents:
            raise InputError(
                "population.fixed_opponents",
                'is empty, and sample_mode "fixed" draws from it',
                'Name opponents: ["random"]',
            )
        return self


class EvaluationSettings(Settings):
    """Matches and exact measures before, during and after training."""

    every: int = Field(default=0, ge=0)
    """Updates between evaluations during training; 0 for only before and after."""
    games: int = Field(default=400, ge=2)
    """Games of each match before and after, seats balanced."""
    games_during: int = Field(default=100, ge=2)
    """Games of each match during training."""
    games_alongside: int = Field(default=0, ge=0)
    """Evaluation games played among each update's training games, against the opponents in turn."""
    opponents: list[str] = ["random"]
    """`random`, `optimal` or `base`."""
    nash_conv: bool = False
    """Compute NashConv exactly (small OpenSpiel games)."""
    temperature: float = Field(default=1.0, ge=0)
    """At which the model plays its matches; 0 takes the likeliest token."""


class TrackingSettings(Settings):
    """What is kept for people to look at, besides metrics.jsonl."""

    games_logged: int = Field(default=8, ge=0)
    """Games of each update that are written to `rollouts/`; failed games always are."""
    wandb_project: str | None = None
    """Weights & Biases project; needs the extra `wandb`."""
    tensorboard: bool = False
    """Write TensorBoard files; needs the extra `tensorboard`."""


class RunSettings(Settings):
    """Where and how the run lives."""

    runtime: Literal["local", "ray"] = "local"
    """One process, or a Ray cluster (see `[ray]`)."""
    directory: str = "runs"
    """Runs are kept below this directory."""
    save_every: int = Field(default=10, ge=1)
    """Updates between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """How many of the newest to keep; checkpoints of active opponents are kept beside them."""


_ONLY_FOR_GAMES = (
    *("envs", "rewards", "buffer", "population"),
    *("collection.games_per_step", "collection.filter_opponent_invalid"),
    *("evaluation.games", "evaluation.games_during", "evaluation.games_alongside"),
    *("evaluation.opponents", "evaluation.nash_conv", "evaluation.temperature"),
    "ray.collectors",
)


class Config(Settings):
    """Everything that defines a run."""

    seed: int = Field(default=0, ge=0)
    """Root of the seed tree."""
    model: ModelSettings = ModelSettings()
    """The base model."""
    lora: LoraSection = LoraSection()
    """The adapter that is trained."""
    envs: list[EnvSettings] = []
    """What is played in training; each game draws one by weight."""
    program: Program | None = None
    """A program in place of games: a debate, a proposer and its solvers, or one of your own."""
    credit: CreditSettings | None = None
    """How the rewards of a program become advantages; as the program says if not given."""
    inference: InferenceSettings = InferenceSettings()
    """Where answers come from."""
    collection: CollectionSettings = CollectionSettings()
    """How games are played."""
    rewards: RewardSettings = RewardSettings()
    """Reward transforms."""
    buffer: BufferSettings = BufferSettings()
    """The replay buffer."""
    learning: LearningSettings = LearningSettings()
    """The learner."""
    population: PopulationSettings = PopulationSettings()
    """Who plays against the policy in training."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Matches and exact measures."""
    tracking: TrackingSettings = TrackingSettings()
    """What is kept for people to look at."""
    run: RunSettings = RunSettings()
    """Where and how the run lives."""
    ray: RaySettings = RaySettings()
    """How it is spread over a Ray cluster."""

    @model_validator(mode="after")
    def _games_or_a_program(self) -> "Config":
        if self.program is None:
            if self.credit is not None:
                raise InputError("credit", "is for programs, and this trains on games", "Leave it out")
            if not self.envs:
                raise InputError(
                    "envs", "is missing, so nothing is played", 'Add [[envs]] with id = "kuhn_poker"'
                )
            return self
        given = [name for name in _ONLY_FOR_GAMES if self._changed(name)]
        if given:
            raise InputError(
                given[0], "is for games, and [program] takes their place", "Leave one of them out"
            )
        if self.collection.max_staleness:
            raise InputError("collection.max_staleness", "must be 0 for a program", "Leave it out")
        return self

    def _changed(self, name: str) -> bool:
        """Whether a section or field is not what it is by default."""
        section, _, field = name.partition(".")
        now, default = getattr(self, section), type(self).model_fields[section].default
        return bool(getattr(now, field) != getattr(default, field) if field else now != default)

    @model_validator(mode="after")
    def _runtime_can(self) -> "Config":
        if self.run.runtime == "local" and self.inference.engine == "vllm":
            raise InputError("inference.engine", "vllm needs a cluster's actors", 'Set run.runtime = "ray"')
        if self.run.runtime == "local" and self._changed("ray"):
            raise InputError(
                "ray", "is for runs on a cluster (--address too)", 'Set run.runtime = "ray", or leave it out'
            )
        return self

    @model_validator(mode="after")
    def _entries_differ_and_fit(self) -> "Config":
        keys = [(env.id, env.num_players, env.template) for env in self.envs]
        if len(set(keys)) < len(keys):
            raise InputError("envs", "two entries play the same game with the same template", "Merge them")
        if (self.buffer.batch_size or 0) > self.buffer.max_size:
            raise InputError("buffer.batch_size", "it is over buffer.max_size", "Make the buffer larger")
        return self
