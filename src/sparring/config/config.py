"""Config: the whole configuration of a run, and the rules between its sections."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from sparring.config.algorithms import OverAnswersSettings
from sparring.config.base import MOST_SEED, Name, Rule, Settings
from sparring.config.facts import ADAPTER, FOR_GAMES, FOR_PROGRAMS, Only, facts_of, reason_in_vain
from sparring.config.finetune import FinetuneSettings
from sparring.config.league import LeagueSettings
from sparring.config.learning import LearningSettings
from sparring.config.model import InferenceSettings, LoraSection, ModelSettings
from sparring.config.play import (
    MODES_WITH_OPPONENTS,
    CollectionSettings,
    EnvSettings,
    EvaluatedGameSettings,
    Games,
    GameSettings,
    check_each_once,
    label_of,
)
from sparring.config.population import EvaluationSettings, PopulationSettings, PsroSettings
from sparring.config.programs import Adapters, Program, RoleSettings
from sparring.config.questions import QuestionSource, check_labels_differ
from sparring.config.rewards import (
    BufferSettings,
    CreditSettings,
    GameRange,
    RewardSettings,
    RoleAdvantage,
    SamePrompt,
    keeps_unit,
)
from sparring.config.run import RaySettings, RunSettings, TrackingSettings
from sparring.core import InputError
from sparring.core.adapters import VLLM_RANKS
from sparring.core.client import CANNOT_GIVE
from sparring.core.env_id import with_short_names
from sparring.core.play import MODES_WITHOUT_COPIES, SampleMode

Game = TypeVar("Game", bound=GameSettings)
_ON_A_CLUSTER = Only(
    "run.runtime",
    ("ray",),
    refused=True,
    why="is for runs on a cluster (as is --address)",
    fix='Set run.runtime = "ray", or leave it out',
)


def _answering_as_the_run(game: Game, info: ValidationInfo) -> Game:
    inference = info.data.get("inference")
    if inference is None:
        return game
    names = {"stop", "reasoning", "max_reasoning"} - game.model_fields_set
    return game.model_copy(update={name: getattr(inference, name) for name in names})


class Config(Settings):
    """Everything that defines a run."""

    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Root of the seed tree, from which all other seeds are derived."""
    model: ModelSettings = ModelSettings()
    """The base model."""
    lora: LoraSection = LoraSection()
    """The adapter that is trained."""
    inference: InferenceSettings = InferenceSettings()
    """The engine that generates answers."""
    envs: Annotated[list[EnvSettings], FOR_GAMES] = Field(default=[], max_length=1000)
    """Each game draws one of the environments by weight."""
    program: Program | None = None
    """A program that replaces games: a debate, a proposer and its solvers, proofs, or one of your own."""
    roles: Annotated[dict[Name, RoleSettings], FOR_PROGRAMS] = Field(default={}, max_length=1000)
    """Settings of a program's roles, by role."""
    start: Annotated[Adapters, ADAPTER] = {}
    """The adapter that each policy starts from, by policy: a checkpoint of an earlier run such as `RUN@40`,
    or a directory."""
    frozen: Annotated[Adapters, ADAPTER] = {}
    """What plays but is never trained, by name: adapters, in one process also policies in files (of OpenSpiel
    games, in games alone) and models behind an API (`model@https://host/v1`). A game's seats and a program's
    roles use them as policies, games also as opponents."""
    credit: CreditSettings | None = None
    """How the rewards of whole episodes become advantages; it replaces `rewards.sampling`."""
    collection: CollectionSettings = CollectionSettings()
    """How games are played."""
    rewards: RewardSettings = RewardSettings()
    """Reward transforms."""
    buffer: Annotated[BufferSettings, Only("uses_buffer", why="the program's episodes go through none")] = (
        BufferSettings()
    )
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
    ray: Annotated[RaySettings, _ON_A_CLUSTER] = RaySettings()
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
    def _games_answer_as_the_run(cls, envs: list[EnvSettings], info: ValidationInfo) -> list[EnvSettings]:
        return [_answering_as_the_run(env, info) for env in envs]

    @field_validator("evaluation")
    @classmethod
    def _evaluated_games_too(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        envs = [_answering_as_the_run(env, info) for env in evaluation.envs]
        return evaluation.model_copy(update={"envs": envs} if envs else {})

    def rules(self) -> Iterable[Rule]:
        """Nothing is set in vain, and the sections fit together."""
        return (
            *(partial(reason_in_vain, self, *where) for where in facts_of(self, Only)),
            *(self._check_games, self._check_league, self._check_payoffs, self._check_rewards),
            *(self._check_policies, self._check_evaluated, self._check_engine, self._check_thoughts),
            *(self._check_names, self._check_tasks, self._check_buffer, self._check_answers_per_turn),
        )

    def _check_policies(self) -> None:
        self.check_policies(self.policies if isinstance(self.play, Games) else [])

    def _check_names(self) -> None:
        check_each_once(self.envs)
        check_each_once(self.evaluation.envs)

    def _check_buffer(self) -> None:
        if (self.buffer.batch_size or 0) > self.buffer.max_size:
            raise InputError("buffer.batch_size", "is greater than buffer.max_size", "Make the buffer larger")

    def _check_answers_per_turn(self) -> None:
        """Check that only the answers of one turn are compared with each other, each by what it is worth."""
        numbers = {
            f"envs.{place}.answers_per_turn": env.answers_per_turn for place, env in enumerate(self.envs)
        }
        several = next((field for field, number in numbers.items() if number > 1), None)
        if any(one.type == "normalize_rewards_by_turn" for one in self.rewards.sampling):
            single = next((field for field, number in numbers.items() if number == 1), None)
            if not isinstance(self.play, Games):
                problem = "normalize_rewards_by_turn is for games, but [program] replaces them"
                raise InputError("rewards.sampling", problem, "Leave it out")
            if single is not None:
                problem = f"normalize_rewards_by_turn compares the answers of one turn, but {single} is 1"
                raise InputError("rewards.sampling", problem, "Raise that, to 4 say, or leave this out")
            if self.buffer.batch_size is not None:
                problem = "draws single answers, but normalize_rewards_by_turn compares all those of one turn"
                raise InputError("buffer.batch_size", problem, "Leave one of the two out")
        if several is None:
            return
        worth = f"but {several} values each answer by a copy of the game that is played to its end"
        if self.rewards.discount is not None:
            problem = f"credits a turn with what follows in the game itself, {worth}"
            raise InputError("rewards.discount", problem, "Leave one of the two out")
        if self.learning.critic is not None or self.learning.own_critics:
            problem = f"values a turn by those that follow in the game itself, {worth}"
            raise InputError("learning.critic", problem, "Leave one of the two out")
        for field, algorithm in self.learning.algorithms_of(self.policies).items():
            if isinstance(algorithm, OverAnswersSettings):
                problem = f"{algorithm.type} learns from legal answers, but {several} compares drawn ones"
                raise InputError(field, problem, "Choose another, such as reinforce, or leave that out")

    def _check_games(self) -> None:
        if not isinstance(self.play, Games):
            if any(isinstance(one, GameRange) for one in self.rewards.final):
                raise InputError("rewards.final", f"game_range {FOR_GAMES.why}", "Leave it out")
            return
        if not self.envs:
            fix = 'Add [[envs]] with id = "kuhn_poker"'
            raise InputError("envs", "is missing, so there is no game to play", fix)
        if self.collection.curriculum and len(self.envs) < 2:
            problem = "weighs the environments, but there is one"
            raise InputError("collection.curriculum", problem, "Add another to [[envs]], or leave this out")
        if not self.policies:
            problem = "every seat is in [frozen], so nothing is trained"
            raise InputError("envs.policies", problem, "Name a policy that is not")

    def _check_league(self) -> None:
        league = self.league
        if league is None:
            return
        if frozen := self.frozen.keys() & league.players.keys():
            problem = f"{min(frozen)} is in [frozen], but every player is trained"
            raise InputError("league.players", problem, "Rename one of them")
        if isinstance(self.play, Games):
            league.check_seats(
                [(env.name, seats) for env, seats in zip(self.envs, self.play.seats, strict=True)]
            )
        elif league.evolution is not None and not league.evolution.measures:
            problem = "is missing: players of a program are compared by its measures"
            fix = "Name one that its evaluations show for a role"
            raise InputError("league.evolution.measures", problem, fix)
        if self.population.sample_mode != "mirror":
            raise InputError("population.sample_mode", "is not for [league]", "Leave one of the two out")
        if self.collection.max_staleness:
            problem = "is not for [league], whose players are reset between updates"
            raise InputError("collection.max_staleness", problem, "Leave it out")

    def _check_payoffs(self) -> None:
        """Check that the members of the pool have payoffs against each other."""
        if self.population.sample_mode != "meta-nash" or not isinstance(self.play, Games):
            return
        large = [env for env in self.envs if env.num_players != 2]
        if large:
            problem = f"games for two, but {large[0].name} is for {large[0].num_players}"
        elif len(Games(self.envs).policies) > 1:
            problem = "one policy in both seats, but the seats have several"
        else:
            return
        fix = "Choose another mode, such as pfsp"
        raise InputError("population.sample_mode", f"meta-nash needs {problem}", fix)

    def _check_places(self, policies: Sequence[str]) -> None:
        places, weights = self.population.places, self.population.weights_by_name
        if unknown := {*places.values()} - {*policies}:
            known = f"There are: {', '.join(policies)}"
            raise InputError("population.places", f"there is no policy {min(unknown)}", known)
        for policy in policies:
            if not any(places.get(name, policy) == policy and weight for name, weight in weights.items()):
                problem = f"no fixed opponent, or only those of weight 0, plays in the place of {policy}"
                raise InputError("population.places", problem, "Name one that does")

    def _check_rewards(self) -> None:
        """Check that no two settings serve one purpose; what classes of your own do is not known.

        ``normalize_rewards`` after a moving average, as in UnstableBaselines, is of the batch and is allowed.
        """
        fix = "Leave one of the two out"
        if self.credit is not None and self.rewards.sampling != RewardSettings().sampling:
            raise InputError("credit", "takes the place of rewards.sampling", fix)
        for field, transforms in self.rewards.lists.items():
            names = Counter(one.type.removesuffix("_by_env") for one in transforms if one.type != "python")
            if twice := [name for name, count in names.items() if count > 1]:
                raise InputError(f"rewards.{field}", f"{twice[0]} is there twice", fix)
        if {one.type for one in self.rewards.final} >= {"win_draw_loss", "game_range"}:
            problem = "win_draw_loss and game_range both set the scale of rewards"
            raise InputError("rewards.final", problem, fix)
        moving = [one.type for one in self.rewards.final if isinstance(one, RoleAdvantage)]
        second = ""
        if self.credit is not None and self.credit.type not in ("episodic", "python"):
            second = f"credit {self.credit.type}"
        elif self.learning.critic is not None or self.learning.own_critics:
            second = "a critic"
        elif self.credit is None and any(isinstance(one, SamePrompt) for one in self.rewards.sampling):
            second, fix = "same_prompt_baseline in rewards.sampling", f"{fix}: rewards.sampling = [] has none"
        if moving and second:
            raise InputError("rewards.final", f"{moving[0]} is a baseline, and so is {second}", fix)
        if (self.learning.critic or self.learning.own_critics) and self.rewards.discount not in (None, 1.0):
            problem = f"is {self.rewards.discount:g}, but a critic discounts by its own gamma"
            raise InputError("rewards.discount", problem, "Set 1 here, and gamma in the critic's table")

    def _check_tree(self, values: str) -> None:
        """Check that values by the tree, which are made of rewards, go together with advantages.

        ``values`` is the field that asks for the tree.
        """
        tree, returns = f'{values} = "tree"', f'set {values} = "returns"'
        divides = f"divides advantages by a deviation, but {tree} needs them in units of reward"
        if self.rewards.discount is not None:
            problem = f"credits each turn with a reward of its own, but {tree} has those of ends alone"
            raise InputError("rewards.discount", problem, f"Leave it out, or {returns}")
        for field, transforms in self.rewards.lists.items():
            if changing := [one.type for one in transforms if not keeps_unit(one)]:
                problem = (
                    f"{changing[0]} changes from game to game what an end is worth, which {tree} averages"
                )
                fix = "Leave it out"
                if field == "sampling":
                    problem, fix = f"{changing[0]} with z_score {divides}", "Set z_score = false"
                raise InputError(f"rewards.{field}", problem, f"{fix}, or {returns}")
        if self.credit is not None and not self.credit.keeps_unit:
            if self.credit.type == "grpo":
                raise InputError("credit.normalize", divides, f"Set it to false, or {returns}")
            raise InputError("credit.type", f"{self.credit.type} {divides}", f"Choose grpo, or {returns}")

    def _check_evaluated(self) -> None:
        for place, game in enumerate(self.evaluation.envs):
            policies = self._policies_in(game)
            unknown = {*policies} - {*self.policies, *self.frozen}
            if unknown or not policies:
                seats = f"the {game.num_players} seats of {game.name}"
                problem = f"there is no policy {min(unknown)}" if unknown else f"who plays {seats} is open"
                fix = f"Name one for each seat: {', '.join(self.policies)}"
                raise InputError(f"evaluation.envs.{place}.policies", problem, fix)

    def _check_tasks(self) -> None:
        check_labels_differ(self.evaluation.tasks)
        given = [getattr(self.program, name, None) for name in ("questions", "claims")]
        trained = next((one for one in given if isinstance(one, QuestionSource)), None)
        room = self.inference.max_context
        for place, task in enumerate(self.evaluation.tasks):
            if trained is not None and trained.has_questions_of(task):
                problem = f"{task.label} is what the program learns from"
                fix = "Leave it out: the program measures held-out questions itself"
                raise InputError(f"evaluation.tasks.{place}.name", problem, fix)
            if room is not None and task.max_tokens >= room:
                field = f"evaluation.tasks.{place}.max_tokens"
                problem = f"{task.max_tokens} leaves none of inference.max_context = {room} for a question"
                raise InputError(field, problem, "Lower it, or raise that")

    def _check_engine(self) -> None:
        if self.inference.engine == "vllm" and (needed := self._needed_by_vllm()):
            fix = 'Do so, or set inference.engine = "embedded"'
            raise InputError("inference.engine", f"vllm needs {', '.join(needed)}", fix)
        if self.inference.sleep:
            self._check_sleep()
        if self.model.quantization != "none" and self.ray.shard_base:
            problem = "a base of four bits cannot be shared among learners"
            fix = "Leave out model.quantization or ray.shard_base"
            raise InputError("model.quantization", problem, fix)

    def _check_thoughts(self) -> None:
        longest = self.inference.max_tokens
        self._check_thought("inference", self.inference.max_reasoning, longest)
        for games in (self.envs, self.evaluation.envs):
            for place, game in enumerate(games):
                field = f"{game.section}.{place}"
                self._check_thought(field, game.max_reasoning, game.max_tokens or longest)
        for name, role in self.roles.items():
            self._check_thought(f"roles.{name}", role.max_reasoning, role.max_tokens)

    def _check_thought(self, field: str, most: int | None, max_tokens: int | None) -> None:
        """Raise an InputError unless a thought that is ended leaves room for an answer."""
        if most is not None and max_tokens is not None and most >= max_tokens:
            problem = f"{most} leaves nothing of the {max_tokens} tokens of max_tokens for what is said"
            raise InputError(f"{field}.max_reasoning", problem, "Choose fewer, or raise max_tokens")

    def _check_sleep(self) -> None:
        """Raise an InputError unless nothing is asked while the learner learns."""
        if self.run.runtime == "ray":
            problem = 'vLLM sleeps in a run of one process only, and run.runtime is "ray"'
            raise InputError("inference.sleep", problem, "Leave one of the two out")
        if self.collection.max_staleness:
            problem = "vLLM cannot sleep while games go on, as they do with collection.max_staleness"
            raise InputError("inference.sleep", problem, "Leave one of the two out")

    def _needed_by_vllm(self) -> list[str]:
        """Return what else must be set for vLLM, and why."""
        no_explore = ", ".join(
            f"envs.{place}.explore = 0" for place, env in enumerate(self.envs) if env.explore
        )
        budgets = [self.inference.max_reasoning, *(one.max_reasoning for one in self.roles.values())]
        budgets += [one.max_reasoning for one in (*self.envs, *self.evaluation.envs)]
        needed = [
            (
                self.run.runtime != "ray" and self.inference.tensor_parallel > 1,
                'run.runtime = "ray" (for inference.tensor_parallel above 1)',
            ),
            (any(budgets), "no max_reasoning (it does not end thoughts)"),
            (no_explore, f"{no_explore} (it {CANNOT_GIVE})"),
            (self.lora.rank > VLLM_RANKS[-1], f"lora.rank = {VLLM_RANKS[-1]} or less"),
            (
                self.model.quantization != "none",
                'model.quantization = "none" (it would answer with another base than the one that learns)',
            ),
        ]
        return [one for is_due, one in needed if is_due]

    def check_policies(self, policies: Sequence[str]) -> None:
        """Raise an InputError unless the policies that are trained can learn as configured.

        Those of a program are known when it is built; until then, ``policies`` is empty.
        """
        spelled: dict[str, str] = {}
        for policy in policies:
            if spelled.setdefault(policy.lower(), policy) != policy:
                problem = (
                    f"{spelled[policy.lower()]} and {policy} differ only in case, as directories may not"
                )
                raise InputError("policies", problem, "Rename one of them")
        for name, tables in (("learning.policies", self.learning.policies), ("start", self.start)):
            if policies and (unknown := tables.keys() - {*policies}):
                problem = f"there is no policy {min(unknown)}"
                raise InputError(name, problem, f"There are: {', '.join(policies)}")
        if policies and self.population.places:
            self._check_places(policies)
        self.learning.check_policies(policies)
        for field, algorithm in self.learning.algorithms_of(policies).items():
            if isinstance(algorithm, OverAnswersSettings) and self.collection.max_staleness:
                problem = f"is not for {field} {algorithm.type}, whose values of answers are not corrected"
                fix = "Leave it out, or choose another algorithm"
                raise InputError("collection.max_staleness", problem, fix)
            if isinstance(algorithm, OverAnswersSettings) and algorithm.values == "tree":
                self._check_tree(f"{field}.values")
        self._check_baseline(policies)

    def _check_baseline(self, policies: Sequence[str]) -> None:
        """Check that some policy has no critic, and so uses the baseline, if one is configured."""
        place = "credit" if self.credit is not None else "rewards.sampling"
        if place == "rewards.sampling" and self.rewards.sampling == RewardSettings().sampling:
            return
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

    def shown(self, text: str) -> str:
        """Return a text for a reader, in which environments have short names."""
        return with_short_names(text, [one.env_id for one in [*self.envs, *self.evaluation.envs]])

    def _policies_in(self, game: GameSettings) -> list[str]:
        if game.policies:
            return game.policies
        for env in self.envs:
            if (env.name, env.num_players) == (game.name, game.num_players):
                return list(env.seats)
        only = Games(self.envs).policies
        return only * game.num_players if len(only) == 1 else []

    @property
    def draws_in_evaluation(self) -> bool:
        """Whether evaluations draw answers at ``evaluation.temperature``; a program has its own."""
        return isinstance(self.play, Games) or bool(self.evaluation.tasks)

    @property
    def policies(self) -> list[str]:
        """The policies that games or a league train; those of a program are known when it is built."""
        if self.league is not None:
            return list(self.league.players)
        return [name for name in Games(self.envs).policies if name not in self.frozen]

    @property
    def copied_policies(self) -> list[str]:
        """The policies of games or a league of which a copy joins the pool every `population.add_every`
        updates."""
        return self.policies if self.league is None else self.league.mains

    @property
    def sample_mode(self) -> SampleMode:
        """The pool's mode. In a league it only decides which copies stay active: those that are hardest."""
        return self.population.sample_mode if self.league is None else "pfsp"

    @property
    def draws_opponents(self) -> bool:
        """Whether policies meet others than themselves in training."""
        return self.sample_mode in MODES_WITH_OPPONENTS

    @property
    def keeps_copies(self) -> bool:
        """Whether copies of the policies join the pool, because its mode may draw them."""
        return self.sample_mode not in MODES_WITHOUT_COPIES

    @property
    def loads_adapters(self) -> bool:
        """Whether engines load the learners' adapters from files, because they do not share the weights."""
        return self.run.runtime == "ray" or self.inference.engine == "vllm"

    @property
    def uses_buffer(self) -> bool:
        """Whether steps go through the replay buffer: those of games, or of a program with settings of it.

        Whether batches are logged says nothing about that.
        """
        unlogged = self.buffer.model_copy(update={"log_batches": BufferSettings().log_batches})
        is_set = (unlogged, self.rewards) != (BufferSettings(), RewardSettings())
        return isinstance(self.play, Games) or is_set
