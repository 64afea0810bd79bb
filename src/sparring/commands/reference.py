"""Ratings of one model by the games against a reference pool, as a tournament with the pool gives them."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.commands.member_sampling import split_sampling
from sparring.commands.members import environment_of, find_members
from sparring.commands.tournament import GAMES, tournament_of
from sparring.commands.tournament_page import ANCHORED, score_text
from sparring.core import InputError, SparringError
from sparring.core.confidence_intervals import Interval
from sparring.core.env_id import absolute_id
from sparring.core.text import counted
from sparring.evaluation.match import Progress, SeatedGame, play_all
from sparring.evaluation.reference import REFERENCE, ReferencePool, reference_pool
from sparring.evaluation.results import failures_text
from sparring.evaluation.schedule import GameSchedule
from sparring.evaluation.venues import GameVenue
from sparring.population import PayoffTable
from sparring.run.checks import checked_seats
from sparring.view.tables import Row, Table


@dataclass(frozen=True)
class PoolRating:
    """A model's anchored rating.

    Attributes:
        model: as the user named it.
        against: its mean reward against each member of the pool, with 95% intervals.
        games: the finished games; ``failures`` counts the others by reason.
    """

    model: str
    pool: ReferencePool
    template: str
    seed: int
    temperature: float
    rating: Interval
    against: dict[str, Interval]
    games: int
    failures: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; an interval is [low, mid, high]."""
        return {
            "kind": "reference",
            "env_id": self.pool.env_id,
            "model": self.model,
            "reference_pool": self.pool.version,
            "anchored": list(self.rating),
            "against": {name: list(mean) for name, mean in self.against.items()},
            "ratings": dict(zip(self.pool.members, self.pool.ratings, strict=True)),
            "template": self.template,
            "seed": self.seed,
            "temperature": self.temperature,
            "games": self.games,
            "failures": self.failures,
        }


def rate_by_pool(
    name: str,
    env_id: str,
    games: int | None = None,
    *,
    pool_name: str = REFERENCE,
    template: str | None = None,
    num_players: int | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    progress: Progress | None = None,
) -> PoolRating:
    """Let a model play every member of the game's reference pool, and return its anchored rating.

    The games, and so the rating, are those of a tournament of the model and ``@reference``.

    Args:
        name: a run, a checkpoint, an adapter, a base model, a mixture or a model behind an API.
        games: games against each member; 200 by default.
        pool_name: ``@reference`` or ``@own-reference``.

    Raises:
        InputError: the game has no pool, or an argument is wrong.
        SparringError: no game against some member could be finished.
    """
    env_id, progress = absolute_id(env_id, Path()), progress or Progress()
    checked_seats(env_id, num_players, template)
    reference_pool(env_id)
    found = find_members([name, pool_name], env_id)
    if found[0].name != split_sampling(name)[0]:
        raise InputError("members", f"{name} may be several models", "Name one")
    env = environment_of(found, env_id, template)
    schedule = GameSchedule([one.uid for one in found], games or GAMES, None, seed)
    held = tournament_of(found, GameVenue(env, temperature), schedule, progress)
    pool = held.reference
    assert pool is not None, "all of it takes part"
    groups = [group for group, members in enumerate(schedule.groups) if 0 in members]
    waiting = [schedule.game(group, index) for index in range(schedule.games) for group in groups]

    async def play() -> list[SeatedGame | str]:
        async with held.serve(None) as client, held.venue.playing(client) as play_game:
            with progress.doing(f"playing {env.name} against {pool_name}", "games", len(waiting)) as count:
                specs = [(f"game-{one.number:010d}", held.spec(one)) for one in waiting]
                return await play_all(play_game, specs, lambda ended: count(ended, len(specs)))

    uid, ended = found[0].uid, list(zip(waiting, asyncio.run(play()), strict=True))
    finished = [(game, result.rewards) for game, result in ended if not isinstance(result, str)]
    played = sorted(finished, key=lambda one: one[0].number)
    failures = Counter(result for _, result in ended if isinstance(result, str))
    rating = pool.rate(uid, played)
    if rating is None:
        raise SparringError(
            f"some member of the pool was not met in any finished game: {failures_text(failures)}"
        )
    table = PayoffTable()
    for game, rewards in played:
        table.add(game.number, game.seating, rewards, None, game.deal)
    scores = ((one, table.score(uid, [uid, one])) for one in pool.members)
    against = {one: score for one, score in scores if score is not None}
    return PoolRating(
        name, pool, env.template, seed, temperature, rating, against, len(played), dict(failures)
    )


def rating_table(found: PoolRating) -> Table:
    """Return the rating, and the mean reward against each member of the pool."""
    rows: list[Row] = [
        [member, f"{rating:.0f}", score_text(found.against[member])]
        for member, rating in zip(found.pool.members, found.pool.ratings, strict=True)
    ]
    title = f"{found.model} in {found.pool.env_id}: {score_text(found.rating, '.0f')}"
    notes = [
        f"{counted(found.games, 'game')} against reference pool {found.pool.version}; 95% intervals.",
        ANCHORED,
    ]
    if found.failures:
        failed = counted(sum(found.failures.values()), "game")
        notes.append(f"{failed} failed and did not count: {failures_text(found.failures)}")
    return Table(("Against", "Rating", "Mean reward"), [(title, "", rows)], notes)
