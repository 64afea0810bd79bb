"""The environments that games are played in, and how they or a program are played."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, ValidationInfo, field_validator

from sparring.config.base import (
    FilePath,
    Line,
    Name,
    Names,
    PolicyName,
    Rule,
    Settings,
    Texts,
    ThoughtTags,
    at_field,
)
from sparring.config.facts import CLASS_FILE, ENV_ID, FOR_GAMES, Only
from sparring.config.model import SamplingSettings
from sparring.core import CallSettings, InputError
from sparring.core.adapters import TRAINED
from sparring.core.concurrency import EPISODE_TIMEOUT, RETRIES
from sparring.core.env_id import env_name, with_options
from sparring.core.own_code import name_of
from sparring.core.play import SampleMode, Seat
from sparring.core.reasoning import checked_tags

DEFAULT_TEMPLATE = "fewshot-chat"


class GameSettings(Settings):
    """A game and how it is played."""

    section: ClassVar[str]
    """Where such games stand in a configuration, for errors."""

    id: Annotated[Line, ENV_ID]
    """A TextArena id (`TicTacToe-v0-train`), an OpenSpiel name (`kuhn_poker`), an environment of another
    library (`pettingzoo:chess_v6`), or a game of your own by file and class (`my_game.py:MyGame`). The file
    is relative to the configuration file and, on the command line, to the working directory."""
    options: Annotated[dict[Name, Any], CLASS_FILE] = Field(default={}, max_length=100)
    """Keyword arguments for the class of an environment or of a game of your own. A text that names a file
    and what is in it (`my_words.py:board`) is relative as in `id`."""
    num_players: int = Field(default=2, ge=1, le=1000)
    """Number of seats."""
    template: Annotated[FilePath, CLASS_FILE] = DEFAULT_TEMPLATE
    """How observations become prompts and answers become moves: a name, or a template of your own by file and
    name (`my_templates.py:terse`), relative as in `id`."""
    max_turns: int = Field(default=200, ge=1, le=1_000_000)
    """A game that takes more turns (of all players together) is stopped and counts as a draw."""
    error_allowance: int = Field(default=0, ge=0, le=1_000_000)
    """Number of consecutive invalid moves that are forgiven; the next one ends the game."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of an answer in this game, in tokens; by default `inference.max_tokens`."""
    stop: Texts = Field(default=[], max_length=100)
    """Texts that end an answer in this game; by default `inference.stop`, then that of the template. Not with
    `magnet`, `all_actions` or NashConv: for these, an answer ends where the model or the template ends it."""
    reasoning: ThoughtTags = "auto"
    """The tags around thoughts in this game; by default `inference.reasoning`."""
    max_reasoning: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tokens of a thought after which the engine ends it; by default `inference.max_reasoning`."""
    policies: list[PolicyName] = Field(default=[], max_length=1000)
    """The policy that plays and trains each seat, in order of the seats: `["attacker", "defender"]` trains an
    adapter for each side. A name in `[frozen]` plays its seat in every game of training and is not trained.
    By default, the policy `default` has every seat."""

    @field_validator("options")
    @classmethod
    def _options_are_json(cls, options: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise at_field(f"has what JSON cannot hold ({error})", "Write texts, numbers, lists") from error
        return options

    @field_validator("policies")
    @classmethod
    def _one_policy_for_each_seat(cls, policies: list[str], info: ValidationInfo) -> list[str]:
        seats = info.data.get("num_players", len(policies))
        if policies and len(policies) != seats:
            raise at_field(f"must name a policy for each of the {seats} seats", "Correct it", shows=True)
        return policies

    @property
    def seats(self) -> tuple[str, ...]:
        """The policy of each seat."""
        return tuple(self.policies) or (TRAINED,) * self.num_players

    @property
    def calls(self) -> CallSettings:
        """How its answers are drawn; the temperature depends on what the game is for."""
        return CallSettings(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop) or None,
            reasoning=checked_tags(self.reasoning),
            max_reasoning=self.max_reasoning,
        )

    @property
    def plain(self) -> Self:
        """The game without what only training has, such as random moves."""
        return self

    @property
    def env_id(self) -> str:
        """The id with the options."""
        return with_options(self.id, self.options)

    @property
    def name(self) -> str:
        """The name in records and figures: the id, or the class of a game of your own, with the options."""
        return env_name(self.env_id)

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells a game from others: its name, its number of players and its template."""
        return self.name, self.num_players, self.template


class EnvSettings(GameSettings):
    """An environment to train in."""

    section = "envs"

    weight: float = Field(default=1.0, ge=1e-9, le=1e9)
    """Its share of the games, relative to the other environments'."""
    temperature: float | None = Field(default=None, ge=0.01, le=100)
    """Sampling temperature in training games; by default `inference.temperature`."""
    random_opening: int = Field(default=0, ge=0, le=1_000_000)
    """Training games begin with 0 to this many random legal moves, each number equally likely; nobody learns
    from them. Only for games without hidden cards, about which random first moves would mislead. Evaluations
    have none."""
    explore: float = Field(default=0.0, ge=0, le=1)
    """Probability with which a trained policy answers in training games with a random legal move, each
    equally likely, in place of one that it draws; it learns from these too. For `magnet` and `all_actions`
    with the embedded engine; with hidden cards only beside `values = "tree"`. Evaluations have none."""
    answers_per_turn: int = Field(default=1, ge=1, le=1000)
    """Number of answers that a trained policy draws at each of its turns in training games; it learns from
    all. Each is worth what its player earns in a copy of the game, which begins with it and which the same
    players play to its end with one answer a turn. So with N answers, a game of T turns takes about N T² / 2.
    `normalize_rewards_by_turn` compares the answers of one turn. For games of OpenSpiel and TextArena, and
    algorithms that learn from drawn tokens. Evaluations draw one answer."""
    goes_on: Literal["best", "first"] = "first"
    """Which of several answers the game goes on with: the one that was worth most (of equal ones the first),
    as in AT-GRPO, arXiv 2510.11062, or always the first. The best is chosen with knowledge of hidden cards
    and of chance to come, so a game with either reaches positions more often than in play; use `first`
    there."""

    def rules(self) -> Iterable[Rule]:
        """An answer is chosen only among several."""
        return (self._chooses_among_several,)

    def _chooses_among_several(self) -> None:
        if self.goes_on == "best" and self.answers_per_turn == 1:
            raise at_field("is best, but answers_per_turn is 1", "Raise that, or leave this out", "goes_on")

    @property
    def plain(self) -> Self:
        """The game without what only training has."""
        return self.model_copy(
            update={"random_opening": 0, "explore": 0.0, "answers_per_turn": 1, "goes_on": "first"}
        )


class EvaluatedGameSettings(GameSettings):
    """A game that evaluations play."""

    section = "evaluation.envs"

    policies: list[PolicyName] = Field(default=[], max_length=1000)
    """The policy that plays each seat, in order of the seats; by default as in training, or the only
    policy."""
    opponents: Names | None = None
    """The opponents in its matches; by default `evaluation.opponents`."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature of the model in its matches; by default `evaluation.temperature`."""
    sampling: SamplingSettings | None = None
    """How the model draws in its matches; by default `evaluation.sampling`."""
    games: int | None = Field(default=None, ge=2, le=10_000_000)
    """Number of games in each of its matches; by default `evaluation.games` before and after training, and
    `evaluation.games_during` during it."""
    nash_conv: bool | None = None
    """Compute its NashConv; by default `evaluation.nash_conv`."""


def label_of(game: GameSettings, among: Iterable[GameSettings]) -> str:
    """Return the name of a game: with seats and template if another one has the name."""
    if all(one.key == game.key for one in among if one.name == game.name):
        return game.name
    return f"{game.name} for {game.num_players}, {name_of(game.template)}"


def check_each_once(games: Iterable[GameSettings]) -> None:
    """Raise an InputError if two entries are one game."""
    keys = [game.key for game in games]
    for game, key in zip(games, keys, strict=True):
        if keys.count(key) > 1:
            problem = f"two entries are called {game.name} and have the same template"
            raise InputError(game.section, problem, "Merge them")


@dataclass(frozen=True)
class Games:
    """Games, each of which draws one of the environments by weight."""

    envs: list[EnvSettings]

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [env.name for env in self.envs]

    @property
    def policies(self) -> list[str]:
        """The policies that the seats name."""
        return list(dict.fromkeys(policy for env in self.envs for policy in env.seats))

    @property
    def seats(self) -> list[dict[Seat, str]]:
        """The policy of each seat, by game."""
        return [dict(enumerate(env.seats)) for env in self.envs]


_IN_PROGRAMS = "Set program.batch_size; a program of your own chooses its batch itself"
MODES_WITH_OPPONENTS: tuple[SampleMode, ...] = get_args(SampleMode)[1:]
"""All modes but ``mirror``."""
WITH_OPPONENTS = Only("draws_opponents", why='population.sample_mode is "mirror"')


class CollectionSettings(Settings):
    """How games are played."""

    games_per_step: Annotated[int, replace(FOR_GAMES, fix=_IN_PROGRAMS)] = Field(
        default=256, ge=1, le=10_000_000
    )
    """Number of games for one learner update."""
    concurrency: int = Field(default=1024, ge=1, le=1_000_000)
    """Maximum number of games in flight."""
    max_staleness: int = Field(default=0, ge=0, le=1_000_000)
    """Maximum number of versions by which the policy that plays may lag behind the policy that learns. With
    0, play and learning alternate."""
    retries: int = Field(default=RETRIES, ge=0, le=1000)
    """How often a game is retried after a failure that may be temporary, such as a timeout or an engine
    error."""
    max_failed_fraction: float = Field(default=0.5, ge=0, le=1)
    """The run stops when more than this fraction of an update's games fail."""
    game_timeout: float = Field(default=EPISODE_TIMEOUT, ge=0.001, le=1e8)
    """Maximum duration of a game in seconds, including the time it waits for the model."""
    api_calls: int | None = Field(default=None, ge=0, le=1_000_000_000)
    """Number of calls to models behind an API in `[frozen]` after which a run ends, or a PSRO with all its
    members, or a tournament or an evaluation of the run's program; by default no limit. But for evaluations,
    answers are kept in `answers.jsonl`, and a call that is repeated is not made again."""
    curriculum: Annotated[bool, FOR_GAMES] = False
    """Let the weights of the environments follow the results: each is multiplied by the variance of what a
    trained seat has earned there in its last hundred games or so, in units of half the range of rewards.
    Environments in which the policy wins half of its games come most, those that it always wins, loses or
    draws next to never. One of fewer than 10 games has the largest variance of the others. Ranges are those
    that OpenSpiel states, elsewhere -1 to 1."""
    filter_opponent_invalid: Annotated[bool, FOR_GAMES, WITH_OPPONENTS] = False
    """Discard games that an opponent's invalid move decided."""
