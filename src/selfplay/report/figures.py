"""The figures of a run's report, by section."""

from dataclasses import replace

from selfplay.read.chart_list import chart_sections
from selfplay.read.charts import COLOURS
from selfplay.read.whole_run import WholeRun
from selfplay.report.plotly import FEW_STEPS, Figure, Json, figure_of, plain
from selfplay.report.population import population_figures

MAX_RATINGS = 30
"""The largest number of models in the chart of ratings."""


def figure_sections(run: WholeRun) -> dict[str, list[Figure]]:
    """Return the figures by section."""
    sections: dict[str, list[Figure]] = {"Strength": [], "Population": population_figures(run)}
    for title, charts in chart_sections(run).items():
        sections.setdefault(title, []).extend(figure_of(chart) for chart in charts)
    if not run.is_program and run.ratings():
        sections["Strength"].append(_ratings_figure(run))
    if run.tuning is not None:
        sections = {title: [_by_iteration(run, one) for one in found] for title, found in sections.items()}
    return {title: figures for title, figures in sections.items() if figures}


def _by_iteration(run: WholeRun, figure: Figure) -> Figure:
    """Return a figure whose steps are iterations."""
    axis: Json = {"title": {"text": "iteration", "standoff": 4}}
    if run.step <= FEW_STEPS:
        axis["dtick"] = 1
    return replace(figure, layout={**figure.layout, "xaxis": axis})


def _ratings_figure(run: WholeRun) -> Figure:
    """Return the latest ratings of the pool's best members, with two standard deviations."""
    ratings = run.ratings()
    best = ratings[:MAX_RATINGS][::-1]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.mu for one in best],
        "y": [plain(one.uid) for one in best],
        "error_x": {"type": "data", "array": [2 * one.sigma for one in best], "width": 3},
        "marker": {"color": COLOURS[0], "size": 8},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "TrueSkill rating"}},
        "yaxis": {"type": "category", "automargin": True},
        "hovermode": "closest",
        "showlegend": False,
        "height": max(300, 90 + 22 * len(best)),
    }
    caption = "Latest mean, plus and minus two standard deviations."
    if left_out := len(ratings) - len(best):
        caption += f" Only the best {len(best)} are shown; {left_out} more are left out."
    return Figure("Ratings of the pool", caption, [trace], layout)
