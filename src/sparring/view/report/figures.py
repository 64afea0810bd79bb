"""The figures of a run's report, by section."""

from collections.abc import Sequence

from sparring.core.confidence_intervals import Interval
from sparring.population.standings import Standing
from sparring.view.chart_list import chart_sections
from sparring.view.charts import COLOURS
from sparring.view.population import Population
from sparring.view.report.plotly import (
    GREY,
    Json,
    PlotlyFigure,
    figure_of,
    heat_cells,
    heat_layout,
    heat_trace,
    members_figure,
)
from sparring.view.whole_run import WholeRun

MAX_RATINGS = 30
"""The largest number of models in the chart of ratings."""
MAX_MEMBERS = 40
"""The number of members in a heat map or chart; copies that joined first are left out."""
NUMBERS_IN_CELLS = 24
"""Up to this many columns, the cells show their numbers."""
_SLIDER_HEIGHT = 80
_HOVER = "%{z:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%}, %{customdata[2]:,} games)"


def figure_sections(run: WholeRun) -> dict[str, list[PlotlyFigure]]:
    """Return the figures by section."""
    sections: dict[str, list[PlotlyFigure]] = {"Strength": [], "Population": _population_figures(run)}
    for title, charts in chart_sections(run).items():
        sections.setdefault(title, []).extend(map(figure_of, charts))
    if not run.is_program and run.ratings():
        sections["Strength"].append(_ratings_figure(run))
    return {title: figures for title, figures in sections.items() if figures}


def _ratings_figure(run: WholeRun) -> PlotlyFigure:
    """Return the latest ratings of the pool's best members, with two standard deviations."""
    ratings = run.ratings()
    best = {
        one.uid: Interval(one.mu - 2 * one.sigma, one.mu, one.mu + 2 * one.sigma)
        for one in ratings[:MAX_RATINGS]
    }
    caption = "Latest mean, plus and minus two standard deviations."
    if left_out := len(ratings) - len(best):
        caption += f" Only the best {len(best)} are shown; {left_out} more are left out."
    return members_figure("Ratings of the pool", caption, "TrueSkill rating", best)


def _population_figures(run: WholeRun) -> list[PlotlyFigure]:
    newest = run.population()
    if newest is None or not newest.has_copies:
        return []
    figures = [_matrix(run.moments)]
    rated = {uid: newest.ratings[uid] for uid in newest.newest(MAX_MEMBERS) if uid in newest.ratings}
    if rated:
        caption = (
            f"Bradley-Terry after update {newest.step}, with 95% intervals; 1,000 is the mean of the "
            "members. Blue: policies in training."
        )
        axis = "Bradley-Terry rating"
        figures.append(members_figure("Ratings of the members", caption, axis, rated, newest.policies))
    return figures


def _matrix(moments: Sequence[Population]) -> PlotlyFigure:
    """Return the matrix of the newest moment, with a slider over the others and the cycles in words."""
    frozen_met = any(one.frozen_met for one in moments)
    drawn = [_cells(one, only_policies=not frozen_met) for one in moments]
    few = max(len(cells["x"]) for cells in drawn) <= NUMBERS_IN_CELLS
    trace = heat_trace(drawn[-1], (0.0, 1.0), ".0%", _HOVER, in_cells=few)
    layout = heat_layout(max(len(cells["y"]) for cells in drawn))
    if len(drawn) > 1:
        layout["height"] += _SLIDER_HEIGHT
        layout["margin"] |= {"b": _SLIDER_HEIGHT}
        layout["sliders"] = [_slider(moments, drawn)]
    lines = tuple(moments[-1].cycle_texts())
    return PlotlyFigure("Who beats whom", _caption(moments[-1]), [trace], layout, lines, True)


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
    return {
        "active": len(moments) - 1,
        "currentvalue": {"prefix": "after update "},
        "pad": {"t": 24},
        "bgcolor": GREY,
        "activebgcolor": COLOURS[0],
        "bordercolor": GREY,
        "tickcolor": GREY,
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
        "order in which they were frozen.",
        "Of the games of a policy in training, recent ones count more: each further game of a pair "
        "multiplies the weight of the earlier ones by 0.99.",
    ]
    if (left_out := len(newest.members) - MAX_MEMBERS) > 0:
        told.append(f"{left_out} older {'copy' if left_out == 1 else 'copies'} left out.")
    return " ".join(told)
