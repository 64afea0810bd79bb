"""Config: the whole configuration of a run, and the rules between its sections.

Some sections share a file: ``lora`` and ``inference`` are in ``model.py``, ``envs`` and ``collection`` in
``play.py``, ``buffer`` and ``credit`` in ``rewards.py``, ``evaluation`` in ``population.py``, ``tracking`` in
``run.py``.
"""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from sparring.config.algorithms import OverAnswersSettings
from sparring.config.base import Name, Settings
from sparring.config.finetune import FinetuneSettings
from sparring.config.league import LeagueSettings
from sparring.config.learning import LearningSettings
from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.config.one_purpose import check_one_purpose
from sparring.config.play import (
    CollectionSettings,
    EnvSettings,
    EvaluatedGameSettings,
    Games,
    GameSettings,
    check_each_once,
    label_of,
)
from sparring.config.population import EvaluationSettings, PopulationSettings, PsroSettings
from sparring.config.programs import Program
from sparring.config.rewards import BufferSettings, CreditSettings, GameRange, RewardSettings
from sparring.config.roles import Adapters, RoleSettings
from sparring.config.run import RaySettings, RunSettings, TrackingSettings
from sparring.core import InputError
from sparring.core.play import MODES_WITHOUT_COPIES, SampleMode

Game = TypeVar("Game", bound=GameSettings)

NOT_FOR_PROGRAMS = (
    *("envs", "league", "collection.games_per_step", "collection.filter_opponent_invalid"),
    *("evaluation.games", "evaluation.games_during", "evaluation.games_alongside", "evaluation.patience"),
    *("evaluation.envs", "evaluation.opponents", "evaluation.nash_conv", "evaluation.nash_conv_minutes"),
    "evaluation.temperature",
)
"""The sections and fields that programs cannot use."""
INSTEAD = {
    "collection.games_per_step": "Set program.batch_size; a program of your own chooses its batch itself",
}
"""What does the same for a program, where something does."""
FOR_PROGRAMS = ("roles", "population.roles")
"""The sections and fields that games cannot use."""


def _ending_as_the_run(game: Game, info: ValidationInfo) -> Game:
    """Return a game with ``inference.stop``, which is validated before it, unless it has texts of its own."""
    inference = info.data.get("inference")
    if inference is None or "stop" in game.model_fields_set:
        return game
    return game.model_copy(update={"stop": inference.stop})


class Config(Settings):
    """Everything that defines a run."""

    seed: int = Field(default=0, ge=0, le=2**53)
    """Root of the seed tree, from which all other seeds are derived."""
    model: ModelSettings = ModelSettings()
    """The base model."""
    lora: LoraSection = LoraSection()
    """The adapter that is trained."""
    inference: InferenceSettings = InferenceSettings()
    """The engine that generates answers."""
    envs: list[EnvSettings] = Field(default=[], max_length=1000)
    """Each game draws one of the environments by weight."""
    program: Program | None = None
    """A program that replaces games: a debate, a proposer and its solvers, proofs, or one of your own."""
    roles: dict[Name, RoleSettings] = Field(default={}, max_length=1000)
    """Settings of a program's roles, by role."""
    start: Adapters = {}
    """The adapter that each policy starts from, by policy: a checkpoint of an earlier run such as `RUN@40`,
    or a directory."""
    frozen: Adapters = {}
    """Adapters that play but are never trained, by name; a program's roles use them as policies, games as
    opponents."""
    credit: CreditSettings | None = None
    """How the rewards of whole episodes become advantages; it replaces `rewards.sampling`."""
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
    league: LeagueSettings | None = None
    """Players with roles, in place of one policy and `population.sample_mode`."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Matches and exact measures."""
    tracking: TrackingSettings = TrackingSettings()
    """Logs in addition to metrics.jsonl."""
    run: RunSettings = RunSettings()
    """The run's directory, its checkpoints and its runtime."""
    ray: RaySettings = RaySettings()
    """How the run is spread over a Ray cluster."""
    finetune: FinetuneSettings | None = None
    """Training through fine-tuning jobs: `sparring finetune`. Other commands do not use it."""
    psro: PsroSettings | None = None
    """Policy-space response oracles: `sparring psro`. Other commands do not use it."""

    def learning_of(self, policy: str) -> LearningSettings:
        """Return the settings of one policy's learner."""
        settings = self.learning.of_policy(policy)
        given = settings.max_generation_len or self.inference.max_tokens
        return settings.model_copy(update={"max_generation_len": given})

    @property
    def play(self) -> Games | Program:
        """What is played: games in the environments, or the program that replaces them."""
        return Games(self.envs) if self.program is None else self.program

    @field_validator("envs")
    @classmethod
    def _games_end_answers_as_the_run(
        cls, envs: list[EnvSettings], info: ValidationInfo
    ) -> list[EnvSettings]:
        return [_ending_as_the_run(env, info) for env in envs]

    @field_validator("evaluation")
    @classmethod
    def _evaluated_games_too(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        return evaluation.model_copy(
            update={"envs": [_ending_as_the_run(env, info) for env in evaluation.envs]}
        )

    @model_validator(mode="after")
    def _games_or_a_program(self) -> "Config":
        if not isinstance(self.play, Games):
            given = [name for name in NOT_FOR_PROGRAMS if self._changed(name)]
            if given:
                fix = INSTEAD.get(given[0], "Leave one of the two out")
                raise InputError(given[0], "is for games, but [program] replaces them", fix)
            if any(isinstance(one, GameRange) for one in self.rewards.final):
                problem = "game_range is for games, but [program] replaces them"
                raise InputError("rewards.final", problem, "Leave it out")
        else:
            self._check_games()
        return self

    def _check_games(self) -> None:
        """Check that there are games, and that nothing is given that they do not use.

        Raises:
            InputError: that is not so.
        """
        if not self.envs:
            raise InputError(
                "envs", "is missing, so there is no game to play", 'Add [[envs]] with id = "kuhn_poker"'
            )
        for name in FOR_PROGRAMS:
            if self._changed(name):
                raise InputError(name, "is for the roles of a program, but games are played", "Leave it out")
        unknown = self.learning.policies.keys() - set(self.policies)
        if unknown:
            raise InputError(
                "learning.policies",
                f"the games have no policy {min(unknown)}",
                f"They have: {', '.join(self.policies)}",
            )
        frozen = self.frozen.keys() & set(self.policies)
        if frozen:
            raise InputError(
                "envs.policies" if self.league is None else "league.players",
                f"{min(frozen)} is in [frozen], but every seat is trained",
                "Rename one of them",
            )

    @model_validator(mode="after")
    def _league_can_play(self) -> "Config":
        if self.league is None:
            return self
        self.league.check_games(self.envs)
        if self.population.sample_mode != "mirror":
            raise InputError("population.sample_mode", "is not for [league]", "Leave one of the two out")
        if self.collection.max_staleness:
            problem = "is not for [league], whose players are reset between updates"
            raise InputError("collection.max_staleness", problem, "Leave it out")
        return self

    @model_validator(mode="after")
    def _members_can_meet(self) -> "Config":
        if self.population.sample_mode == "meta-nash":
            why = self._why_no_payoffs()
            if why is not None:
                raise InputError("population.sample_mode", why, "Choose another mode, such as pfsp")
        return self

    @model_validator(mode="after")
    def _places_are_of_policies(self) -> "Config":
        places = self.population.places
        if not places:
            return self
        known = f"There are: {', '.join(self.policies)}"
        unknown = {*places.values()} - {*self.policies}
        if unknown:
            raise InputError("population.places", f"there is no policy {min(unknown)}", known)
        weights = self.population.weights_by_name
        for policy in self.policies:
            if not any(places.get(name, policy) == policy and weight for name, weight in weights.items()):
                problem = f"no fixed opponent, or only those of weight 0, plays in the place of {policy}"
                raise InputError("population.places", problem, "Name one that does")
        return self

    def _why_no_payoffs(self) -> str | None:
        """Return why the members of the pool have no payoff against each other; ``None`` if they have."""
        if not isinstance(self.play, Games):
            return "meta-nash needs games between the pool's members, but a program is played"
        large = next((env for env in self.envs if env.num_players != 2), None)
        if large is not None:
            return f"meta-nash needs games for two, but {large.name} is for {large.num_players}"
        if len(self.policies) > 1:
            return "meta-nash needs one policy in both seats, but the seats have several"
        return None

    @model_validator(mode="after")
    def _one_way_from_reward_to_advantage(self) -> "Config":
        sampling = self.rewards.sampling != RewardSettings().sampling
        if self.credit is not None and sampling:
            raise InputError("credit", "takes the place of rewards.sampling", "Leave one of the two out")
        check_one_purpose(self.rewards, self.credit, self.learning)
        self.check_policies(self.policies if isinstance(self.play, Games) else [])
        return self

    def check_policies(self, policies: Sequence[str]) -> None:
        """Check how the policies learn.

        Args:
            policies: the policies that are trained; those of a program are known when it is built.

        Raises:
            InputError: what a policy has does not fit together, or games of older versions would reach an
                algorithm without a correction for them, or no policy uses the baseline that is configured.
        """
        self.learning.check_policies(policies)
        for field, algorithm in self.learning.algorithms_of(policies).items():
            if isinstance(algorithm, OverAnswersSettings) and self.collection.max_staleness:
                problem = f"is not for {field} {algorithm.type}, whose values of answers are not corrected"
                fix = "Leave it out, or choose another algorithm"
                raise InputError("collection.max_staleness", problem, fix)
        self._check_baseline(policies)

    def _check_baseline(self, policies: Sequence[str]) -> None:
        """Check that some policy has no critic, and so uses the baseline, if one is configured."""
        if self.credit is None and self.rewards.sampling == RewardSettings().sampling:
            return
        place = "credit" if self.credit is not None else "rewards.sampling"
        if self.learning.critic is not None:
            raise InputError("learning.critic", f"takes the place of {place}", "Leave one of the two out")
        if policies and self.learning.own_critics.issuperset(policies):
            problem = f"every policy has a critic, which takes the place of {place}"
            raise InputError("learning.policies", problem, "Leave one of the two out")

    @property
    def evaluated(self) -> list[EvaluatedGameSettings]:
        """The games of evaluations, each with the policies of its seats: those of training by default."""
        if self.evaluation.envs:
            return [
                game.model_copy(update={"policies": self._policies_in(game)}) for game in self.evaluation.envs
            ]
        fields = GameSettings.model_fields
        return [EvaluatedGameSettings(**{name: getattr(env, name) for name in fields}) for env in self.envs]

    def label(self, game: GameSettings) -> str:
        """Return the name of a game in figures, which tells it from the others of the run."""
        return label_of(game, [*self.envs, *self.evaluation.envs])

    def _policies_in(self, game: GameSettings) -> list[str]:
        """Return the policies of the seats of a game of evaluations; empty if they are not known."""
        if game.policies:
            return game.policies
        for env in self.envs:
            if (env.name, env.num_players) == (game.name, game.num_players):
                return list(env.seats)
        only = Games(self.envs).policies
        return only * game.num_players if len(only) == 1 else []

    @model_validator(mode="after")
    def _evaluated_seats_have_policies(self) -> "Config":
        for place, game in enumerate(self.evaluation.envs):
            policies = self._policies_in(game)
            unknown = set(policies) - set(self.policies)
            if unknown or not policies:
                seats = f"the {game.num_players} seats of {game.name}"
                problem = f"there is no policy {min(unknown)}" if unknown else f"who plays {seats} is open"
                fix = f"Name one for each seat: {', '.join(self.policies)}"
                raise InputError(f"evaluation.envs.{place}.policies", problem, fix)
        return self

    @property
    def policies(self) -> list[str]:
        """The policies of games; those of a program are known when it is built."""
        if self.league is not None:
            return list(self.league.players)
        return Games(self.envs).policies

    @property
    def copied_policies(self) -> list[str]:
        """The policies of games of which a copy joins the pool every `population.add_every` updates."""
        return self.policies if self.league is None else self.league.mains

    @property
    def sample_mode(self) -> SampleMode:
        """The pool's mode. In a league it only decides which copies stay active: those that are hardest."""
        return self.population.sample_mode if self.league is None else "pfsp"

    @property
    def keeps_copies(self) -> bool:
        """Whether copies of the policies join the pool, because its mode may draw them."""
        return self.sample_mode not in MODES_WITHOUT_COPIES

    @property
    def uses_buffer(self) -> bool:
        """Whether steps go through the replay buffer.

        Those of games do. Those of a program do if the buffer or the rewards are set; whether batches are
        logged says nothing about that.
        """
        log = BufferSettings().log_batches
        is_set = self.buffer.model_copy(update={"log_batches": log}) != BufferSettings()
        return isinstance(self.play, Games) or is_set or self._changed("rewards")

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
        if self.model.quantization != "none" and self.inference.engine == "vllm":
            raise InputError(
                "model.quantization",
                "vLLM would answer with another base than the one that learns",
                'Leave it out, or set inference.engine = "embedded"',
            )
        if self.model.quantization != "none" and self.ray.shard_base:
            raise InputError(
                "model.quantization",
                "a base of four bits cannot be shared among learners",
                "Leave out model.quantization or ray.shard_base",
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
        check_each_once(self.envs)
        check_each_once(self.evaluation.envs)
        if (self.buffer.batch_size or 0) > self.buffer.max_size:
            raise InputError("buffer.batch_size", "is greater than buffer.max_size", "Make the buffer larger")
        return self
