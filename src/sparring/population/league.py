"""League: who learns next and against whom, and when players are frozen, as in AlphaStar.

The rules and constants are those of AlphaStar (Vinyals et al., 2019) as its published pseudocode states them.
Each game has one player that learns, in one of the seats that it holds; ``at_once`` says how many players
take turns at it in an update. Its opponents depend on its role:

- ``main``: in 35% of its games itself or another main player (self-play), in 15% a copy that it has
  *forgotten* how to beat (:func:`forgotten`; self-play if there is none), in the rest any frozen member, by
  prioritised fictitious self-play (PFSP) with ``hard`` weights.
- ``main_exploiter``: a main player, while it wins more than ``HOPELESS`` of its games against it or it is
  not rated against it; otherwise a copy of that main player, by PFSP with ``variance`` weights.
- ``league_exploiter``: any frozen member, by PFSP with ``linear`` weights.

In a game for more than two, the share of the main player is drawn once a game. Each other seat then has a
draw of its own, among the members that may hold it. A player learns in every seat in which it meets itself.

An exploiter is frozen when it beats all of its targets, or after a number of updates. A main exploiter then
starts again from where it began, a league exploiter with probability ``RESET``. A main player is frozen at
regular intervals and, if the rule has a win rate for it, when it beats all active copies of itself. A member
beats another if it earns more in the same game, whoever else plays. A player
of one seat has none of its own copies among its targets, so the newest does not hold it back: it is
not frozen for what it wins before half of the shorter interval has gone by since its last copy.

Differences from the pseudocode: win rates are smoothed, and opponents that nobody has rated are not taken for
even ones (see :class:`RecentResults` and :func:`pfsp_weights`). A main player need not beat all frozen
members to be frozen. A main player that loses to another main player does not turn to its copies.
"""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, permutations
from typing import Any, Literal

from sparring.config.league import LeagueSettings
from sparring.core import Opponent, derive_seed
from sparring.core.play import PfspForm, Seat
from sparring.population.model_pool import ModelPool
from sparring.population.opponent_choice import pfsp_weights

HOPELESS = 0.1
"""A main exploiter that wins no more than this against a main player meets its copies."""
EXPLOITED = 0.3
"""A main player that wins less than this against a copy of a main exploiter has a weakness to mend."""
REMEMBERED = 0.7
"""A main player that wins at least this much against all older copies has forgotten none."""
SNAPSHOT_GAMES = 100
"""The games with each target after which a player may be frozen: as many as a win rate remembers."""
RESET = 0.25
"""The probability that a league exploiter that is frozen starts again."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over any stretch of them."""

Reason = Literal["self_play", "forgotten", "pfsp", "main"]
"""Why an opponent was drawn: by which of the rules above; ``main`` is a main exploiter's target."""
WinRates = Mapping[str, float | None]
"""Win rates by uid, oldest copy first; ``None`` for a member that is not rated."""


@dataclass(frozen=True)
class Pairing:
    """A game of the league: ``player`` learns in ``seat``, and ``others`` have the other seats.

    Where they are the player itself, it learns as well.
    """

    player: str
    seat: Seat
    others: Mapping[Seat, str]
    reason: Reason

    @property
    def uids(self) -> dict[Seat, str]:
        """The member in each seat."""
        return {self.seat: self.player, **self.others}


@dataclass(eq=False, repr=False)
class League:
    """Draws the games of a league; see the module.

    Args:
        settings: the players with their seats (:meth:`LeagueSettings.seated`), and the shares of their games.
        pool: has every player as a policy and the copies of all players; its recent results are the win
            rates.
        seed: the run's seed.
        add_every: updates between the copies of a main player; see ``population.add_every``.
        seats: all seats of the games, or the roles of a program that are trained.
        draws_per_turn: draws after which other players have their turn: the games of an update.
    """

    settings: LeagueSettings
    pool: ModelPool
    seed: int
    add_every: int = 10
    seats: Sequence[Seat] = (0, 1)
    draws_per_turn: int = 1

    def __post_init__(self) -> None:
        self.players = self.settings.players
        self._turn_ends = list(accumulate(one.share for one in self.players.values()))
        self._first_turn = derive_seed(self.seed, "league turns") % 1000
        self.held = {name: one.seats for name, one in self.players.items()}
        self.games: Counter[str] = Counter()
        """The games so far by ``PLAYER/REASON``."""

    # Who plays

    def draw(self, rng: random.Random, number: int, seats: Sequence[Seat] | None = None) -> Pairing:
        """Return the game of a draw's number: who learns, by shares; its seat, uniformly; its opponents, by
        its role.

        ``seats`` are those of the game, where games have different ones. If none of them has a player whose
        turn it is, any player of the game may learn.
        """
        seats = self.seats if seats is None else seats
        held = {name: [seat for seat in own if seat in seats] for name, own in self.held.items()}
        in_turn = [name for name in self.learning(number // self.draws_per_turn) if held[name]]
        players = in_turn or [name for name, own in held.items() if own]
        shares = None if in_turn else [self.players[name].share for name in players]
        player = rng.choices(players, shares)[0]
        seat = rng.choice(held[player])
        toss = rng.random() if self.players[player].role == "main" else 1.0
        drawn = {one: self._drawn(player, one, toss, rng) for one in seats if one != seat}
        reasons = [reason for _, reason in drawn.values()]
        reason = "forgotten" if "forgotten" in reasons else reasons[0]
        return Pairing(player, seat, {one: uid for one, (uid, _) in drawn.items()}, reason)

    def learning(self, turn: int) -> list[str]:
        """Return the ``at_once`` players that learn in a turn, counted from 0, each with the same chance.

        A player with a large share may be there twice. In any number of turns, each player has its share of
        them, but for one or two. Without ``at_once``, it is nobody's turn.
        """
        names, at_once = list(self.players), self.settings.at_once or 0
        ends, start = self._turn_ends, self._first_turn + turn * at_once
        points = [(start + place) * GOLDEN % 1 * ends[-1] for place in range(at_once)]
        return [names[bisect(ends, point, hi=len(ends) - 1)] for point in points]

    def _drawn(self, player: str, seat: Seat, toss: float, rng: random.Random) -> tuple[str, Reason]:
        """Draw who has another seat of a game in which ``player`` learns; ``toss`` decides for a main one."""
        match self.players[player].role:
            case "main":
                return self._for_main(player, seat, toss, rng)
            case "main_exploiter":
                return self._for_main_exploiter(player, seat, rng)
            case "league_exploiter":
                return self._by_pfsp(self._frozen(seat), player, "linear", rng), "pfsp"

    def count(self, player: str, reason: str) -> None:
        """Count a game that was drawn."""
        self.games[f"{player}/{reason}"] += 1

    def _for_main(self, player: str, seat: Seat, toss: float, rng: random.Random) -> tuple[str, Reason]:
        if toss >= self.settings.self_play + self.settings.forgotten:
            return self._by_pfsp(self._frozen(seat), player, "hard", rng), "pfsp"
        other = self._main(seat, rng)
        if toss >= self.settings.self_play:
            exploiters = [name for name, one in self.players.items() if one.role == "main_exploiter"]
            found = forgotten(
                self._win_rates(player, self._frozen(seat, exploiters)),
                self._win_rates(player, self._frozen(seat, [other])),
            )
            if found:
                return rng.choices(list(found), pfsp_weights(list(found.values()), "hard"))[0], "forgotten"
        return other, "self_play"

    def _for_main_exploiter(self, player: str, seat: Seat, rng: random.Random) -> tuple[str, Reason]:
        main = self._main(seat, rng)
        rate = self.pool.recent.win_rate([player], main)
        if rate is None or rate > HOPELESS:
            return main, "main"
        return self._by_pfsp(self._frozen(seat, [main]), player, "variance", rng), "pfsp"

    def _main(self, seat: Seat, rng: random.Random) -> str:
        return rng.choice(self._mains(seat))

    def _mains(self, seat: Seat) -> list[str]:
        return [name for name in self.settings.mains if seat in self.held[name]]

    def _by_pfsp(self, members: Sequence[Opponent], player: str, form: PfspForm, rng: random.Random) -> str:
        rates = self._win_rates(player, members)
        return rng.choices(list(rates), pfsp_weights(list(rates.values()), form))[0]

    def _win_rates(self, player: str, members: Sequence[Opponent]) -> WinRates:
        return {one.uid: self.pool.recent.win_rate([player], one.uid) for one in members}

    def _frozen(self, seat: Seat, policies: Sequence[str] | None = None) -> list[Opponent]:
        """Return the active members that may have a seat, of all policies or of these; oldest first.

        Fixed opponents are of no policy, and have any seat.
        """
        return [
            one
            for one in self.pool.opponents()
            if one.active
            and (policies is None or one.policy in policies)
            and (not one.policy or seat in self.held[one.policy])
        ]

    # When players are frozen by what they win

    def due(self, update: int) -> list[str]:
        """Return the players that are to be frozen after an update, besides main players at their intervals.

        This depends only on the copies and the results between players and copies, which evaluations do not
        change. So it is the same when a run is resumed, and empty once the copies are made.
        """
        return [player for player in self.players if self._is_due(player, update)]

    def starts_again(self, player: str, update: int) -> bool:
        """Return whether a player that was frozen after an update starts again from where it began."""
        if self.players[player].role != "league_exploiter":
            return self.players[player].role == "main_exploiter"
        return random.Random(derive_seed(self.seed, "league reset", player, update)).random() < RESET

    def start_again(self, frozen: Sequence[str], update: int) -> list[str]:
        """Rate those exploiters that start again, of those that were ``frozen``, as unknown; return them."""
        again = [player for player in frozen if self.starts_again(player, update)]
        for player in again:
            self.pool.start_again(player)
        return again

    def rivals(self, frozen: Sequence[str], update: int) -> list[list[str]]:
        """Return the players that evolution compares after an update, in groups, without those that start
        again."""
        evolution = self.settings.evolution
        if evolution is None or update % evolution.every:
            return []
        again = {player for player in frozen if self.starts_again(player, update)}
        groups = ([player for player in group if player not in again] for group in self.settings.rivals)
        return [group for group in groups if len(group) > 1]

    def _is_due(self, player: str, update: int) -> bool:
        last = max((one.iteration or 0 for one in self._copies([player])), default=0)
        settings = self.settings
        rate = settings.snapshot_win_rate
        if player in settings.mains:
            if settings.main_snapshot_win_rate is None:
                return False
            rate = settings.main_snapshot_win_rate
        elif update - last >= settings.snapshot_updates:
            return True
        least = min(self.add_every, settings.snapshot_updates) / 2
        if update == last or (len(self.held[player]) == 1 and update - last < least):
            return False
        return all(self._beats(player, uid, rate) for uid in self.targets(player))

    def targets(self, player: str) -> list[str]:
        """Return whom a player is to beat before it is frozen, of those that it may meet.

        For a main exploiter these are the main players; for a league exploiter all active copies; for a main
        player its own active copies or, if it plays one seat, those of the main players of the others.
        """
        role, held = self.players[player].role, self.held[player]
        others = [seat for seat in self.seats if held != [seat]]
        mains = list(dict.fromkeys(name for seat in others for name in self._mains(seat)))
        if role == "main_exploiter":
            return mains
        if role == "main":
            policies = [player] if player in mains else mains
        else:
            policies = [name for name, own in self.held.items() if {*others} & {*own}]
        copies = self._copies(policies)
        return [one.uid for one in copies if one.active]

    def _copies(self, policies: Sequence[str]) -> list[Opponent]:
        return [one for one in self.pool.opponents() if one.kind == "checkpoint" and one.policy in policies]

    def _beats(self, player: str, uid: str, least: float) -> bool:
        rate = self.pool.recent.win_rate([player], uid)
        met = self.pool.recent.met(player, uid)
        return rate is not None and met >= SNAPSHOT_GAMES and rate > least

    # Reports and state

    def figures(self) -> dict[str, float]:
        """Return the games so far as ``PLAYER/games/REASON``, and ``PLAYER/win_rate/PLAYER`` where known.

        The latter are of recent games between two players as they are now.
        """
        figures = {}
        for key, games in sorted(self.games.items()):
            player, _, reason = key.partition("/")
            figures[f"{player}/games/{reason}"] = float(games)
        for player, other in permutations(self.players, 2):
            rate = self.pool.recent.win_rate([player], other)
            if rate is not None:
                figures[f"{player}/win_rate/{other}"] = rate
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of games as JSON-able data; the rest is the pool's state."""
        return dict(self.games)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        self.games = Counter(state)


BuildLeague = Callable[[ModelPool], League | None]
"""Builds the league of a run over its pool, if the run has one."""


def forgotten(exploiters: WinRates, past: WinRates) -> WinRates:
    """Return the copies that a main player has forgotten how to beat, with its win rates; empty if none.

    They are the copies of main exploiters, if it wins less than ``EXPLOITED`` against one of them. Otherwise
    they are copies of a main player, if it wins less than ``REMEMBERED`` against one of them; the latest
    copies are left out, back to the first that it beats more than the one before: as long as older copies are
    beaten more, nothing is forgotten there. Copies that are not rated do not count.
    """
    rated = {uid: rate for uid, rate in exploiters.items() if rate is not None}
    if rated and min(rated.values()) < EXPLOITED:
        return rated
    older = _without_rising_past({uid: rate for uid, rate in past.items() if rate is not None})
    return older if older and min(older.values()) < REMEMBERED else {}


def _without_rising_past(rates: dict[str, float]) -> dict[str, float]:
    uids, values = list(rates), list(rates.values())
    for place in range(len(uids) - 1, 0, -1):
        if values[place - 1] < values[place]:
            return {uid: rates[uid] for uid in uids[: place + 1]}
    return {}
