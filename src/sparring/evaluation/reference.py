"""Reference pools: members of a game that never change, and ratings that are anchored to them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.resources import files

import msgspec
import numpy as np

from sparring.core import InputError
from sparring.core.confidence_intervals import Interval
from sparring.envs.catalog import reward_bounds
from sparring.evaluation.schedule import ScheduledGame
from sparring.population import PayoffTable
from sparring.population.payoff import RewardRange
from sparring.population.ratings import anchored_rating

REFERENCE = "@reference"
"""In place of a name: all members of the game's pool."""
FILE = "reference_pools.json"


class ReferencePool(msgspec.Struct, frozen=True, dict=True):
    """The reference pool of a game for two.

    Attributes:
        members: their names, ``random`` first.
        mean: what the row earns against the column, the mean over both seats.
        error: the standard errors of ``mean``; 0 where it is computed exactly.
        ratings: the members' Bradley-Terry ratings by ``mean``. A reward counts as the share of the game's
            range of rewards that it is, so a win is 1, a draw 1/2 and a loss 0 where nothing else is paid.
        adapters: the SHA-256 of the weights of those members that are trained, by name.
        differs: whether the adapters are others than those that ``mean`` is of.
    """

    env_id: str
    members: list[str]
    mean: list[list[float]]
    error: list[list[float]]
    ratings: list[float]
    adapters: dict[str, str] = {}
    differs: bool = False

    @cached_property
    def version(self) -> str:
        """A hash of what the members are and earn: results with the same version are comparable."""
        version = sha256(msgspec.json.encode(self)).hexdigest()[:12]
        return f"{version} (with other adapters than those that ship)" if self.differs else version

    def with_adapters(self, adapters: Mapping[str, str]) -> "ReferencePool":
        """Return the pool as its adapters are here, by their SHA-256."""
        if adapters == self.adapters:
            return self
        return msgspec.structs.replace(self, adapters=dict(adapters), differs=True)

    def rate(self, uid: str, games: Iterable[tuple[ScheduledGame, Sequence[float]]]) -> Interval | None:
        """Return a member's anchored rating by its games against the pool; ``None`` unless it met all of it.

        Other games do not count, and each member of the pool weighs the same. A member of the pool has the
        rating that ships.

        Args:
            uid: the member.
            games: games with the rewards of their seats.
        """
        if uid in self.members:
            rating = self.ratings[self.members.index(uid)]
            return Interval(rating, rating, rating)
        table = PayoffTable()
        for game, rewards in games:
            if uid in game.seating and {*game.seating} - {uid} <= {*self.members}:
                table.add(game.number, game.seating, rewards, None, game.deal)
        matrix = table.matrix([uid, *self.members])
        if not matrix.games_MM[0, 1:].all():
            return None
        low, high = range_of(self.env_id)
        share_N, error_N = (matrix.mean_MM[0, 1:] - low) / (high - low), matrix.error_MM[0, 1:] / (high - low)
        return anchored_rating(share_N, error_N, np.array(self.ratings))


def range_of(env_id: str) -> RewardRange:
    """Return the range of a game's rewards, which is that of losses and wins unless its library states it."""
    return reward_bounds(env_id) or (-1.0, 1.0)


@lru_cache(maxsize=1)
def reference_pools() -> dict[str, ReferencePool]:
    """Return the pools that ship, by game."""
    content = files("sparring.evaluation").joinpath(FILE).read_bytes()
    return {one.env_id: one for one in msgspec.json.decode(content, type=list[ReferencePool])}


def reference_pool(env_id: str) -> ReferencePool:
    """Return the pool of a game. Raises InputError: it has none."""
    pools = reference_pools()
    if env_id not in pools:
        raise InputError("env.id", f"{env_id} has no reference pool", f"Games with one: {', '.join(pools)}")
    return pools[env_id]
