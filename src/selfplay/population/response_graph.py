"""Who beats whom beyond noise: the members that another dominates, and the cycles."""

import numpy as np
from numpy.typing import NDArray

from selfplay.core.confidence_intervals import NORMAL_95
from selfplay.population.payoffs import PayoffMatrix

LEAST_GAMES = 20
"""A pair with fewer games says nothing beyond noise: normal intervals of so few games are too narrow."""
_ROUNDING = 1e-12


def beats(matrix: PayoffMatrix) -> NDArray[np.bool_]:
    """Return for each row and column whether the row's mean reward is above 0 beyond noise.

    That is, the lower bound of its 95% interval is above 0; for a game that is not zero-sum, of half of what
    the row earns more than the column. The standard error takes two more games into account, one at each end
    of the range of rewards (:meth:`Payoff.deviation`). A pair with fewer than 20 games has no edge.
    """
    low_MM = np.nan_to_num(matrix.advantage_MM - NORMAL_95 * matrix.advantage_error_MM, nan=-1.0)
    beats_MM: NDArray[np.bool_] = (low_MM > 0) & (matrix.games_MM >= LEAST_GAMES)
    return beats_MM


def dominated(matrix: PayoffMatrix) -> dict[str, str]:
    """Return the members that another one dominates, each with the one that does so most clearly.

    A member dominates another if its mean reward is at least as high against every member, the two
    themselves included, and against at least one of them higher beyond noise: the lower bound of the 95%
    interval of the difference is above 0, and neither has played fewer than 20 games against it. A pair that
    did not meet says nothing, so neither is dominated. What a member earns against itself is 0 in a zero-sum
    game; in another one it is not known without such games, and then the two are compared against all others.
    """
    certain_MM = matrix.games_MM >= LEAST_GAMES
    if matrix.is_zero_sum:
        np.fill_diagonal(certain_MM, True)
    knows_itself_M = certain_MM.diagonal()
    found: dict[str, str] = {}
    for row, uid in enumerate(matrix.members):
        clearest = 0.0
        for other, better in enumerate(matrix.members):
            if other == row:
                continue
            gain_M = matrix.mean_MM[other] - matrix.mean_MM[row]
            error_M = np.hypot(matrix.error_MM[other], matrix.error_MM[row])
            beyond_M = np.nan_to_num(gain_M - NORMAL_95 * error_M, nan=-1.0, neginf=-1.0)
            beyond_M[~(certain_MM[other] & certain_MM[row])] = -1.0
            compared_M = np.ones(len(gain_M), dtype=bool)
            compared_M[row], compared_M[other] = knows_itself_M[row], knows_itself_M[other]
            if (gain_M >= -_ROUNDING)[compared_M].all() and beyond_M.max() > clearest:
                found[uid], clearest = better, float(beyond_M.max())
    return found


def cycles(members: tuple[str, ...], beats_MM: NDArray[np.bool_]) -> list[tuple[set[str], list[str]]]:
    """Return the groups in which everybody beats everybody along a chain, each with its shortest cycle.

    A group is a strongly connected component of the response graph with more than one member. In a cycle,
    each member beats the next, and the last beats the first. Largest groups come first.
    """
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(members)))
    graph.add_edges_from(map(tuple, np.argwhere(beats_MM).tolist()))
    groups = sorted(
        (sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1),
        key=lambda group: (-len(group), group),
    )
    found = []
    for group in groups:
        inside = graph.subgraph(group)
        around = [networkx.shortest_path(inside, second, first) for first, second in inside.edges]
        shortest = min((_from_lowest(cycle) for cycle in around), key=lambda cycle: (len(cycle), cycle))
        found.append(({members[one] for one in group}, [members[one] for one in shortest]))
    return found


def _from_lowest(cycle: list[int]) -> list[int]:
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]
