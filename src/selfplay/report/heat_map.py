"""Heat maps of members against members, as Plotly's traces."""

from collections.abc import Sequence
from typing import Any

from selfplay.report.plotly import Json, plain

SCALE = [[0, "#d9722e"], [0.5, "#f4f4f4"], [1, "#3f7fe0"]]
"""From the worst to the best of the row, on a light and on a dark background."""
_ROW = 34
_LEAST_HEIGHT = 180


def heat_cells(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    about: Sequence[Sequence[Any]],
) -> Json:
    """Return the part of a trace that says who its rows and columns are, each value and its hover data."""
    return {"x": list(map(plain, columns)), "y": list(map(plain, rows)), "z": values, "customdata": about}


def heat_trace(cells: Json, limits: tuple[float, float], number: str, hover: str, *, in_cells: bool) -> Json:
    """Return the trace of a heat map.

    Args:
        cells: see :func:`heat_cells`.
        limits: the values with the strongest colours.
        number: the format of a number.
        hover: the text of a cell, as Plotly's template after the names of its row and column.
        in_cells: whether the cells show their numbers.
    """
    trace = {
        "type": "heatmap",
        **cells,
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": SCALE,
        "colorbar": {"tickformat": number},
        "hovertemplate": f"%{{y}} against %{{x}}: {hover}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }
    if in_cells:
        trace |= {"texttemplate": f"%{{z:{number}}}", "textfont": {"color": "#1c2430"}}
    return trace


def heat_layout(rows: int) -> Json:
    """Return the layout of a heat map with so many rows, the first one at the top."""
    return {
        "xaxis": {"title": {"text": "against"}, "type": "category", "side": "top", "showgrid": False},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
        "hovermode": "closest",
        "margin": {"l": 48, "r": 12, "t": 60, "b": 10},
        "height": max(_LEAST_HEIGHT, 110 + _ROW * rows),
    }
