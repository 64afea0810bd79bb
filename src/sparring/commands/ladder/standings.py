"""What a ladder's cells come to: each entry's score after equal games and equal minutes, rank and cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparring.commands.ladder.results import CellResult, LadderResult, Point, entries_of
from sparring.core.confidence_intervals import Interval
from sparring.evaluation.aggregates import interquartile_interval, mean_ranks


@dataclass(frozen=True)
class EntryStanding:
    """An entry over all games. What is ``None`` is not known: a game has no complete cell, or no minutes.

    Attributes:
        after_games: the interquartile mean of its scores after equal games.
        after_minutes: the same after equal minutes of playing and learning.
        rank: by the mean score of a game after equal games, in the mean over games.
        seconds: of playing and learning, of all its complete cells.
        done: its complete cells; ``cells`` are all.
        is_repeated: whether each game has several complete cells. Otherwise intervals say nothing.
    """

    entry: str
    after_games: Interval | None
    after_minutes: Interval | None
    rank: Interval | None
    games: int
    seconds: float
    done: int
    cells: int
    is_repeated: bool


@dataclass(frozen=True)
class GameLimits:
    """Where a game's entries are compared: so many games, and so many seconds; ``None`` if nobody has any."""

    games: int | None
    seconds: float | None


def limits_of(result: LadderResult) -> dict[str, GameLimits]:
    """Return where the entries of each game are compared; without games of which no cell is complete.

    Games are as many as all cells have. Seconds are what the fastest entry needs for all of its games, with
    its slowest seed.
    """
    found = {}
    for game in result.scales:
        entries = entries_of(cell for cell in result.done if cell.game == game)
        if not entries:
            continue
        last = [cell.points[-1].games for cells in entries.values() for cell in cells]
        games = min((one for one in last if one is not None), default=None)
        slowest = [max(ends) for ends in map(_ends, entries.values()) if ends]
        found[game] = GameLimits(games, min(slowest, default=None))
    return found


def _ends(cells: Sequence[CellResult]) -> list[float]:
    return [cell.points[-1].seconds for cell in cells if cell.points[-1].seconds is not None]


def after_games(cell: CellResult, limits: GameLimits) -> Point | None:
    """Return the last evaluation of a complete cell within the games of its game, or without games.

    ``None`` if its first is after more games.
    """
    most = limits.games
    within = [point for point in cell.points if most is None or point.games is None or point.games <= most]
    return within[-1] if within else None


def after_minutes(cell: CellResult, limits: GameLimits) -> Point | None:
    """Return the last evaluation of a complete cell within the seconds of its game; ``None`` without."""
    most = limits.seconds
    if most is None:
        return None
    within = [point for point in cell.points if point.seconds is not None and point.seconds <= most]
    return within[-1] if within else None


def standings_of(result: LadderResult) -> list[EntryStanding]:
    """Return the entries, the best after equal games first, and those with incomplete games last."""
    limits = limits_of(result)
    every = entries_of(result.cells)
    by_games = {entry: _by_game(result, cells, limits) for entry, cells in every.items()}
    by_minutes = {entry: _by_game(result, cells, limits, timed=True) for entry, cells in every.items()}
    whole = [entry for entry, games in by_games.items() if all(games.values())]
    smaller = result.smaller_is_better
    ranked = (
        mean_ranks([[*by_games[one].values()] for one in whole], smaller_is_better=smaller) if whole else []
    )
    ranks = dict(zip(whole, ranked, strict=True))
    found = [
        EntryStanding(
            entry,
            _interval(by_games[entry]),
            _interval(by_minutes[entry]),
            ranks.get(entry),
            sum(cell.points[-1].games or 0 for cell in cells if cell.points),
            sum(_ends([cell for cell in cells if cell.points])),
            sum(bool(cell.points) for cell in cells),
            len(cells),
            all(len(runs) > 1 for runs in by_games[entry].values()),
        )
        for entry, cells in every.items()
    ]
    sign = 1 if smaller else -1
    return sorted(found, key=lambda one: sign * one.after_games.mid if one.after_games else float("inf"))


def best_of(
    standings: Sequence[EntryStanding],
    score: Callable[[EntryStanding], Interval | None],
    *,
    smaller_is_better: bool,
) -> list[EntryStanding]:
    """Return the best entry by a score, and after it those that are tied with it; none without any score.

    Tied is whoever's interval overlaps that of the best. What was run once has no interval, so it is tied.
    """
    scores = [(found, one) for one in standings if (found := score(one)) is not None]
    if not scores:
        return []
    sign = 1 if smaller_is_better else -1
    (low, _, high), best = min(scores, key=lambda scored: sign * scored[0].mid)
    tied = [
        one
        for found, one in scores
        if one is not best
        and ((found.low <= high and low <= found.high) or not (one.is_repeated and best.is_repeated))
    ]
    return [best, *tied]


def _by_game(
    result: LadderResult,
    cells: Sequence[CellResult],
    limits: Mapping[str, GameLimits],
    *,
    timed: bool = False,
) -> dict[str, list[float]]:
    """Return the scores of an entry's complete cells by game; none where there is none."""
    found: dict[str, list[float]] = {game: [] for game in result.scales}
    for cell in cells:
        if cell.points:
            where = limits[cell.game]
            point = after_minutes(cell, where) if timed else after_games(cell, where)
            if point is not None:
                found[cell.game].append(point.value / result.scales[cell.game])
    return found


def _interval(games: Mapping[str, Sequence[float]]) -> Interval | None:
    return interquartile_interval([*games.values()]) if all(games.values()) else None
