"""OpponentChoice: the sample modes of a model pool, that is, whom it draws and whom it keeps."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from sparring.core import InputError, Opponent
from sparring.core.play import PfspForm
from sparring.population.exploration import ExplorationTracker
from sparring.population.payoff_games import PayoffGames
from sparring.population.pool_members import FIXED, PoolMembers
from sparring.population.ratings import TrueSkillRatings
from sparring.population.results import RecentResults


@dataclass(frozen=True)
class SamplingRule:
    """Settings of the sample modes.

    Attributes:
        mirror_share: the probability of a mirror game in every mode but ``mirror``.
        pfsp: the form of the weights of mode ``pfsp``.
        payoff_games: games between every two members in mode ``meta-nash``.
        weights: how often each fixed model is drawn in mode ``fixed``, by name; empty for all alike.
        sides: the policies of the two seats in mode ``meta-nash``, if each has one of its own.
    """

    mirror_share: float = 0.0
    pfsp: PfspForm = "hard"
    payoff_games: int = 64
    weights: Mapping[str, float] = field(default_factory=dict)
    sides: tuple[str, ...] = ()


def proportional_weights(scores: list[float]) -> list[float]:
    """Return score / sum(scores); uniform if all scores are 0."""
    total = sum(scores)
    if total <= 0:
        return [1 / len(scores)] * len(scores)
    return [score / total for score in scores]


def distance_weights(distances: list[float]) -> list[float]:
    """Return (1 - d / sum(d)) / (n - 1) for the n distances d, so closer candidates are more likely.

    A single candidate has weight 1; if all candidates are at distance 0, they have equal weights.
    (UnstableBaselines omits the division and normalises in place while the sum changes.)
    """
    count, total = len(distances), sum(distances)
    if count == 1 or total <= 0:
        return [1 / count] * count
    return [(1 - distance / total) / (count - 1) for distance in distances]


def pfsp_weights(win_rates: Sequence[float | None], form: PfspForm) -> list[float]:
    """Return the weights of prioritised fictitious self-play, f(x) / sum(f).

    x is the learner's win rate against a candidate, 0 to 1. The forms are those of AlphaStar (Vinyals et al.,
    2019, and its published pseudocode, which calls them ``squared``, ``variance`` and ``linear_capped``):

    - ``hard``: f(x) = (1 - x)^2, those that the learner beats least.
    - ``variance``: f(x) = x (1 - x), those nearest to the learner's strength.
    - ``linear``: f(x) = min(0.5, 1 - x), all that the learner does not beat alike.

    As in AlphaStar, weights that are all 0 become uniform. AlphaStar takes 0.5 for an unknown win rate; here
    a candidate with ``None`` has the largest weight of the others, so that it gets games and a win rate.
    """
    f = _pfsp_form(form)
    known = [f(rate) for rate in win_rates if rate is not None]
    largest = max(known, default=1.0)
    return proportional_weights([largest if rate is None else f(rate) for rate in win_rates])


def _pfsp_form(form: PfspForm) -> Callable[[float], float]:
    match form:
        case "hard":
            return lambda x: (1 - x) ** 2
        case "variance":
            return lambda x: x * (1 - x)
        case "linear":
            return lambda x: min(0.5, 1 - x)
        case _:
            assert_never(form)


@dataclass(frozen=True)
class Evidence:
    """What games have shown of the members, by which modes weigh them."""

    ratings: TrueSkillRatings
    exploration: ExplorationTracker
    recent: RecentResults
    payoffs: PayoffGames


@dataclass(eq=False, repr=False)
class OpponentChoice:
    """Weighs the members of a pool by its sample mode.

    Sample modes, all over *active* models; of the checkpoints, over those of one policy:

    - ``fixed``: uniform over the fixed models, or in proportion to their weights; those of another policy's
      place are left out.
    - ``mirror``: the current model.
    - ``lagged``: uniform over checkpoints whose lag is in ``lag_range``; the current model if there is none.
      A lag counts checkpoints: 0 is the latest one, 1 the one before it.
    - ``historical``: uniform over checkpoints, as in fictitious self-play.
    - ``random``: uniform over fixed models and checkpoints.
    - ``match-quality``: in proportion to TrueSkill's quality of the match against ``uid_me``.
    - ``ts-dist``: weight (1 - d / sum(d)) / (n - 1), where d is the distance of the mean ratings.
    - ``exploration``: in proportion to the mean share of distinct action n-grams in the opponent's recent
      games; a model without games has share 1, so that it gets some games.
    - ``pfsp``: prioritised fictitious self-play, by the win rate of ``uid_me``, a policy, against the model
      in recent games (:class:`RecentResults`), in one of three forms (:func:`pfsp_weights`). A model that it
      has met in fewer than 10 games has the largest weight of the others.
    - ``meta-nash``: by the probabilities in the Nash equilibrium of maximum entropy of the game in which each
      side chooses one of the models. What they earn is known from games between them (:class:`PayoffGames`),
      which somebody has to play. For two seats; if each has a policy of its own, ``sides`` of the rule.

    The last five modes leave out ``uid_me``, which would be its own best match, and fall back to it if there
    is no other model. The documentation of UnstableBaselines says softmax, but its code uses the weights
    above, normalised so that they do not sum to 1; here they do.

    The latest checkpoint of a policy stays active, and of the others those that are worth most: by recency,
    by quality of the match with the current model (``match-quality``), by distance of the means
    (``ts-dist``), by recency with those in ``lag_range`` first (``lagged``), by their weight for all policies
    together (``pfsp``: those that are hardest now), by their probability among those that have played
    (``meta-nash``), or so that they are spread evenly over the run (``historical``, see
    :func:`spread_worth`).

    Args:
        mode: the sample mode.
        lag_range: lowest and highest lag, both inclusive.
        rule: settings of the modes.
        members: who can be drawn.
        evidence: what is known of them.
    """

    mode: str
    lag_range: tuple[int, int]
    rule: SamplingRule
    members: PoolMembers
    evidence: Evidence

    def candidates(self, me: Opponent, policy: str) -> tuple[list[Opponent], list[float] | None]:
        """Return the possible opponents of ``me`` and their weights (``None`` means uniform)."""
        active = [model for model in self.members.active() if model.policy in ("", policy)]
        if self.mode == "fixed":
            fixed, weights = self._fixed(policy), self.rule.weights
            return fixed, [weights[one.uid.removeprefix(FIXED)] for one in fixed] if weights else None
        if self.mode == "mirror":
            return [self.members.current(policy)], None
        if self.mode == "lagged":
            low, high = self.lag_range
            lags = self.members.lags(policy)
            lagged = [m for m in active if m.kind == "checkpoint" and low <= lags[m.uid] <= high]
            return lagged or [self.members.current(policy)], None
        if self.mode == "historical":
            past = [model for model in active if model.kind == "checkpoint"]
            return past or [self.members.current(policy)], None
        if self.mode == "random":
            return active or [self._substitute(me, policy)], None
        others = [model for model in active if model.uid != me.uid]
        if not others:
            return [self._substitute(me, policy)], None
        if self.mode == "match-quality":
            qualities = [self.evidence.ratings.quality(me.rating, model.rating) for model in others]
            return others, proportional_weights(qualities)
        if self.mode == "ts-dist":
            return others, distance_weights([abs(me.rating[0] - model.rating[0]) for model in others])
        if self.mode == "pfsp":
            return others, self._pfsp_weights([me.uid], others)
        if self.mode == "meta-nash":
            uids = [model.uid for model in others]
            return others, self._nash(uids, policy)
        diversities = [self.evidence.exploration.diversity(model.uid) for model in others]
        return others, proportional_weights([1.0 if share is None else share for share in diversities])

    def worth(self, policy: str, older: list[Opponent], lags: dict[str, int]) -> dict[str, float]:
        """Return by uid the worth of a policy's older checkpoints, given the lags of all of them."""
        current = self.members.current(policy)
        match self.mode:
            case "match-quality":
                worth = [self.evidence.ratings.quality(current.rating, model.rating) for model in older]
            case "ts-dist":
                worth = [-abs(current.rating[0] - model.rating[0]) for model in older]
            case "lagged":
                low, high = self.lag_range
                worth = [float(low <= lags[model.uid] <= high) for model in older]
            case "historical":
                number_of_latest = len(lags) - 1
                worth = [spread_worth(number_of_latest - lags[model.uid]) for model in older]
            case "pfsp" if older:
                policies = [one.uid for one in self.members.models() if one.kind == "policy"]
                worth = self._pfsp_weights(policies, older)
            case "meta-nash" if older:
                fixed = self.members.fixed()
                uids = [one.uid for one in (*older, *fixed)]
                worth = self._nash(uids, policy)[: len(older)]
            case _:
                worth = [0.0] * len(older)
        return {model.uid: value for model, value in zip(older, worth, strict=True)}

    def _nash(self, uids: list[str], policy: str) -> list[float]:
        """Return the probability of each of those that may take a policy's place."""
        if not self.rule.sides:
            return self.evidence.payoffs.mixture(uids)
        rivals = [one.uid for one in self.members.active() if one.policy != policy]
        return self.evidence.payoffs.mixture(uids, rivals, self.rule.sides.index(policy))

    def _pfsp_weights(self, policies: list[str], members: list[Opponent]) -> list[float]:
        return pfsp_weights(
            [self.evidence.recent.win_rate(policies, one.uid) for one in members], self.rule.pfsp
        )

    def _substitute(self, me: Opponent, policy: str) -> Opponent:
        """Return who takes a policy's place if no other model can: ``me``, or else its current model."""
        return me if (me.policy or me.uid) == policy else self.members.current(policy)

    def _fixed(self, policy: str) -> list[Opponent]:
        fixed = [model for model in self.members.fixed() if model.policy in ("", policy)]
        if not fixed:
            raise InputError(
                "sample_mode",
                "'fixed' needs a fixed opponent, but the pool has none",
                "Add one with add_fixed(name).",
            )
        return fixed


def spread_worth(number: int) -> float:
    """Return the priority of keeping the checkpoint with this number, from 0 on, for an even spread.

    It is the largest power of two that divides the number; without an end for 0. If those with the highest
    priority are kept, and the more recent one of equals, no gap between two neighbours is more than twice
    another, however long the run is.
    """
    return float(number & -number) or math.inf
