"""The configuration of a run: a validated tree of documented fields. Importing it does not load torch."""

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
    """`smollm2-135m`, a local Hugging Face directory, or a Hugging Face id. If a configuration file names a
    directory, it is looked up beside that file, then in the working directory."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the base weights. `auto` uses bfloat16 if the machine computes it faster than float32."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which uses a GPU if one is available."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for torch. If not given, the fastest number is measured when the run starts, and kept; with
    `ray.address`, each engine and learner uses its share of the cores of its node."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise InputError("model.device", f"there is no device {device!r}", "Use auto, cpu or cuda")
        return device


class LoraSection(Settings):
    """The adapter that is trained. Its weights are float32, whatever the type of the base weights."""

    rank: int = Field(default=16, ge=1)
    """Rank of the two factors."""
    alpha: int = Field(default=32, ge=1)
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Must be 0: with dropout, samples could not share tokens in a prefix tree."""
    target_modules: list[str] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    """Names of the linear layers that get an adapter."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float) -> float:
        if dropout != 0:
            raise InputError(
                "lora.dropout",
                f"must be 0 (got {dropout}): with dropout, samples could not share tokens in a prefix tree",
                "Leave it out",
            )
        return dropout


DEFAULT_POLICY = "default"


class EnvSettings(Settings):
    """An environment to train in."""

    id: str
    """A TextArena id (`TicTacToe-v0-train`) or an OpenSpiel name (`kuhn_poker`)."""
    num_players: int = Field(default=2, ge=1)
    """Number of seats."""
    template: str = DEFAULT_TEMPLATE
    """How observations become prompts and answers become moves."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the games, relative to the other environments'."""
    max_turns: int = Field(default=200, ge=1)
    """A game that takes more turns (of all players together) is stopped and counts as a draw."""
    error_allowance: int = Field(default=0, ge=0)
    """Number of consecutive invalid moves that are forgiven; the next one ends the game."""
    policies: list[str] = []
    """The policy that plays and trains each seat, in order of the seats: `["attacker", "defender"]` trains an
    adapter for each side. If not given, `default` has every seat."""

    @model_validator(mode="after")
    def _one_policy_for_each_seat(self) -> "EnvSettings":
        if self.policies and len(self.policies) != self.num_players:
            raise InputError(
                "envs.policies",
                f"{len(self.policies)} policies for {self.num_players} seats of {self.id}",
                "Name one for each seat",
            )
        for name in self.policies:
            if not re.fullmatch(r"[\w-]+", name) or name == "base":
                fix = "Use letters, digits, _ and -"
                raise InputError("envs.policies", f"{name!r} is not a valid name", fix)
        return self

    @property
    def seats(self) -> tuple[str, ...]:
        """The policy of each seat."""
        return tuple(self.policies) or (DEFAULT_POLICY,) * self.num_players


class InferenceSettings(Settings):
    """The engine that generates answers."""

    engine: Literal["embedded", "vllm"] = "embedded"
    """The engine of this package, or vLLM, which needs `run.runtime` ray and the extra `vllm`."""
    max_tokens: int = Field(default=16, ge=1)
    """Maximum length of an answer, in tokens."""
    temperature: float = Field(default=1.0, ge=0.01)
    """Sampling temperature of trained seats; the learner uses the same value."""
    max_context: int | None = Field(default=None, ge=8)
    """Maximum length of prompt and answer together, in tokens; the embedded engine allows at most
    `max_cached_tokens`. If not given, the model's own limit applies."""
    max_queue: int = Field(default=16384, ge=1)
    """Maximum number of requests in progress at one engine; further requests are rejected."""
    max_cached_tokens: int = Field(default=32768, ge=64)
    """Maximum number of tokens whose keys and values the embedded engine holds at once, over all adapters. A
    request waits until its prompt and `max_tokens` more fit."""
    max_adapters: int = Field(default=8, ge=1)
    """Maximum number of adapters that an inference actor holds at once (`run.runtime` ray)."""
    max_batch: int = Field(default=256, ge=1)
    """Maximum number of requests that vLLM computes together."""
    gpu_memory: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that vLLM may use."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Number of GPUs of one machine over which vLLM spreads the model. If it is more than 1, Ray reserves as
    many GPUs for each inference actor, whatever `ray.gpus_per_engine` is."""


class CollectionSettings(Settings):
    """How games are played."""

    games_per_step: int = Field(default=256, ge=1)
    """Number of games for one learner update."""
    concurrency: int = Field(default=1024, ge=1)
    """Maximum number of games in flight."""
    max_staleness: int = Field(default=0, ge=0)
    """Maximum number of versions by which the policy that played may be behind the policy that learns. With
    0, play and learning alternate."""
    retries: int = Field(default=2, ge=0)
    """Number of times that a game is retried after a failure that may be temporary, such as a timeout or an
    error of the engine."""
    max_failed_fraction: float = Field(default=0.5, ge=0, le=1)
    """The run stops when more than this fraction of a step's games failed."""
    game_timeout: float = Field(default=3600.0, gt=0)
    """Maximum duration of a game in seconds, including the time it waits for the model."""
    filter_opponent_invalid: bool = False
    """Discard games that an opponent's invalid move decided."""


class WinDrawLoss(Settings):
    """Final reward: replaces a score by the reward for a win, a draw or a loss."""

    type: Literal["win_draw_loss"] = "win_draw_loss"
    """Names this transform."""
    win: float = 1.0
    """Reward for a score above 0."""
    draw: float = 0.0
    """Reward for a score of 0."""
    loss: float = -1.0
    """Reward for a score below 0."""


class RoleAdvantage(Settings):
    """Final reward: subtracts a moving average of the seat's rewards, which is read before it is updated."""

    type: Literal["role_advantage", "role_advantage_by_env"] = "role_advantage_by_env"
    """Whether all environments share the averages, or each has its own."""
    tau: float = Field(default=0.05, gt=0, le=1)
    """Weight of the newest reward. SPIRAL uses 0.05, UnstableBaselines 0.001."""


class FormatReward(Settings):
    """Step reward: adds `reward` to well-formed answers and `penalty` to others."""

    type: Literal["reward_for_format"] = "reward_for_format"
    """Names this transform."""
    reward: float = 0.0
    """Added to answers in the format that the template asks for."""
    penalty: float = 0.0
    """Added to all other answers; a negative value punishes them."""


class InvalidMovePenalty(Settings):
    """Step reward: adds `penalty` to invalid moves and `reward` to others."""

    type: Literal["penalty_for_invalid_move"] = "penalty_for_invalid_move"
    """Names this transform."""
    reward: float = 0.0
    """Added to valid moves."""
    penalty: float = 0.0
    """Added to invalid moves; a negative value punishes them."""


class Normalize(Settings):
    """Sampling reward: centres the batch's rewards; with `z_score` also divides by the standard deviation."""

    type: Literal["normalize_rewards", "normalize_rewards_by_env"] = "normalize_rewards_by_env"
    """Whether the whole batch is normalised, or the part of each environment separately."""
    z_score: bool = False
    """Also divide by the standard deviation."""


class SamePrompt(Settings):
    """Sampling reward: subtracts a baseline, computed from other episodes at the same prompt and seat."""

    type: Literal["same_prompt_baseline"] = "same_prompt_baseline"
    """Names this transform."""


FinalReward = Annotated[WinDrawLoss | RoleAdvantage, Field(discriminator="type")]
StepReward = Annotated[FormatReward | InvalidMovePenalty, Field(discriminator="type")]
SamplingReward = Annotated[Normalize | SamePrompt, Field(discriminator="type")]


class RewardSettings(Settings):
    """Reward transforms; those of each list are applied in order."""

    final: list[FinalReward] = []
    """Applied once to each player's final reward."""
    step: list[StepReward] = []
    """Applied once to each step."""
    sampling: list[SamplingReward] = [SamePrompt()]
    """Applied to the training batch."""


class BufferSettings(Settings):
    """The replay buffer."""

    type: Literal["step", "episode"] = "step"
    """Whether the buffer draws single steps or whole episodes."""
    max_size: int = Field(default=100_000, ge=1)
    """Maximum number of stored steps."""
    batch_size: int | None = Field(default=None, ge=1)
    """Number of steps (or episodes) in one update; if not given, the whole buffer."""
    log_batches: bool = True
    """Write each training batch to `batches/`: actor, message, answer and the reward at each stage."""


class ReinforceSettings(Settings):
    """REINFORCE with Dr.GRPO's constant normaliser."""

    type: Literal["reinforce"] = "reinforce"
    """Names this algorithm."""
    regulariser: Literal["none", "uniform", "base"] = "uniform"
    """The cross-entropy from a reference distribution over the legal answers to the policy is added to the
    loss. The reference is uniform, or the untrained model's distribution."""
    regulariser_weight: float = Field(default=0.2, ge=0)
    """Weight of the regulariser at the first update, in units of reward."""
    regulariser_weight_end: float = Field(default=0.02, ge=0)
    """Weight of the regulariser at the last update; it changes geometrically in between."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the untrained model on the sampled tokens."""
    max_importance_weight: float = Field(default=2.0, gt=0)
    """Upper bound of the importance weights: the learner's probability of a token divided by the engine's."""


class LearningSettings(Settings):
    """The learner."""

    steps: int = Field(default=100, ge=1)
    """Number of updates in the whole run."""
    algorithm: ReinforceSettings = ReinforceSettings()
    """The policy-gradient algorithm."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW after warm-up."""
    learning_rate_end: float = Field(default=5e-6, ge=0)
    """Learning rate at the last update; it follows a cosine in between."""
    policy_rates: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Factors by which both rates are multiplied for a program's policies, by the policy's name."""
    warmup_steps: int = Field(default=4, ge=0)
    """Number of updates over which the learning rate rises."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum global L2 norm of the gradient."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the adapter's weights, which is the adapter that is evaluated and kept; 0
    for no average."""
    max_generation_len: int | None = Field(default=None, ge=1)
    """Constant normaliser of the loss, in tokens; `inference.max_tokens` if not given."""
    max_train_len: int | None = Field(default=None, ge=2)
    """Maximum number of tokens of prompt and answer that are trained on; if not given, there is no limit."""
    max_batch_tokens: int = Field(default=6144, ge=16)
    """Maximum number of tokens in one forward pass; larger trees are cut into subtrees."""
    max_mismatch: float = Field(default=0.2, gt=0)
    """Mean difference between the log-probabilities of engine and learner, in nats per token, above which the
    run stops; the limit for tokens of older versions is 1 nat higher."""


class PopulationSettings(Settings):
    """The opponents that the policy plays against in training."""

    sample_mode: Literal["mirror", "fixed", "lagged", "random", "match-quality", "ts-dist", "exploration"] = (
        "mirror"
    )
    """With `mirror`, every seat plays and trains its policy; other modes draw opponents from the pool."""
    max_active_lora: int = Field(default=4, ge=1)
    """Maximum number of checkpoints that can be drawn as opponents."""
    lag_range: tuple[int, int] = Field(default=(1, 7), strict=False)
    """For `lagged`: the minimum and maximum lag of the opponent, in checkpoints."""
    fixed_opponents: list[str] = []
    """Additional members of the pool: `random` or `optimal` (scripted), or `base` (the untrained model)."""
    add_every: int = Field(default=10, ge=1)
    """Number of updates between the copies of the policy that join the pool."""
    roles: list[str] = []
    """Roles of a program that meet the pool, unless `sample_mode` is `mirror`: in each episode one of them,
    drawn at random, is trained, and members of the pool play the others. If not given, all roles."""

    @field_validator("lag_range")
    @classmethod
    def _lags_in_order(cls, lag_range: tuple[int, int]) -> tuple[int, int]:
        low, high = lag_range
        if not 0 <= low <= high:
            raise InputError(
                "population.lag_range",
                f"[{low}, {high}] is not a range of lags",
                "Give a range such as [1, 7]",
            )
        return lag_range

    @model_validator(mode="after")
    def _has_an_opponent(self) -> "PopulationSettings":
        if self.sample_mode == "fixed" and not self.fixed_opponents:
            raise InputError(
                "population.fixed_opponents",
                'is empty, but sample_mode "fixed" draws from it',
                'Name opponents: ["random"]',
            )
        return self


class EvaluationSettings(Settings):
    """Matches and exact measures before, during and after training."""

    every: int = Field(default=0, ge=0)
    """Number of updates between evaluations during training; 0 for evaluations only before and after it."""
    games: int = Field(default=400, ge=2)
    """Number of games in each match before and after training, with balanced seats."""
    games_during: int = Field(default=100, ge=2)
    """Number of games in each match during training."""
    games_alongside: int = Field(default=0, ge=0)
    """Number of evaluation games among each update's training games, against each opponent in turn."""
    opponents: list[str] | None = None
    """`random`, `optimal` or `base`. If not given, `random`; or `base` in an environment that does not list
    its legal moves."""
    nash_conv: bool = False
    """Compute NashConv exactly (small OpenSpiel games)."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of the model in its matches; 0 takes the most likely token."""


class TrackingSettings(Settings):
    """Logs in addition to metrics.jsonl."""

    games_logged: int = Field(default=8, ge=0)
    """Number of games of each update that are saved in `rollouts/`, to which failed games are always added,
    and of each match in `evaluation/`."""
    wandb_project: str | None = None
    """Weights & Biases project; needs the extra `wandb`."""
    tensorboard: bool = False
    """Write TensorBoard files; needs the extra `tensorboard`."""


class RunSettings(Settings):
    """The run's directory, its checkpoints and its runtime."""

    runtime: Literal["local", "ray"] = "local"
    """One process, or a Ray cluster (see `[ray]`)."""
    directory: str = "runs"
    """Directory in which each run gets its own directory; relative to the working directory."""
    save_every: int = Field(default=10, ge=1)
    """Number of updates between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """Number of newest checkpoints to keep; checkpoints of active opponents are kept in addition."""
    keep_best: str | None = None
    """Figure of the evaluations by which the best adapter is kept in addition, in `best/`: such as `win rate
    against random` or `NashConv`, followed by ` in ENV` where several environments have it, or a program's
    measure by its name. More is better, except for NashConv, loss rates and invalid moves; `smallest NAME`
    asks for the smallest value of a program's measure."""


_ONLY_FOR_GAMES = (
    *("envs", "rewards", "buffer"),
    *("collection.games_per_step", "collection.filter_opponent_invalid"),
    *("evaluation.games", "evaluation.games_during", "evaluation.games_alongside"),
    *("evaluation.opponents", "evaluation.nash_conv", "evaluation.temperature"),
    "ray.collectors",
)


class Config(Settings):
    """Everything that defines a run."""

    seed: int = Field(default=0, ge=0)
    """Root of the seed tree, from which all other seeds are derived."""
    model: ModelSettings = ModelSettings()
    """The base model."""
    lora: LoraSection = LoraSection()
    """The adapter that is trained."""
    envs: list[EnvSettings] = []
    """Each game draws one of the environments by weight."""
    program: Program | None = None
    """A program that replaces games: a debate, a proposer and its solvers, or one of your own."""
    credit: CreditSettings | None = None
    """How the rewards of a program become advantages; if not given, the program decides."""
    inference: InferenceSettings = InferenceSettings()
    """The engine that generates answers."""
    collection: CollectionSettings = CollectionSettings()
    """How games are played."""
    rewards: RewardSettings = RewardSettings()
    """Reward transforms."""
    buffer: BufferSettings = BufferSettings()
    """The replay buffer."""
    learning: LearningSettings = LearningSettings()
    """The learner."""
    population: PopulationSettings = PopulationSettings()
    """The opponents that the policy plays against in training."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Matches and exact measures."""
    tracking: TrackingSettings = TrackingSettings()
    """Logs in addition to metrics.jsonl."""
    run: RunSettings = RunSettings()
    """The run's directory, its checkpoints and its runtime."""
    ray: RaySettings = RaySettings()
    """How the run is spread over a Ray cluster."""

    @model_validator(mode="after")
    def _games_or_a_program(self) -> "Config":
        if self.program is None:
            if self.credit is not None:
                raise InputError("credit", "is for programs, but this run trains on games", "Leave it out")
            if not self.envs:
                raise InputError(
                    "envs", "is missing, so there is no game to play", 'Add [[envs]] with id = "kuhn_poker"'
                )
            return self
        given = [name for name in _ONLY_FOR_GAMES if self._changed(name)]
        if given:
            raise InputError(
                given[0], "is for games, but [program] replaces them", "Leave one of the two out"
            )
        return self

    @property
    def game_policies(self) -> list[str]:
        """The policies that the seats of the environments name."""
        return list(dict.fromkeys(policy for env in self.envs for policy in env.seats))

    def _changed(self, name: str) -> bool:
        """Return whether a section or field differs from its default."""
        section, _, field = name.partition(".")
        now, default = getattr(self, section), type(self).model_fields[section].default
        return bool(getattr(now, field) != getattr(default, field) if field else now != default)

    @model_validator(mode="after")
    def _runtime_can(self) -> "Config":
        if self.run.runtime == "local" and self.inference.engine == "vllm":
            raise InputError("inference.engine", "vllm needs the Ray runtime", 'Set run.runtime = "ray"')
        if self.inference.tensor_parallel > 1 and self.inference.engine != "vllm":
            raise InputError(
                "inference.tensor_parallel",
                "only vLLM spreads a model over several GPUs",
                'Set inference.engine = "vllm", or leave it out',
            )
        if self.run.runtime == "local" and self._changed("ray"):
            raise InputError(
                "ray",
                "is for runs on a cluster (as is --address)",
                'Set run.runtime = "ray", or leave it out',
            )
        return self

    @model_validator(mode="after")
    def _entries_differ_and_fit(self) -> "Config":
        keys = [(env.id, env.num_players, env.template) for env in self.envs]
        if len(set(keys)) < len(keys):
            raise InputError("envs", "two entries play the same game with the same template", "Merge them")
        if (self.buffer.batch_size or 0) > self.buffer.max_size:
            raise InputError("buffer.batch_size", "is greater than buffer.max_size", "Make the buffer larger")
        return self
