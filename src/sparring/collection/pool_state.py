"""PoolState: the members, ratings, weights and games of a pool, as the entries of its journal make them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, assert_never

import msgspec

from sparring.collection.games_in_flight import GamesInFlight, PlaySettings
from sparring.collection.journal import JournalEntry
from sparring.collection.results import GameJob, GameResult
from sparring.collection.scheduler import GameScheduler
from sparring.collection.serialization import Packed, plain
from sparring.core.adapters import BASE, AdapterRef, Weights
from sparring.population import PayoffTable
from sparring.population.evolution import Child, Selection
from sparring.population.league import League
from sparring.population.model_pool import ModelPool
from sparring.population.pool_members import iteration_of
from sparring.population.ratings import PRIOR_MU


class AddCheckpoint(JournalEntry, frozen=True):
    """A checkpoint of a policy joins the pool."""

    path: str | None
    iteration: int
    policy: str


class AddFixed(JournalEntry, frozen=True):
    """A model that is not trained joins the pool."""

    name: str
    prior_mu: float = PRIOR_MU
    kind: Literal["fixed", "script"] = "fixed"
    active: bool = True
    policy: str = ""
    path: str = ""


class AddPolicy(JournalEntry, frozen=True):
    """A policy's running average joins the pool."""

    uid: str


class RateMatch(JournalEntry, frozen=True):
    """Games of an evaluation, ``size`` a match, are rated: (uid, other uid, reward, environment) each."""

    step: int
    size: int
    games: list[tuple[str, str, float, str]]


class RateHeldGames(JournalEntry, frozen=True):
    """All games of an update have ended, so they are rated."""


class FreezePlayers(JournalEntry, frozen=True):
    """Players of a league join the pool after an update, with these adapters, and some are replaced."""

    step: int
    paths: dict[str, str | None]
    selection: Selection = Selection()


class Publish(JournalEntry, frozen=True):
    """The policies have new weights."""

    weights: Weights
    consumed: int


class ForgetAfter(JournalEntry, frozen=True):
    """The learner has lost the updates after this one."""

    step: int


class Register(JournalEntry, frozen=True):
    """A collector starts, or starts again as another ``incarnation``."""

    collector: str
    settings: PlaySettings
    incarnation: str = ""


class HandOut(JournalEntry, frozen=True):
    """Games go to a collector, at most this many of each kind, as the answer to its request ``number``."""

    collector: str
    number: int
    training: int
    evaluation: int


class Finish(JournalEntry, frozen=True):
    """Games have ended."""

    results: list[GameResult]


class Stop(JournalEntry, frozen=True):
    """Play ends."""


class Resume(JournalEntry, frozen=True):
    """Play goes on after a stop."""


PoolEntry = (
    AddCheckpoint
    | AddFixed
    | AddPolicy
    | RateMatch
    | RateHeldGames
    | FreezePlayers
    | Publish
    | ForgetAfter
    | Register
    | HandOut
    | Finish
    | Stop
    | Resume
)


@dataclass(frozen=True)
class Jobs(Packed):
    """Games to play, the newest weights (also for games in flight), and the adapter of each other name.

    ``stopped``: play has ended, and games in flight are to be abandoned.
    """

    jobs: list[GameJob]
    weights: Weights
    adapters: dict[str, AdapterRef] = field(default_factory=dict)
    stopped: bool = False


@dataclass(frozen=True)
class LeagueTurn:
    """What a league did after an update: the exploiters that start ``again``, the ``children`` that take the
    place of players, and its figures."""

    step: int
    again: list[str] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


class PoolState:
    """The same entries give the same state.

    Attributes:
        ledger: the games that were handed out.
        queue: the games to come; ``None`` until a collector has registered.
        weights: the newest weights.
        last_answer: the last answer to each collector, with the number of its request.
        incarnations: the newest incarnation of each collector, which alone gets games.
        turn: what the league did last.
    """

    def __init__(self, pool: ModelPool, policies: Sequence[str], league: League | None = None) -> None:
        self.pool = pool
        self.league = league
        self.ledger = GamesInFlight()
        self.queue: GameScheduler | None = None
        self.weights = Weights.untrained(policies)
        self.stopped = False
        self.last_answer: dict[str, tuple[int, Jobs]] = {}
        self.incarnations: dict[str, str] = {}
        self.turn = LeagueTurn(0)

    def apply(self, entry: PoolEntry) -> Any:
        """Change the state as an entry says, and return the answer to who asked for the change."""
        match entry:
            case AddCheckpoint(path, iteration, policy):
                self._rate_held_games()
                return self.pool.add_checkpoint(path, iteration, policy)
            case AddFixed(name, prior_mu, kind, active, policy, path):
                return self.pool.add_fixed(name, prior_mu, kind=kind, active=active, policy=policy, path=path)
            case AddPolicy(uid):
                return self.pool.add_policy(uid)
            case RateMatch(step, size, games):
                return self._rate_match(step, size, games)
            case RateHeldGames():
                self._rate_held_games()
            case FreezePlayers(step, paths, selection):
                self._freeze_players(step, paths, selection)
            case Publish(weights, consumed):
                self._rate_held_games()
                self.weights, self.ledger.consumed = weights, consumed
            case ForgetAfter(step):
                return self._forget_after(step)
            case Register(collector, settings, incarnation):
                self.incarnations[collector] = incarnation
                return self._register(collector, settings)
            case HandOut(collector, number, training, evaluation):
                return self._hand_out(collector, number, training, evaluation)
            case Finish(results):
                return self._finish(results)
            case Stop():
                self.stopped = True
            case Resume():
                self.stopped = False
            case _:
                assert_never(entry)
        return None

    def knows(self, uid: str, path_or_name: str | None, kind: str) -> bool:
        """Return whether exactly this model is a member."""
        return self.pool.ckpt_path(uid) == (path_or_name, kind)

    def has_games(self, training: int, evaluation: int) -> bool:
        """Return whether a request for at most this many games of each kind would get one."""
        return self.queue is not None and self.queue.has_any(training, evaluation, self.weights.step)

    def answered(self, collector: str, number: int) -> Jobs | None:
        """Return the last answer to a collector if it was to its request ``number``."""
        last, answer = self.last_answer.get(collector, (None, None))
        return answer if last == number else None

    @property
    def in_lockstep(self) -> bool:
        """Whether all games of an update end before its successor's begin."""
        return self.queue is not None and self.queue.settings.in_lockstep

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-able data, without :meth:`games`."""
        return {
            "pool": self.pool.state_dict(),
            "ledger": replace(self.ledger, in_flight={}, again=[], unrated=[]),
            "settings": None if self.queue is None else self.queue.settings,
            "scheduler": None if self.queue is None else self.queue.state_dict(),
            "weights": self.weights,
            "last_answer": self.last_answer,
            "incarnations": self.incarnations,
            "stopped": self.stopped,
            "league": None if self.league is None else self.league.state_dict(),
            "turn": self.turn,
        }

    def played(self) -> PayoffTable:
        """Return the payoffs of every game that has ended, also of those that are not rated yet."""
        table = PayoffTable()
        table.load_state_dict(self.pool.played.state_dict())
        for job, result in sorted(self.ledger.unrated, key=_place):
            table.append(job.uids, result.rewards, result.invalid_seat)
        return table

    def games(self) -> dict[str, list[Any]]:
        """Return the games that have not ended or are not rated."""
        ledger = self.ledger
        return {
            "in_flight": list(ledger.in_flight.items()),
            "again": list(ledger.again),
            "unrated": list(ledger.unrated),
        }

    def whole_state(self) -> dict[str, Any]:
        """Return the state with its games as plain JSON-able data, without answers that may be repeated."""
        state = self.state_dict() | self.games() | {"last_answer": {}}
        plain_state: dict[str, Any] = msgspec.to_builtins(state, enc_hook=plain)
        return plain_state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` with the :meth:`games` in it, as read from JSON."""
        self.pool.load_state_dict(state["pool"])
        games = {"again": state["again"], "unrated": state["unrated"]}
        games["in_flight"] = dict(state["in_flight"])
        self.ledger = msgspec.convert(state["ledger"] | games, GamesInFlight)
        if state["settings"] is not None:
            settings = msgspec.convert(state["settings"], PlaySettings)
            self.queue = GameScheduler(self.pool, settings, self.ledger, self.league)
            self.queue.load_state_dict(state["scheduler"])
        self.weights = msgspec.convert(state["weights"], Weights)
        self.last_answer = msgspec.convert(state["last_answer"], dict[str, tuple[int, Jobs]])
        self.incarnations = dict(state.get("incarnations", {}))
        self.stopped = state["stopped"]
        if self.league is not None:
            self.league.load_state_dict(state["league"])
            self.turn = msgspec.convert(state["turn"], LeagueTurn)

    def _freeze_players(self, step: int, paths: dict[str, str | None], selection: Selection) -> None:
        assert self.league is not None
        for player, path in paths.items():
            self.pool.add_checkpoint(path, step, player)
        again = self.league.start_again(list(paths), step)
        for child in selection.children:
            self.pool.start_again(child.player)
        figures = self.league.figures() | selection.figures
        self.turn = LeagueTurn(step, again, selection.children, figures)

    def _rate_match(self, step: int, size: int, games: list[tuple[str, str, float, str]]) -> None:
        self.ledger.matches.add((step, size))
        for uid_me, uid_opp, reward, env_id in games:
            self.pool.push_game_outcome(uid_me, uid_opp, reward, [], env_id)

    def _forget_after(self, step: int) -> None:
        self._rate_held_games()
        self._rate_held_games(payoffs=True)
        removed = self.pool.forget_after(step)
        self.ledger.matches = {match for match in self.ledger.matches if match[0] <= step}
        if self.turn.step > step:
            self.turn = LeagueTurn(step)
        if self.queue is not None:
            self.queue.replace_opponents(removed)

    def _register(self, collector: str, settings: PlaySettings) -> int:
        self.queue = self.queue or GameScheduler(self.pool, settings, self.ledger, self.league)
        self.last_answer.pop(collector, None)
        return self.ledger.take_back(collector)

    def _hand_out(self, collector: str, number: int, training: int, evaluation: int) -> Jobs:
        assert self.queue is not None
        jobs = self.queue.next_jobs(collector, training, evaluation, self.weights.step)
        answer = Jobs(jobs, self.weights, self._adapters_of(jobs))
        self.last_answer[collector] = (number, answer)
        return answer

    def _adapters_of(self, jobs: list[GameJob]) -> dict[str, AdapterRef]:
        adapters = {}
        for uid in {uid for job in jobs for uid in job.uids}:
            path, kind = self.pool.ckpt_path(uid) or (None, "")
            if kind == "checkpoint":
                adapters[uid if path else BASE] = AdapterRef(uid, max(0, iteration_of(uid)), path)
        return adapters

    def _finish(self, results: list[GameResult]) -> None:
        payoffs = False
        for result in results:
            job = self.ledger.end(result)
            if job is None:
                continue
            payoffs |= job.is_payoff
            if result.status == "failed":
                self.pool.played.append_failure(job.uids)
                if job.is_payoff:
                    self.pool.payoffs.add_failure(job.meta.index, job.uids)
            if result.status != "finished":
                continue
            if job.is_payoff or self.in_lockstep:
                self.ledger.unrated.append((job, result))
            else:
                self._rate(job, result)
        if payoffs and not (self.pool.payoffs.waiting or self.ledger.going_on("payoff_")):
            self._rate_held_games(payoffs=True)

    def _rate_held_games(self, *, payoffs: bool = False) -> None:
        """Rate the payoff games that are held, or the others, in order of their numbers, once all have ended.

        Draws from the pool and ratings then do not depend on which game ended first.
        """
        held = [one for one in self.ledger.unrated if one[0].is_payoff == payoffs]
        self.ledger.unrated = [one for one in self.ledger.unrated if one[0].is_payoff != payoffs]
        for job, result in sorted(held, key=_place):
            self._rate(job, result)

    def _rate(self, job: GameJob, result: GameResult) -> None:
        if self.queue is not None:
            self.queue.count_result(job, result.rewards)
        self.pool.played.append(job.uids, result.rewards, result.invalid_seat)
        if job.is_payoff:
            self.pool.payoffs.add(job.meta.index, job.uids, result.rewards, result.invalid_seat)
        self.pool.push_result(list(job.uids), result.rewards, job.spec.env_id, result.action_seq)


def _place(one: tuple[GameJob, GameResult]) -> tuple[int, int]:
    job, _ = one
    return not job.is_training, job.meta.index
