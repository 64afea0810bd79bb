"""The opponents in training and in evaluations, and PSRO."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from sparring.config.base import Name, Names, Rule, Settings, at_field
from sparring.config.facts import FOR_GAMES, FOR_PROGRAMS, Only
from sparring.config.model import SamplingSettings
from sparring.config.play import MODES_WITH_OPPONENTS, WITH_OPPONENTS, EvaluatedGameSettings
from sparring.config.questions import Tasks
from sparring.core.play import MetaStrategy, PfspForm, SampleMode

_Lag = Annotated[int, Field(ge=0, le=1_000_000)]
_Weight = Annotated[float, Field(ge=0, le=1e9)]
_FIXED = Only("sample_mode", ("fixed",), refused=True)
_COPIES = Only("keeps_copies", why="population.sample_mode draws no copies")
_DRAWN = replace(FOR_GAMES, other="draws_in_evaluation", values=())


class PopulationSettings(Settings):
    """The opponents that the policy plays against in training."""

    sample_mode: SampleMode = "mirror"
    """With `mirror`, every seat plays and trains its policy; other modes draw opponents from the pool."""
    mirror_share: Annotated[float, Only("sample_mode", MODES_WITH_OPPONENTS, refused=True)] = Field(
        default=0.0, ge=0, le=1
    )
    """In the other modes, the share of games (of groups, in a program) that are played as in `mirror`."""
    max_active_lora: Annotated[int, _COPIES] = Field(default=4, ge=1, le=100_000)
    """Maximum number of checkpoints that can be drawn as opponents."""
    lag_range: Annotated[tuple[_Lag, _Lag], Only("sample_mode", ("lagged",))] = Field(
        default=(1, 7), strict=False
    )
    """For `lagged`: the minimum and maximum lag of the opponent, in checkpoints."""
    pfsp: Annotated[PfspForm, Only("sample_mode", ("pfsp",))] = "hard"
    """For `pfsp`: a member's weight, by the win rate x against it in recent games. `hard`, (1 - x)², prefers
    members that are rarely beaten; `variance`, x (1 - x), members of equal strength; `linear`, min(0.5, 1 -
    x), treats all that are beaten in at most half of the games alike."""
    payoff_games: Annotated[int, Only("sample_mode", ("meta-nash",))] = Field(default=64, ge=2, le=1_000_000)
    """For `meta-nash`: number of games that each new member of the pool plays against every other active one,
    half of them in each order of seats; an odd number is rounded up. Nobody learns from them."""
    fixed_opponents: Annotated[Names, WITH_OPPONENTS] = []
    """Additional members of the pool: a script such as `random` or `optimal`, `base` (the untrained model),
    or a name in `[frozen]`. Scripted players cannot play a program's roles."""
    weights: Annotated[list[_Weight], _FIXED] = Field(default=[], max_length=1000)
    """For `fixed`: the relative weight of each of `fixed_opponents` in the draw; by default all are equal."""
    places: Annotated[dict[Name, Name], _FIXED] = Field(default={}, max_length=1000)
    """For `fixed`, where seats or roles have several policies: the policy whose seats a fixed opponent takes,
    by the opponent's name. An opponent without a place plays in any seat."""
    add_every: Annotated[int, _COPIES] = Field(default=10, ge=1, le=10_000_000)
    """Number of updates after which another copy of the policy joins the pool."""
    roles: Annotated[Names, FOR_PROGRAMS, Only("sample_mode", MODES_WITH_OPPONENTS)] = []
    """Roles of a program that meet the pool, unless `sample_mode` is `mirror`: each episode trains one of
    them, drawn at random, and members of the pool play the others. By default all roles."""

    sampling: SamplingSettings | None = None
    """How models that are not in training draw, in training and as opponents in evaluations: copies, fixed
    opponents, frozen seats. By default as the policies do. A temperature of the model's own gives way to the
    game's."""

    @property
    def weights_by_name(self) -> dict[str, float]:
        """How often each fixed opponent is drawn, in proportion."""
        names = self.fixed_opponents
        return dict(zip(names, self.weights or [1.0] * len(names), strict=True))

    @field_validator("lag_range")
    @classmethod
    def _lags_in_order(cls, lag_range: tuple[int, int]) -> tuple[int, int]:
        low, high = lag_range
        if low > high:
            raise at_field(f"[{low}, {high}] is not a range of lags", "Give a range such as [1, 7]")
        return lag_range

    def rules(self) -> Iterable[Rule]:
        """Fixed opponents are named, and what names them fits."""
        return (self._fixed_opponents_fit,) if self.sample_mode == "fixed" else ()

    def _fixed_opponents_fit(self) -> None:
        names = self.fixed_opponents
        if not names:
            problem = 'is empty, but sample_mode "fixed" draws from it'
            raise at_field(problem, 'Name opponents: ["random"]', "fixed_opponents")
        if unknown := self.places.keys() - {*names}:
            raise at_field(f"{min(unknown)} is none of the fixed_opponents", "Name one of them", "places")
        if self.weights and len(self.weights) != len(names):
            problem = f"has {len(self.weights)} entries, but fixed_opponents has {len(names)}"
            raise at_field(problem, "Give each opponent a weight", "weights")
        if self.weights and not any(self.weights):
            raise at_field("must not all be 0", "Correct them", "weights")


class EvaluationSettings(Settings):
    """Matches, exact measures and tasks before, during and after training."""

    every: int = Field(default=0, ge=0, le=10_000_000)
    """Number of updates between evaluations during training; 0 for evaluations only before and after it."""
    games: Annotated[int, FOR_GAMES] = Field(default=400, ge=2, le=10_000_000)
    """Number of games in each match before and after training, even if it ends early; seats are balanced."""
    games_during: Annotated[int, FOR_GAMES, Only("every")] = Field(default=100, ge=2, le=10_000_000)
    """Number of games in each match during training."""
    patience: Annotated[int, FOR_GAMES, Only("every", refused=True)] = Field(default=0, ge=0, le=10_000_000)
    """The run ends early after this many evaluations in a row without progress: in none of their matches is
    the 95% interval of the mean reward above the best mean before. 0 for never. It needs `every`."""
    games_alongside: Annotated[int, FOR_GAMES] = Field(default=0, ge=0, le=10_000_000)
    """Number of evaluation games among each update's training games, against each opponent in turn."""
    envs: Annotated[list[EvaluatedGameSettings], FOR_GAMES] = Field(default=[], max_length=1000)
    """By default, evaluations play the training games. All matches count for `patience` and for the pool's
    ratings."""
    opponents: Annotated[Names | None, FOR_GAMES] = None
    """A script such as `random` or `optimal`, `base`, or a name in `[frozen]`; by default `random`, or `base`
    in an environment that does not list its legal moves. `mixture` stands for the fixed opponents of training
    in mode `fixed`: each game draws one of them by weight."""
    nash_conv: Annotated[bool, FOR_GAMES] = False
    """Compute NashConv exactly (OpenSpiel games whose positions can be listed)."""
    nash_conv_minutes: Annotated[float, FOR_GAMES] = Field(default=10.0, ge=1e-6, le=1e6)
    """Time limit for one NashConv. Exceeding it before training is an error; later, the value is left out
    with a warning."""
    temperature: Annotated[float | None, _DRAWN] = Field(default=None, ge=0, le=100)
    """Sampling temperature of the model in its matches and in tasks; 0 takes the most likely token. By
    default 1, or the model's own with `sampling.from_model`."""
    sampling: Annotated[SamplingSettings | None, _DRAWN] = None
    """How the model draws in its matches and in tasks; by default from its whole distribution, as in
    training. NashConv is of that distribution, whatever is set here."""
    tasks: Tasks = []
    """Each is a table, or only its `name`: `tasks = ["arithmetic", {name = "gsm8k", every = 50}]`. Every
    policy that is trained answers all of them, each question once; nothing learns from them, and they count
    neither for `patience` nor for `run.keep_best`."""


class PsroSettings(Settings):
    """Policy-space response oracles: `sparring psro`. Other commands do not use it."""

    iterations: int = Field(default=8, ge=1, le=100_000)
    """Number of best responses."""
    solver: MetaStrategy | None = None
    """The mixture that a best response is trained against: `nash` (for two seats: the equilibrium of maximum
    entropy, the double oracle algorithm), `alpharank`, `prd` (projected replicator dynamics), or `uniform`
    (fictitious play). By default `nash` as long as two seats together earn the same in every game,
    else `prd`."""
    payoff_games: int = Field(default=1000, ge=4, le=1_000_000)
    """Number of games for each pair of members, or group that fills the seats, as many in every order of
    seats."""
    patience: Annotated[int, FOR_GAMES] = Field(default=3, ge=1, le=10_000_000)
    """A best response is complete after this many evaluations in a row against the mixture without progress,
    as in `evaluation.patience`, and after `learning.steps` updates at the latest."""
    start: Literal["last", "first"] = "last"
    """What a best response starts from: the `last` member or the `first`."""
