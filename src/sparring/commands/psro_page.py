"""A PSRO as one HTML page that looks like a run's report and needs no network."""

from html import escape

from sparring.commands.payoff_map import payoff_map
from sparring.commands.psro_files import PsroState
from sparring.commands.psro_table import HEAD, NASH_CONV_NOTE, gain_note, gain_text, row_of
from sparring.view.charts import COLOURS
from sparring.view.report.html import Page
from sparring.view.report.plotly import Json, PlotlyFigure, plain
from sparring.view.tables import Table


def psro_html(state: PsroState, seed: int) -> str:
    """Return the whole page. All text is escaped, and the page's policy allows only its own scripts."""
    subtitle = escape(f"solver {state.solver}, {len(state.members)} members, seed {seed}")
    page = Page(f"PSRO of {state.env_id}", subtitle)
    page.tiles(_tiles(state))
    rows = [row_of(one, state) for one in state.iterations]
    page.table("Members", Table(HEAD, [("", "", rows)], [f"{gain_note(state)} {NASH_CONV_NOTE}"]))
    page.charts("Towards an equilibrium", [_distance(state), _mixtures(state)])
    page.charts("Who beats whom", [_payoffs(state)])
    return page.html()


def _tiles(state: PsroState) -> list[tuple[str, str, str]]:
    last = state.iterations[-1]
    exact = [one.nash_conv for one in state.iterations if one.nash_conv is not None]
    tiles = [("Best responses", str(len(state.iterations) - 1), "")]
    if last.nash_conv is not None:
        tiles.append(("NashConv of the mixture", f"{last.nash_conv:.3f}", f"{exact[0]:.3f} at the beginning"))
    if last.gain is not None:
        tiles.append(("Gain of the last best response", f"{last.gain[1]:+.3f}", gain_text(last)))
    trained = sum(one.training_games for one in state.iterations)
    tiles.append(("Games of training", f"{trained:,}", f"and {last.payoff_games:,} for payoffs"))
    return tiles


def _distance(state: PsroState) -> PlotlyFigure:
    """Return NashConv of each mixture, and what the best response to it gained."""
    exact = [
        (place, one.nash_conv) for place, one in enumerate(state.iterations) if one.nash_conv is not None
    ]
    gains = [(place - 1, one.gain) for place, one in enumerate(state.iterations) if one.gain is not None]
    traces: list[Json] = []
    if exact:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "NashConv",
                "x": [place for place, _ in exact],
                "y": [value for _, value in exact],
                "line": {"color": COLOURS[0]},
            }
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "gain of the best response to it",
            "x": [place for place, _ in gains],
            "y": [mid for _, (_, mid, _) in gains],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [high - mid for _, (_, mid, high) in gains],
                "arrayminus": [mid - low for _, (low, mid, _) in gains],
                "width": 3,
            },
            "marker": {"color": COLOURS[1], "size": 8},
        }
    )
    caption = f"The mixture after each iteration, from 0. {gain_note(state)}"
    layout = {"showlegend": True, "xaxis": {"dtick": 1}}
    return PlotlyFigure("How exploitable", caption, traces, layout)


def _mixtures(state: PsroState) -> PlotlyFigure:
    """Return the share of each member in the mixture after each iteration."""
    iterations = range(len(state.iterations))
    traces: list[Json] = [
        {
            "type": "bar",
            "name": plain(member),
            "x": [*iterations],
            "y": [one.mixture.get(member, 0.0) for one in state.iterations],
            "marker": {"color": COLOURS[number % len(COLOURS)]},
            "hovertemplate": "%{y:.1%}",
        }
        for number, member in enumerate(state.members)
    ]
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": {"dtick": 1},
        "yaxis": {"tickformat": ".0%", "range": [0, 1.02]},
    }
    return PlotlyFigure(
        "The mixture", "The probability of each member after each iteration, from 0.", traces, layout
    )


def _payoffs(state: PsroState) -> PlotlyFigure:
    caption = (
        "Mean reward of the row against the column over both seats. Rankings and games to read are in "
        "payoffs/tournament.html."
    )
    return payoff_map(state.matrix, range(len(state.members)), caption)
