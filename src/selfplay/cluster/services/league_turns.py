"""What a league does between two updates of a run on a cluster, as part of the pool's state."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from selfplay.population.league import League


@dataclass(frozen=True)
class LeagueTurn:
    """What a league did after an update.

    Attributes:
        step: the update.
        again: the exploiters that start again.
        figures: the league's figures, before the first game of the next update was drawn.
    """

    step: int
    again: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def freeze_exploiters(league: League, step: int, paths: Mapping[str, str | None]) -> LeagueTurn:
    """Freeze the players that are due after update ``step``, whose games must all be rated.

    Args:
        league: the league.
        step: the update.
        paths: the adapter that training has produced by now, by player.
    """
    due = league.due(step)
    for player in due:
        league.pool.add_checkpoint(paths[player], step, player)
    return LeagueTurn(step, league.start_again(due, step), league.figures())
