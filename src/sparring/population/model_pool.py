"""ModelPool: all models that play, their ratings, and the choice of the next opponent."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol, get_args

from sparring.core import InputError, Opponent, SparringError, derive_seed
from sparring.core.play import SampleMode
from sparring.population.exploration import ExplorationTracker
from sparring.population.opponent_choice import Evidence, OpponentChoice, SamplingRule
from sparring.population.payoff_games import PayoffGames, anybody
from sparring.population.payoffs import PayoffTable
from sparring.population.pool_members import ENVIRONMENT_UID, FIXED, POLICY_UID, PoolMembers, checkpoint_uid
from sparring.population.ratings import PRIOR_MU, TrueSkillRatings
from sparring.population.results import MatchTable, RecentResults

# Version of ``ModelPool.state_dict``. Version 1, which had no number, kept the policy and its latest copy
# as one member; version 2 knew one policy.
STATE_FORMAT = 3


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
    the policy itself, or its latest checkpoint in a pool without the policy. :class:`OpponentChoice` has the
    sample modes.

    At most ``max_active_lora`` checkpoints of a policy are active: the latest one and those of the others
    that the mode has most use for. Ties go to the more recent one. The others are retired: they are never
    drawn again, so only their ratings and results must be kept. In mode ``lagged``, a checkpoint that is too
    recent for the range is inactive but not retired. Fixed models do not change their state.

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
        self._members = PoolMembers(self.ratings.default)
        evidence = Evidence(self.ratings, self.exploration, self.recent, self.payoffs)
        self._choice = OpponentChoice(sample_mode, self.lag_range, self.rule, self._members, evidence)
        self._draws = 0
        self._drawn: Counter[str] = Counter()

    # Members

    def add_policy(self, uid: str = POLICY_UID) -> str:
        """Register a policy in training, or the running average of one, and return its uid.

        It is rated by its games. An average is never drawn.

        Raises:
            InputError: the uid is already registered.
        """
        self._members.register(Opponent(uid, "policy", None, self.ratings.default, active=False))
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
        source = self._members.playing(policy)
        rating = self.ratings.default if source is None else self.ratings.inherited(source.rating)
        self._members.register(Opponent(uid, "checkpoint", path, rating, iteration=iteration, policy=policy))
        if source is not None:
            self.exploration.inherit(uid, source.uid)
        self._maintain_active_pool(policy)
        self._schedule_payoffs(uid)
        return uid

    def start_again(self, policy: str) -> None:
        """Rate a policy that starts again as an unknown one; its copies stay as they are."""
        self._members.model(policy).rating = self.ratings.default
        self.recent.forget([policy])

    def forget_after(self, iteration: int) -> set[str]:
        """Remove the checkpoints of later iterations, with their ratings and records; return their uids.

        The latest of the others is the latest again. Checkpoints that were retired since stay retired,
        because their adapters may be deleted.
        """
        removed = {one.uid for one in self._members.checkpoints() if (one.iteration or 0) > iteration}
        self._members.remove(removed)
        for uid in removed:
            del self._drawn[uid]
            self.exploration.forget(uid)
        self.matches.forget(removed)
        self.recent.forget(removed)
        self.payoffs.forget(removed)
        self.played.forget(removed)
        return removed

    def add_fixed(
        self,
        name: str,
        prior_mu: float = PRIOR_MU,
        *,
        kind: Literal["fixed", "script"] = "fixed",
        active: bool = True,
        policy: str = "",
        path: str = "",
    ) -> str:
        """Register an untrained model or a scripted player, and return its uid, ``fixed-{name}``.

        A script whose policy is in a file has its ``path``. If it is not ``active``, it is rated by its games
        but never drawn; evaluation opponents are like this. In mode ``fixed``, one with a ``policy`` is drawn
        only for the seats of that policy.

        Raises:
            InputError: the name is already registered, or is ``env``.
        """
        uid = f"{FIXED}{name}"
        if uid == ENVIRONMENT_UID:
            raise InputError("name", "'env' is reserved for one-player games", "Choose another name.")
        rating = (float(prior_mu), self.ratings.default[1])
        self._members.register(Opponent(uid, kind, path or name, rating, active, policy=policy))
        self._schedule_payoffs(uid)
        return uid

    def place(self, name: str, path: str) -> None:
        """Let the policy of a scripted player have another file: its run was moved."""
        self._members.model(f"{FIXED}{name}").path_or_name = path

    def current_uid(self, policy: str = POLICY_UID) -> str | None:
        """Return the uid of the latest checkpoint of a policy, or ``None`` before the first."""
        return self._members.latest_uid(policy)

    def latest_ckpt(self) -> str | None:
        """Return the same as ``current_uid`` of the policy ``default``."""
        return self.current_uid()

    def ckpt_path(self, uid: str) -> tuple[str | None, str] | None:
        """Return (path or name, kind) of a model, or ``None`` for an unknown uid."""
        model = self._members.get(uid)
        return (model.path_or_name, model.kind) if model is not None else None

    def opponents(self) -> list[Opponent]:
        """Return all models in order of registration."""
        return self._members.models()

    def active_checkpoints(self) -> list[str]:
        """Return the uids of the active checkpoints, oldest first; their adapters should stay loaded."""
        return [model.uid for model in self._members.checkpoints() if model.active]

    def kept_checkpoints(self) -> list[str]:
        """Return the uids of the checkpoints that may still be drawn (not retired), oldest first."""
        return [model.uid for model in self._members.checkpoints() if model.retired is None]

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
        me = self._members.model(uid_me)
        if rng is None:
            rng = random.Random(derive_seed(self.seed, "sample", self._draws))
            self._draws += 1
        candidates, weights = self._choice.candidates(me, policy)
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
            SparringError: there is not exactly one finite reward for each seat.
        """
        if not uids or len(uids) != len(rewards) or not all(map(math.isfinite, rewards)):
            raise SparringError(f"a game of {uids} needs one finite reward per seat, but got {rewards}")
        seats: dict[str, list[float]] = {}
        for uid, reward in zip(uids, rewards, strict=True):
            seats.setdefault(self._members.model(uid).uid, []).append(reward)
        if action_seq:
            self.exploration.add_game(action_seq, env_id, seats)
        scores = {uid: math.fsum(values) / len(values) for uid, values in seats.items()}
        if len(uids) == 1:
            scores[ENVIRONMENT_UID] = 0.0
        if len(scores) == 1:
            self._members.model(uids[0]).games += 1
            self.matches.add_self_game(uids[0])
            return
        self._update_ratings(scores)
        self._register_game(scores)

    def _update_ratings(self, scores: dict[str, float]) -> None:
        players = [self._members.player(uid) for uid in scores]
        new_ratings = self.ratings.rate([player.rating for player in players], list(scores.values()))
        for player, rating in zip(players, new_ratings, strict=True):
            player.rating = rating

    def _register_game(self, scores: dict[str, float]) -> None:
        best = max(scores.values())
        shared = list(scores.values()).count(best) > 1
        for uid, score in scores.items():
            player = self._members.player(uid)
            player.games += 1
            player.wins += score == best and not shared
            player.draws += score == best and shared
        self.matches.add_game(scores)
        for uid in scores:
            if self._members.player(uid).kind == "policy":
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
            "models": {player.uid: self._describe(player) for player in self._members.players()},
            "matches": self.matches.state_dict(),
            "exploration": exploration,
        }

    def figures(self) -> dict[str, dict[str, float]]:
        """Return by uid the rating, ``mu`` and ``sigma``, and the games for which the member was ``drawn``.

        The latter is left out of members that never were.
        """
        figures = {}
        for player in self._members.players():
            mu, sigma = player.rating
            drawn = {"drawn": self._drawn[player.uid]} if self._drawn[player.uid] else {}
            figures[player.uid] = {"mu": mu, "sigma": sigma, **drawn}
        return figures

    def unplayed_pairs(self) -> int:
        """Return the number of pairs of active members without a finished payoff game."""
        if self.sample_mode != "meta-nash":
            return 0
        return self.payoffs.unplayed_pairs(self._drawable(), self._may_sit)

    def state_dict(self) -> dict[str, Any]:
        """Return members, ratings, records, exploration windows and the draw counter as JSON-able data."""
        return {
            "format": STATE_FORMAT,
            **self._members.state_dict(),
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
                "its ratings were saved by another version of sparring",
                "Resume with the version that started the run, or start a new run.",
            )
        self._members.load_state_dict(state)
        self.matches.load_state_dict(state["matches"])
        self.payoffs.load_state_dict(state["payoffs"])
        self.played.load_state_dict(state["played"])
        self.recent.load_state_dict(state["recent"])
        self.exploration.load_state_dict(state["exploration"])
        self._draws = state["draws"]
        self._drawn = Counter(state["drawn"])

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

    def _maintain_active_pool(self, policy: str) -> None:
        """Activate the latest checkpoint of a policy and the best others; retire the rest."""
        *older, latest = self._members.checkpoints(policy)
        others = [one for one in older if one.retired is None]
        lags = self._members.lags(policy)
        worth = self._choice.worth(policy, others, lags)
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
            self.payoffs.join(uid, [other for other in drawable if other != uid], self._may_sit)

    def _may_sit(self, first: str, second: str) -> bool:
        """Return whether these members may have the seats, in this order."""
        if not self.rule.sides:
            return anybody(first, second)
        policies = [self._members.model(uid).policy for uid in (first, second)]
        return all(one in ("", side) for one, side in zip(policies, self.rule.sides, strict=True))

    def _drawable(self) -> list[str]:
        return [one.uid for one in self._members.active()]
