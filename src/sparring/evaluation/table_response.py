"""A best response in a table: what each move has earned in each position, in games against a fixed policy.

For games that list their moves. In a position that is new, the policy's own move is played, so a response
begins as the policy and deviates where games have shown something better. Where a position is known, moves
are explored by Thompson sampling. The value of a move is the mean of what followed: the reward of a game that
ended, and otherwise the value of the response's next position, that of its best move. As the other seats do
not change, the response's positions are those of a Markov decision process, which this solves for the games
that were played. It is the search against a fixed policy of Timbers et al., "Approximate exploitability",
2022, arXiv 2004.09677, whose tree is kept.

A position is what the game shows a player to move. A game that shows only the board is played by the board.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import msgspec

from sparring.core import PlaySpec, SparringError, derive_seed
from sparring.core.play import GameTurn
from sparring.evaluation.match import Agent, Play, drawn, play_all
from sparring.evaluation.results import failures_text
from sparring.evaluation.tournament_files import read_content, write_content

ROUND = 512
"""Games that are played before a response learns from them."""
LEAST_FAILED = 16
"""A round of so many games or more of which none can be finished ends the learning: the next would not be
better, and an agent may cost money."""
LEAST_GAMES = 3
"""A move that was played in fewer games is not the response's."""


class SeenPosition(msgspec.Struct):
    """What is known of a position. Lists have an entry for each of its ``moves``.

    Attributes:
        games: in how many games the move was played here.
        earned: the sum of the rewards of those that had no further position.
        next: how many went on to each of the further positions, by key.
        value: of the best move; 0 before the first game.
        met: whether a game that came here was learned from, also if the policy's answer was no move.
    """

    moves: list[str]
    games: list[int]
    earned: list[float]
    next: list[dict[str, int]]
    value: float = 0.0
    met: bool = False

    @classmethod
    def of(cls, moves: Sequence[str]) -> "SeenPosition":
        """Return a position of which nothing is known."""
        return cls([*moves], [0] * len(moves), [0.0] * len(moves), [{} for _ in moves])


class ResponseTable(msgspec.Struct):
    """The positions by key, and the count, sum and sum of squares of the games' rewards; ``failures`` counts
    the games that could not be finished, by reason."""

    positions: dict[str, SeenPosition] = {}
    games: int = 0
    failures: dict[str, int] = {}
    total: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of a reward; 1 before the second game, or if all were alike."""
        if self.games < 2:
            return 1.0
        mean = self.total / self.games
        return math.sqrt(max(self.squares / self.games - mean * mean, 0.0)) or 1.0

    def value_of(self, position: SeenPosition, move: int) -> float:
        """Return the mean of what followed a move that was played."""
        further = sum(count * self.positions[key].value for key, count in position.next[move].items())
        return (position.earned[move] + further) / position.games[move]

    def add(self, path: Sequence[tuple[str, int]], reward: float) -> None:
        """Count a game in which these moves were made in these positions, which the table has."""
        self.games += 1
        self.total += reward
        self.squares += reward * reward
        for place, (key, move) in enumerate(path):
            position = self.positions[key]
            position.games[move] += 1
            if place + 1 == len(path):
                position.earned[move] += reward
            else:
                further = path[place + 1][0]
                position.next[move][further] = position.next[move].get(further, 0) + 1
        for key, _ in reversed(path):
            position = self.positions[key]
            played = [move for move, games in enumerate(position.games) if games]
            position.value = max(self.value_of(position, move) for move in played)


@dataclass
class TableResponse:
    """The response in one seat of a game, as the stand-in of the policy's agent there.

    While it ``explores``, games tell it most. Otherwise it makes the move that has earned most, by what is
    sure of it: a standard error is taken off.
    """

    seat: int
    seed: int
    table: ResponseTable = field(default_factory=ResponseTable)
    explores: bool = False

    @property
    def ended(self) -> int:
        """The games that ended, those included that could not be finished."""
        return self.table.games + sum(self.table.failures.values())

    def move(self, spec: PlaySpec, view: str, moves: Sequence[str], turn: int) -> str | None:
        """Return the move of a game's turn; ``None`` leaves it to the policy."""
        positions, key = self.table.positions, key_of(view)
        if self.explores and key not in positions:
            positions[key] = SeenPosition.of(moves)
        position = positions.get(key)
        if position is None or position.moves != [*moves]:
            return None
        if not self.explores:
            return self._best(position)
        if not position.met:
            return None
        rng = random.Random(derive_seed(self.seed, spec.seed, turn))
        return moves[self._explored(position, rng)]

    def learn(self, turns: Sequence[GameTurn], reward: float) -> None:
        """Learn from a game that was explored, given its turns and the seat's reward."""
        path: list[tuple[str, int]] = []
        for turn in turns:
            key = key_of(turn["observation"])
            position = self.table.positions.get(key)
            if turn["pid"] != self.seat or position is None:
                continue
            position.met = True
            if turn["action"] in position.moves:
                path.append((key, position.moves.index(turn["action"])))
        self.table.add(path, reward)

    async def play_round(
        self, play: Play, name: str, policy: Sequence[Agent], games: int, on_game: Callable[[], None]
    ) -> None:
        """Learn from another round, of so many games."""
        begun = self.ended
        named = [self._game(number, name, policy) for number in range(begun, begun + games)]

        self.explores = True
        try:
            played = await play_all(play, named, lambda _: on_game())
        finally:
            self.explores = False
        reasons = Counter(game for game in played if isinstance(game, str))
        if reasons.total() >= max(games, LEAST_FAILED):
            raise SparringError(f"{name}: no game of a round could be finished: {failures_text(reasons)}")
        self.table.failures = dict(Counter(self.table.failures) + reasons)
        for game in played:
            if not isinstance(game, str):
                self.learn(game.rollout.extras["turns"], game.rewards[self.seat])

    def _game(self, number: int, name: str, policy: Sequence[Agent]) -> tuple[str, PlaySpec]:
        seed = derive_seed(self.seed, "explored", self.seat, number)
        agents = [drawn(one, seed, seat) for seat, one in enumerate(policy)]
        agents[self.seat] = replace(agents[self.seat], stand_in=True)
        return f"explored-{self.seat}-{number:08d}", PlaySpec(name, len(agents), tuple(agents), seed)

    def _explored(self, position: SeenPosition, rng: random.Random) -> int:
        """Return a move that was not played yet, or else the best of values drawn around the known ones."""
        untried = [move for move, games in enumerate(position.games) if not games]
        if untried:
            return rng.choice(untried)
        spread = self.table.deviation
        drawn = [
            self.table.value_of(position, move) + spread / math.sqrt(games) * rng.gauss(0.0, 1.0)
            for move, games in enumerate(position.games)
        ]
        return drawn.index(max(drawn))

    def _best(self, position: SeenPosition) -> str | None:
        """Return the best known move; ``None`` if none was played often enough."""
        spread = self.table.deviation
        sure = {
            self.table.value_of(position, move) - spread / math.sqrt(games): move
            for move, games in enumerate(position.games)
            if games >= LEAST_GAMES
        }
        return position.moves[sure[max(sure)]] if sure else None

    def save(self, path: Path) -> None:
        """Write the table."""
        write_content(path, self.table)

    def load(self, path: Path) -> None:
        """Go on from a table that was saved, if one was; raise DamagedState if it was changed since."""
        fix = "Delete it; its games are played again"
        self.table = read_content(path, ResponseTable, fix) or self.table


def key_of(view: str) -> str:
    """Return the key of a position that a player sees so."""
    return blake2b(view.encode(), digest_size=12).hexdigest()


class TableResponses:
    """The responses in all seats of a game, as its stand-in. They learn in turns, ``round`` games each."""

    def __init__(self, seats: int, seed: int, round: int = ROUND) -> None:
        self.seats = [TableResponse(seat, seed) for seat in range(seats)]
        self.round = round

    @property
    def games(self) -> int:
        """The games that were learned from, in all seats."""
        return sum(one.table.games for one in self.seats)

    @property
    def ended(self) -> int:
        """The games that ended in all seats."""
        return sum(one.ended for one in self.seats)

    @property
    def failures(self) -> Counter[str]:
        """The games that could not be finished, in all seats, by reason."""
        return sum((Counter(one.table.failures) for one in self.seats), Counter[str]())

    @property
    def positions(self) -> int:
        """The positions that are known, in all seats."""
        return sum(len(one.table.positions) for one in self.seats)

    def __call__(self, spec: PlaySpec, seat: int, view: str, moves: Sequence[str], turn: int) -> str | None:
        """Return the move of the seat's response."""
        return self.seats[seat].move(spec, view, moves, turn)

    async def learn(
        self,
        play: Play,
        name: str,
        policy: Sequence[Agent],
        games: int,
        on_game: Callable[[int, int], None],
    ) -> None:
        """Let each response learn until this many games have ended in its seat.

        Games of a round are learned in order, so the order in which they end does not matter.

        Args:
            play: plays a game with this stand-in.
            name: of the game.
            policy: who has each seat.
            on_game: called with the games that ended in all seats, and how many there will be.

        Raises:
            SparringError: no game of a round could be finished.
        """
        ended, total = self.ended, games * len(self.seats)

        def count() -> None:
            nonlocal ended
            ended += 1
            on_game(ended, total)

        while waiting := [one for one in self.seats if one.ended < games]:
            for response in waiting:
                size = min(games - response.ended, self.round)
                await response.play_round(play, name, policy, size, count)
