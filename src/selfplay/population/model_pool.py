"""ModelPool: all models that play, their ratings, and the choice of the next opponent."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol, get_args

from selfplay.core import InputError, Opponent, SelfplayError, derive_seed
from selfplay.core.adapters import TRAINED
from selfplay.core.play import SampleMode
from selfplay.population.exploration import ExplorationTracker
from selfplay.population.match_table import MatchTable
from selfplay.population.opponent_weights import distance_weights, pfsp_weights, proportional_weights
from selfplay.population.payoff_games import PayoffGames
from selfplay.population.payoffs import PayoffTable
from selfplay.population.ratings import TrueSkillRatings
from selfplay.population.recent_results import RecentResults
from selfplay.population.sampling_rule import SamplingRule

# The pool's uid of the policy in training.
POLICY_UID = TRAINED

# One-player games are rated against this dummy member, which always scores 0. It is never sampled.
ENVIRONMENT_UID = "fixed-env"

# Version of ``ModelPool.state_dict``. Version 1, which had no number, kept the policy and its latest copy
# as one member; version 2 knew one policy.
STATE_FORMAT = 3


def checkpoint_uid(iteration: int, policy: str = POLICY_UID) -> str:
    """Return the uid of the copy of a policy that was frozen after ``iteration`` updates."""
    return f"ckpt-{iteration}" if policy == POLICY_UID else f"{policy}-ckpt-{iteration}"


def iteration_of(uid: str) -> int:
    """Return the number of updates after which the copy with this uid was frozen."""
    return int(uid.rpartition("ckpt-")[2])


class PoolTracker(Protocol):
    """The part of a tracker that the pool uses."""

    def log_model_pool(
        self,
        match_counts: dict[tuple[str, str], int],
        ts_dict: dict[str, dict[str, float]],
        exploration: dict[str, dict[str, float]],
    ) -> None:
        """Record games by pair of uids, :meth:`ModelPool.figures`, and pct_unique by environment."""


class ModelPool:
    """Registry, ratings and opponent sampling of checkpoints (``ckpt-7``) and fixed models (``fixed-x``).

    Each rating belongs to one model. A policy in training is a separate member (``add_policy``), which
    changes with every update: ``default``, or any number of others. ``ckpt-7`` is the copy of ``default``
    that was frozen after update 7, ``solver-ckpt-7`` that of the policy ``solver``. A copy starts from the
    policy's rating at that time, and only its own games change its rating. The current model of a policy is
    the policy itself, or its latest checkpoint in a pool without the policy.

    Sample modes, all over *active* models; of the checkpoints, over those of one policy:

    - ``fixed``: uniform over the fixed models, or in proportion to their weights.
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
      which somebody has to play. For games of two, with one policy in both seats.

    The last five modes leave out ``uid_me``, which would be its own best match, and fall back to it if there
    is no other model. The documentation of UnstableBaselines says softmax, but its code uses the weights
    above, normalised so that they do not sum to 1; here they do.

    At most ``max_active_lora`` checkpoints of a policy are active: the latest one and the best others by
    recency, by quality of the match with the current model (``match-quality``), by distance of the means
    (``ts-dist``), by recency with those in ``lag_range`` first (``lagged``), by their weight for all policies
    together (``pfsp``: those that are hardest now), by their probability among those that have played
    (``meta-nash``), or so that they are spread evenly over the run (``historical``, see
    :func:`spread_worth`). Ties go to the more recent one. The others are retired: they are never drawn again,
    so only their ratings and results must be kept. In mode ``lagged``, a checkpoint that is too recent for
    the range is inactive but not retired. Fixed models do not change their state.

    Args:
        sample_mode: one of the modes.
        max_active_lora: maximum number of active checkpoints, 1 or more.
        tracker: receives every snapshot; ``None`` disables this.
        lag_range: lowest and highest lag, both inclusive.
        seed: seed of draws for which ``sample`` gets no generator.
        rule: settings of the modes.

    Raises:
        InputError: an argument is not as described.
    """

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: PoolTracker | None = None,
        lag_range: tuple[int, int] = (1, 7),
        seed: int = 0,
        rule: SamplingRule | None = None,
    ) -> None:
        if sample_mode not in get_args(SampleMode):
            modes = ", ".join(get_args(SampleMode))
            raise InputError("sample_mode", f"{sample_mode!r} is unknown", f"Choose one of: {modes}.")
        if max_active_lora < 1:
            raise InputError("max_active_lora", f"{max_active_lora} is not positive", "Give 1 or more.")
        low, high = lag_range
        if not 0 <= low <= high:
            raise InputError("lag_range", f"({low}, {high}) is not a range of lags", "Example: (1, 7).")
        self.sample_mode = sample_mode
        self.max_active_lora = max_active_lora
        self.tracker = tracker
        self.lag_range = (low, high)
        self.seed = seed
        self.rule = rule or SamplingRule()
        self.ratings = TrueSkillRatings()
        self.exploration = ExplorationTracker()
        self.matches = MatchTable()
        self.recent = RecentResults()
        self.payoffs = PayoffGames(self.rule.payoff_games)
        self.played = PayoffTable()  # every game of the run but those of matches: who sat where
        self._models: dict[str, Opponent] = {}
        self._environment = Opponent(ENVIRONMENT_UID, "fixed", None, self.ratings.default, active=False)
        self._latest: dict[str, str] = {}
        self._draws = 0
        self._drawn: Counter[str] = Counter()

    # Members

    def add_policy(self, uid: str = POLICY_UID) -> str:
        """Register a policy in training, or the running average of one, and return its uid.

        It is rated by its games. An average is never drawn.

        Raises:
            InputError: the uid is already registered.
        """
        self._register(Opponent(uid, "policy", None, self.ratings.default, active=False))
        return uid

    def add_checkpoint(self, path: str | None, iteration: int, policy: str = POLICY_UID) -> str:
        """Register a checkpoint, make it the latest one and return its uid, such as ``ckpt-{iteration}``.

        From the model that was current until now (the policy or the previous checkpoint) it inherits the mean
        rating, twice the deviation (at most that of an unknown model), and the exploration window.

        Args:
            path: path of the adapter; ``None`` for the base model or an adapter in memory.
            iteration: policy version; -1 or 0 for the untrained policy.
            policy: the policy that it is a copy of.

        Raises:
            InputError: this iteration is already registered.
        """
        uid = checkpoint_uid(iteration, policy)
        source = self._playing(policy)
        rating = self.ratings.default if source is None else self.ratings.inherited(source.rating)
        self._register(Opponent(uid, "checkpoint", path, rating, iteration=iteration, policy=policy))
        if source is not None:
            self.exploration.inherit(uid, source.uid)
        self._latest[policy] = uid
        self._maintain_active_pool(policy)
        self._schedule_payoffs(uid)
        return uid

    def start_again(self, policy: str) -> None:
        """Rate a policy that starts again as an unknown one; its copies stay as they are."""
        self._model(policy).rating = self.ratings.default
        self.recent.forget([policy])

    def forget_after(self, iteration: int) -> set[str]:
        """Remove the checkpoints of later iterations, with their ratings and records; return their uids.

        The latest of the others is the latest again. Checkpoints that were retired since stay retired,
        because their adapters may be deleted.
        """
        removed = {one.uid for one in self._checkpoints() if (one.iteration or 0) > iteration}
        for uid in removed:
            del self._models[uid]
            del self._drawn[uid]
            self.exploration.forget(uid)
        self.matches.forget(removed)
        self.recent.forget(removed)
        self.payoffs.forget(removed)
        self.played.forget(removed)
        self._latest = {one.policy: one.uid for one in self._checkpoints()}
        return removed

    def add_fixed(
        self,
        name: str,
        prior_mu: float = 25.0,
        *,
        kind: Literal["fixed", "script"] = "fixed",
        active: bool = True,
    ) -> str:
        """Register an untrained model or a scripted player, and return its uid, ``fixed-{name}``.

        If it is not ``active``, it is rated by its games but never drawn; evaluation opponents are like this.

        Raises:
            InputError: the name is already registered, or is ``env``.
        """
        uid = f"fixed-{name}"
        if uid == ENVIRONMENT_UID:
            raise InputError("name", "'env' is reserved for one-player games", "Choose another name.")
        self._register(Opponent(uid, kind, name, (float(prior_mu), self.ratings.default[1]), active))
        self._schedule_payoffs(uid)
        return uid

    def current_uid(self, policy: str = POLICY_UID) -> str | None:
        """Return the uid of the latest checkpoint of a policy, or ``None`` before the first."""
        return self._latest.get(policy)

    def latest_ckpt(self) -> str | None:
        """Return the same as ``current_uid`` of the policy ``default``."""
        return self.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return (path or name, kind) of a model, or ``None`` for an unknown uid."""
        model = self._models.get(uid)
        return (model.path_or_name, model.kind) if model is not None else None

    def opponents(self) -> list[Opponent]:
        """Return all models in order of registration."""
        return list(self._models.values())

    def active_checkpoints(self) -> list[str]:
        """Return the uids of the active checkpoints, oldest first; their adapters should stay loaded."""
        return [model.uid for model in self._checkpoints() if model.active]

    def kept_checkpoints(self) -> list[str]:
        """Return the uids of the checkpoints that may still be drawn (not retired), oldest first."""
        return [model.uid for model in self._checkpoints() if model.retired is None]

    # Sampling

    def sample(self, uid_me: str, rng: random.Random | None = None, policy: str = POLICY_UID) -> str:
        """Choose an opponent for ``uid_me`` by the sample mode.

        Args:
            uid_me: who is to play against the one chosen.
            rng: draws the choice; without it the pool draws from its own seed.
            policy: the policy whose place the opponent takes: it is one of its checkpoints, or fixed.

        Raises:
            InputError: ``uid_me`` is unknown, or the mode has no model to choose from.
        """
        me = self._model(uid_me)
        if rng is None:
            rng = random.Random(derive_seed(self.seed, "sample", self._draws))
            self._draws += 1
        candidates, weights = self._candidates(me, policy)
        return rng.choices(candidates, weights)[0].uid

    def draw_mirror(self, rng: random.Random) -> bool:
        """Draw whether the next game is a mirror game, in which the policies play and train every seat.

        It is one in mode ``mirror``; in other modes it is one with the probability of the rule. Without such
        a share, nothing is drawn from ``rng``.
        """
        share = self.rule.mirror_share
        return self.sample_mode == "mirror" or (share > 0 and rng.random() < share)

    def count_drawn(self, uids: Iterable[str]) -> None:
        """Count a game for which these members were drawn; that is a policy itself in a mirror game."""
        if self.sample_mode != "mirror":
            self._drawn.update(uids)

    def _candidates(self, me: Opponent, policy: str) -> tuple[list[Opponent], list[float] | None]:
        """Return the possible opponents of ``me`` and their weights (``None`` means uniform)."""
        active = [model for model in self._models.values() if model.active and model.policy in ("", policy)]
        if self.sample_mode == "fixed":
            fixed, weights = self._fixed(), self.rule.weights
            return fixed, [weights[one.path_or_name or ""] for one in fixed] if weights else None
        if self.sample_mode == "mirror":
            return [self._current(policy)], None
        if self.sample_mode == "lagged":
            low, high = self.lag_range
            lags = self._lags(policy)
            lagged = [m for m in active if m.kind == "checkpoint" and low <= lags[m.uid] <= high]
            return lagged or [self._current(policy)], None
        if self.sample_mode == "historical":
            past = [model for model in active if model.kind == "checkpoint"]
            return past or [self._current(policy)], None
        if self.sample_mode == "random":
            return active or [self._substitute(me, policy)], None
        others = [model for model in active if model.uid != me.uid]
        if not others:
            return [self._substitute(me, policy)], None
        if self.sample_mode == "match-quality":
            qualities = [self.ratings.quality(me.rating, model.rating) for model in others]
            return others, proportional_weights(qualities)
        if self.sample_mode == "ts-dist":
            return others, distance_weights([abs(me.rating[0] - model.rating[0]) for model in others])
        if self.sample_mode == "pfsp":
            return others, self._pfsp_weights([me.uid], others)
        if self.sample_mode == "meta-nash":
            return others, self.payoffs.mixture([model.uid for model in others])
        diversities = [self.exploration.diversity(model.uid) for model in others]
        return others, proportional_weights([1.0 if share is None else share for share in diversities])

    def _pfsp_weights(self, policies: list[str], members: list[Opponent]) -> list[float]:
        """Return the weights of members by the win rates of these policies together."""
        return pfsp_weights([self.recent.win_rate(policies, one.uid) for one in members], self.rule.pfsp)

    # Results

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: Sequence[str], env_id: str
    ) -> None:
        """Record a two-player game; ``final_reward`` is ``uid_me``'s: >0 won, 0 drawn, <0 lost.

        Errors are as in ``push_result``.
        """
        self.push_result([uid_me, uid_opp], [final_reward, -final_reward], env_id, action_seq)

    def push_result(
        self, uids: list[str], rewards: list[float], env_id: str, action_seq: Sequence[str]
    ) -> None:
        """Record a game of any number of players in ratings, match records and exploration.

        A model with several seats is rated once, by its mean reward. A game in which one model holds all
        seats of several players counts as played and changes no rating. A one-player game is rated as a
        match against the environment, which scores 0.

        Args:
            uids: the model in each seat.
            rewards: final rewards in the same order.
            env_id: the environment of the game.
            action_seq: the actions of all players in order, for the n-gram statistics; empty if unknown.

        Raises:
            InputError: a uid is unknown.
            SelfplayError: there is not exactly one finite reward for each seat.
        """
        if not uids or len(uids) != len(rewards) or not all(map(math.isfinite, rewards)):
            raise SelfplayError(f"a game of {uids} needs one finite reward per seat, but got {rewards}")
        seats: dict[str, list[float]] = {}
        for uid, reward in zip(uids, rewards, strict=True):
            seats.setdefault(self._model(uid).uid, []).append(reward)
        if action_seq:
            self.exploration.add_game(action_seq, env_id, seats)
        scores = {uid: math.fsum(values) / len(values) for uid, values in seats.items()}
        if len(uids) == 1:
            scores[ENVIRONMENT_UID] = 0.0
        if len(scores) == 1:
            self._models[uids[0]].games += 1
            self.matches.add_self_game(uids[0])
            return
        self._update_ratings(scores)
        self._register_game(scores)

    def _update_ratings(self, scores: dict[str, float]) -> None:
        players = [self._player(uid) for uid in scores]
        new_ratings = self.ratings.rate([player.rating for player in players], list(scores.values()))
        for player, rating in zip(players, new_ratings, strict=True):
            player.rating = rating

    def _register_game(self, scores: dict[str, float]) -> None:
        best = max(scores.values())
        shared = list(scores.values()).count(best) > 1
        for uid, score in scores.items():
            player = self._player(uid)
            player.games += 1
            player.wins += score == best and not shared
            player.draws += score == best and shared
        self.matches.add_game(scores)
        for uid in scores:
            if self._player(uid).kind == "policy":
                self.recent.add_game(uid, scores)

    # Reports and state

    def snapshot(self) -> dict[str, Any]:
        """Return the pool as JSON-able data, and pass it to the tracker if there is one.

        ``models`` by uid have rating, counts and ``win_rate`` (the share of games against other models that
        it won alone, ``None`` before the first); ``matches`` are by uid and other uid, ``exploration`` by
        environment. Call it once per training step, because it traverses the whole pool.
        """
        exploration = self.exploration.summary()
        if self.tracker is not None:
            self.tracker.log_model_pool(self.matches.counts(), self.figures(), exploration)
        return {
            "current_uid": self.current_uid(),
            "models": {player.uid: self._describe(player) for player in self._players()},
            "matches": self.matches.state_dict(),
            "exploration": exploration,
        }

    def figures(self) -> dict[str, dict[str, float]]:
        """Return by uid the rating, ``mu`` and ``sigma``, and the games for which the member was ``drawn``.

        The latter is left out of members that never were.
        """
        figures = {}
        for player in self._players():
            mu, sigma = player.rating
            drawn = {"drawn": self._drawn[player.uid]} if self._drawn[player.uid] else {}
            figures[player.uid] = {"mu": mu, "sigma": sigma, **drawn}
        return figures

    def unplayed_pairs(self) -> int:
        """Return the number of pairs of active members without a finished payoff game."""
        return self.payoffs.unplayed_pairs(self._drawable()) if self.sample_mode == "meta-nash" else 0

    def state_dict(self) -> dict[str, Any]:
        """Return members, ratings, records, exploration windows and the draw counter as JSON-able data."""
        return {
            "format": STATE_FORMAT,
            "models": [asdict(model) for model in self._models.values()],
            "environment": asdict(self._environment),
            "latest": dict(self._latest),
            "matches": self.matches.state_dict(),
            "payoffs": self.payoffs.state_dict(),
            "played": self.played.state_dict(),
            "recent": self.recent.state_dict(),
            "exploration": self.exploration.state_dict(),
            "draws": self._draws,
            "drawn": dict(self._drawn),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one.

        Raises:
            InputError: the state was saved by a version with other members.
        """
        if state.get("format") != STATE_FORMAT:
            raise InputError(
                "checkpoint",
                "its ratings were saved by another version of selfplay",
                "Resume with the version that started the run, or start a new run.",
            )
        self._models = {entry["uid"]: _opponent(entry) for entry in state["models"]}
        self._environment = _opponent(state["environment"])
        self._latest = dict(state["latest"])
        self.matches.load_state_dict(state["matches"])
        # Runs from before mode pfsp have no payoffs, recent results and counts of draws.
        if "payoffs" in state:
            self.payoffs.load_state_dict(state["payoffs"])
        if "played" in state:
            self.played.load_state_dict(state["played"])
        self.recent.load_state_dict(state.get("recent", {}))
        self.exploration.load_state_dict(state["exploration"])
        self._draws = state["draws"]
        self._drawn = Counter(state.get("drawn", {}))

    def _describe(self, player: Opponent) -> dict[str, Any]:
        self_play = self.matches.record(player.uid, player.uid).games
        rated = player.games - self_play
        description = asdict(player)
        del description["rating"]
        mu, sigma = player.rating
        return {
            **description,
            "mu": mu,
            "sigma": sigma,
            "win_rate": player.wins / rated if rated else None,
            "exploration": self.exploration.summary(player.uid),
        }

    # Helpers

    def _players(self) -> list[Opponent]:
        """Return all models, and the environment of one-player games if there were any."""
        return [*self._models.values(), *([self._environment] if self._environment.games else [])]

    def _register(self, model: Opponent) -> None:
        if model.uid in self._models:
            raise InputError(model.uid, "the model is already in the pool", "Register each model once.")
        self._models[model.uid] = model

    def _model(self, uid: str) -> Opponent:
        if uid not in self._models:
            raise InputError(uid, "there is no such model in the pool", "Register it before it plays.")
        return self._models[uid]

    def _player(self, uid: str) -> Opponent:
        return self._environment if uid == ENVIRONMENT_UID else self._models[uid]

    def _playing(self, policy: str) -> Opponent | None:
        """Return a policy's current model: itself, or else its latest checkpoint, if there is one."""
        return self._models.get(policy) or self._models.get(self._latest.get(policy, ""))

    def _substitute(self, me: Opponent, policy: str) -> Opponent:
        """Return who takes a policy's place if no other model can: ``me``, or else its current model."""
        return me if (me.policy or me.uid) == policy else self._current(policy)

    def _current(self, policy: str) -> Opponent:
        playing = self._playing(policy)
        if playing is None:
            raise InputError(
                "model pool", "there is no checkpoint", "Add one with add_checkpoint(path, iteration)."
            )
        return playing

    def _fixed(self) -> list[Opponent]:
        fixed = [model for model in self._models.values() if model.kind != "checkpoint" and model.active]
        if not fixed:
            raise InputError(
                "sample_mode",
                "'fixed' needs a fixed opponent, but the pool has none",
                "Add one with add_fixed(name).",
            )
        return fixed

    def _checkpoints(self, policy: str | None = None) -> list[Opponent]:
        found = (model for model in self._models.values() if model.kind == "checkpoint")
        return [model for model in found if policy in (None, model.policy)]

    def _lags(self, policy: str) -> dict[str, int]:
        """Return by uid the number of checkpoints of a policy after each of its checkpoints."""
        return {model.uid: lag for lag, model in enumerate(reversed(self._checkpoints(policy)))}

    def _maintain_active_pool(self, policy: str) -> None:
        """Activate the latest checkpoint of a policy and the best others; retire the rest."""
        latest = self._models[self._latest[policy]]
        others = [one for one in self._checkpoints(policy) if one is not latest and one.retired is None]
        lags = self._lags(policy)
        worth = self._worth(policy, others, lags)
        others.sort(key=lambda model: (worth[model.uid], -lags[model.uid]), reverse=True)
        kept = {model.uid for model in others[: self.max_active_lora - 1]}
        for model in others:
            model.active = model.uid in kept
            waits = self.sample_mode == "lagged" and lags[model.uid] < self.lag_range[0]
            if not model.active and not waits:
                model.retired = latest.iteration
                self.exploration.forget(model.uid)
                self.payoffs.drop([model.uid])

    def _schedule_payoffs(self, uid: str) -> None:
        """Have a new member that may be drawn play the others, if the mode needs to know what they earn."""
        drawable = self._drawable()
        if self.sample_mode == "meta-nash" and uid in drawable:
            self.payoffs.join(uid, [other for other in drawable if other != uid])

    def _drawable(self) -> list[str]:
        return [one.uid for one in self._models.values() if one.active]

    def _worth(self, policy: str, older: list[Opponent], lags: dict[str, int]) -> dict[str, float]:
        """Return by uid the priority of keeping a policy's older checkpoints active."""
        current = self._current(policy)
        match self.sample_mode:
            case "match-quality":
                worth = [self.ratings.quality(current.rating, model.rating) for model in older]
            case "ts-dist":
                worth = [-abs(current.rating[0] - model.rating[0]) for model in older]
            case "lagged":
                low, high = self.lag_range
                worth = [float(low <= lags[model.uid] <= high) for model in older]
            case "historical":
                number_of_latest = len(lags) - 1
                worth = [spread_worth(number_of_latest - lags[model.uid]) for model in older]
            case "pfsp" if older:
                policies = [one.uid for one in self._models.values() if one.kind == "policy"]
                worth = self._pfsp_weights(policies, older)
            case "meta-nash" if older:
                fixed = [one for one in self._models.values() if one.active and one.kind != "checkpoint"]
                worth = self.payoffs.mixture([one.uid for one in (*older, *fixed)])[: len(older)]
            case _:
                worth = [0.0] * len(older)
        return {model.uid: value for model, value in zip(older, worth, strict=True)}


def spread_worth(number: int) -> float:
    """Return the priority of keeping the checkpoint with this number, from 0 on, for an even spread.

    It is the largest power of two that divides the number; without an end for 0. If those with the highest
    priority are kept, and the more recent one of equals, no gap between two neighbours is more than twice
    another, however long the run is.
    """
    return float(number & -number) or math.inf


def _opponent(entry: dict[str, Any]) -> Opponent:
    mu, sigma = entry["rating"]
    return Opponent(**{**entry, "rating": (mu, sigma)})
