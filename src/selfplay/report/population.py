"""The figures of a population: who beats whom over the updates, and the newest ratings."""

from collections.abc import Sequence

from selfplay.read.charts import COLOURS
from selfplay.read.population import Population, Standing
from selfplay.read.whole_run import WholeRun
from selfplay.report.heat_map import heat_cells, heat_layout, heat_trace
from selfplay.report.plotly import Figure, Json, plain

MAX_MEMBERS = 40
"""The number of members in a heat map or chart; copies that joined first are left out."""
NUMBERS_IN_CELLS = 24
"""Up to this many columns, the cells show their numbers."""
_GREY = "#8a94a3"
"""A colour that is visible on a light and on a dark background."""
_SLIDER_HEIGHT = 80
_HOVER = "%{z:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%}, %{customdata[2]:,} games)"


def population_figures(run: WholeRun) -> list[Figure]:
    """Return the figures; none if no policy has met a frozen copy."""
    newest = run.population()
    if newest is None or not newest.has_copies:
        return []
    figures = [_matrix(run.moments or [newest])]
    return [*figures, _ratings(newest)] if newest.ratings else figures


def _matrix(moments: Sequence[Population]) -> Figure:
    """Return the matrix of the newest moment, with a slider over the others and the cycles in words."""
    frozen_met = any({uid, other}.issubset(one.frozen) for one in moments for uid, other in one.pairs)
    drawn = [_cells(one, only_policies=not frozen_met) for one in moments]
    few = max(len(cells["x"]) for cells in drawn) <= NUMBERS_IN_CELLS
    trace = heat_trace(drawn[-1], (0.0, 1.0), ".0%", _HOVER, in_cells=few)
    layout = heat_layout(max(len(cells["y"]) for cells in drawn))
    if len(drawn) > 1:
        layout["height"] += _SLIDER_HEIGHT
        layout["margin"] |= {"b": _SLIDER_HEIGHT}
        layout["sliders"] = [_slider(moments, drawn)]
    return Figure("Who beats whom", _caption(moments[-1]), [trace], layout, _cycle_lines(moments[-1]), True)


def _cells(moment: Population, *, only_policies: bool) -> Json:
    """Return the cells of a moment; if frozen members never meet, it has rows only for policies."""
    members = moment.newest(MAX_MEMBERS)
    rows = [uid for uid in members if uid in moment.policies or not only_policies]
    found = [[moment.standing(uid, other) for other in members] for uid in rows]
    values = [[None if one is None else round(one.score.mid, 4) for one in row] for row in found]
    about = [[None if one is None else _about(one) for one in row] for row in found]
    return heat_cells(rows, members, values, about)


def _about(one: Standing) -> list[float]:
    return [round(one.score.low, 4), round(one.score.high, 4), one.games]


def _slider(moments: Sequence[Population], drawn: Sequence[Json]) -> Json:
    """Return a slider that puts the cells of a moment into the trace."""
    return {
        "active": len(moments) - 1,
        "currentvalue": {"prefix": "after update "},
        "pad": {"t": 24},
        "bgcolor": _GREY,
        "activebgcolor": COLOURS[0],
        "bordercolor": _GREY,
        "tickcolor": _GREY,
        "steps": [
            {
                "label": str(moment.step),
                "method": "restyle",
                "args": [{name: [value] for name, value in cells.items()}, [0]],
            }
            for moment, cells in zip(moments, drawn, strict=True)
        ],
    }


def _caption(newest: Population) -> str:
    told = [
        "Wins and half of the draws of the row against the column, with 95% Wilson intervals; members in the "
        "order in which they were frozen."
    ]
    if newest.fades:
        told.append(
            "Of the games of a policy in training, recent ones count more: each further game of a pair "
            "multiplies the weight of the earlier ones by 0.99."
        )
    else:
        told.append("All games since the start of the run count, though policies in training change.")
    if (left_out := len(newest.members) - MAX_MEMBERS) > 0:
        told.append(f"{left_out} older {'copy' if left_out == 1 else 'copies'} left out.")
    return " ".join(told)


def _cycle_lines(newest: Population) -> tuple[str, ...]:
    if not newest.fades:
        return ()
    found = newest.cycle_texts()
    if not found:
        return (f"After update {newest.step}: {newest.no_cycle_text()}",)
    return tuple(f"A cycle after update {newest.step}: {one}." for one in found)


def _ratings(newest: Population) -> Figure:
    """Return the newest ratings of the members, the first at the top."""
    members = [uid for uid in newest.newest(MAX_MEMBERS) if uid in newest.ratings]
    ratings = [newest.ratings[uid] for uid in members]
    trace: Json = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.mid for one in ratings],
        "y": [plain(uid) for uid in members],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.mid for one in ratings],
            "arrayminus": [one.mid - one.low for one in ratings],
            "color": _GREY,
            "width": 3,
        },
        "marker": {"color": [COLOURS[uid not in newest.policies] for uid in members], "size": 8},
        "hovertemplate": "%{y}: %{x:.0f}<extra></extra>",
    }
    layout: Json = {
        "xaxis": {"title": {"text": "Bradley-Terry rating"}},
        "yaxis": {"type": "category", "automargin": True, "autorange": "reversed"},
        "hovermode": "closest",
        "showlegend": False,
        "height": max(280, 90 + 22 * len(members)),
    }
    caption = (
        f"Bradley-Terry after update {newest.step}, with 95% intervals; 1,000 is the mean of the members. "
        "Blue: policies in training."
    )
    return Figure("Ratings of the members", caption, [trace], layout)
