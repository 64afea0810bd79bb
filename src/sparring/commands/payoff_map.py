"""A payoff matrix as a heat map, for the pages of tournaments and of PSRO."""

import math
from collections.abc import Sequence

from sparring.population.payoffs import PayoffMatrix
from sparring.view.report.plotly import PlotlyFigure, heat_cells, heat_layout, heat_trace

_NUMBERS_IN_CELLS = 14
"""Up to this many members, the cells show their numbers."""


def payoff_map(matrix: PayoffMatrix, order: Sequence[int], caption: str) -> PlotlyFigure:
    """Return the mean rewards of rows against columns, with errors and games where the mouse is.

    Args:
        matrix: the payoffs.
        order: the members as places in the matrix, the first one at the top.
        caption: what stands below the title.
    """
    means = [
        [_known(matrix.mean_MM[row, column]) if row != column else None for column in order] for row in order
    ]
    largest = max((abs(value) for row in means for value in row if value is not None), default=1.0) or 1.0
    about = [[_about(matrix, row, column) for column in order] for row in order]
    names = [matrix.members[row] for row in order]
    cells = heat_cells(names, names, means, about)
    few = len(names) <= _NUMBERS_IN_CELLS
    trace = heat_trace(cells, (-largest, largest), "+.2f", "%{customdata}", in_cells=few)
    return PlotlyFigure("Payoffs", caption, [trace], heat_layout(len(order)))


def _about(matrix: PayoffMatrix, row: int, column: int) -> str:
    error = matrix.error_MM[row, column]
    spread = f", standard error {error:.3f}" if math.isfinite(error) else ""
    return f"{matrix.mean_MM[row, column]:+.3f}{spread}, {matrix.games_MM[row, column]} games"


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
