"""The measurements of the games that a collector has played, for one call to the tracker."""

from collections import defaultdict
from collections.abc import Sequence

from selfplay.collection.results import GameResult, Played
from selfplay.core import Trajectory
from selfplay.record.game_values import Values, eval_values, trajectory_values


def values_of(
    played: Sequence[Played], results: Sequence[GameResult], trajectories: Sequence[Sequence[Trajectory]]
) -> tuple[Values, dict[str, int]]:
    """Return the measurements of the games that finished, and the number of games by prefix.

    A training game counts once for each trained seat, a payoff game not at all.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)
    for one, result, of_seats in zip(played, results, trajectories, strict=True):
        if result.status != "finished" or one.job.is_payoff:
            continue
        prefix, measured = _measured(one, of_seats)
        counts[prefix] += len(measured)
        for of_seat in measured:
            for name, numbers in of_seat.items():
                values[name] += numbers
    return dict(values), {prefix: count for prefix, count in counts.items() if count}


def _measured(played: Played, trajectories: Sequence[Trajectory]) -> tuple[str, list[Values]]:
    env_id, rewards = played.job.spec.env_id, played.rollout.extras["final_rewards"]
    if not played.job.is_training:
        seat = played.job.meta.player_id
        return f"evaluation-{env_id}", [eval_values(rewards, seat, env_id)]
    return f"collection-{env_id}", [trajectory_values(one, one.pid, env_id) for one in trajectories]
