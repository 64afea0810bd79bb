"""A PSRO in the terminal, after every iteration, and as one HTML page that needs no network."""

from html import escape

from sparring.commands.tournament_page import NOTHING, payoff_map, score_text
from sparring.core.confidence_intervals import Interval
from sparring.core.env_id import env_name
from sparring.core.text import counted
from sparring.evaluation.psro import Iteration, PsroState
from sparring.evaluation.results import UNPLAYABLE_NOTE
from sparring.view.charts import Chart, Line, banded_line, chart, share_chart
from sparring.view.report.html import Page
from sparring.view.report.plotly import figure_of
from sparring.view.tables import Cell, Row, Table, figure_cell

HEAD = ("Member", "Updates", "Games", "Weight now", "Gain")
GAIN = (
    "Gain: what the member earns more than the mixture that it was trained against, summed over the seats, "
    "with a 95% interval; its expectation is a lower bound of that mixture's NashConv."
)
NOT_ZERO_SUM = (
    "The rewards do not sum to zero: nash and alpharank solve what the row earns more than the column, so "
    "the mixture need not come near an equilibrium; prd solves the payoffs themselves."
)
MANY_SEATS = (
    "With more than two seats an equilibrium promises little: NashConv 0 says only that nobody gains by "
    "changing alone. Several may gain together, and members of different equilibria need not fit each other."
)


def psro_table(state: PsroState) -> Table:
    """Return a row for each member: its weight in the last mixture, and what its iteration found."""
    rows = [_row(one, state) for one in state.iterations]
    head: tuple[str, ...] = HEAD
    notes = [GAIN, *_limits(state)] if len(state.iterations) > 1 else []
    if any(one.nash_conv is not None for one in state.iterations):
        rows = [(*row, _exact_cell(one)) for row, one in zip(rows, state.iterations, strict=True)]
        head, notes = (*HEAD, "NashConv"), [*notes, "NashConv: of the mixture with it."]
    notes += [] if all(one.is_playable for one in state.iterations) else [UNPLAYABLE_NOTE]
    return Table(head, [("", "", rows)], notes)


def psro_html(state: PsroState, seed: int) -> str:
    """Return the whole page. All text is escaped, and the page's policy allows only its own scripts."""
    subtitle = escape(f"solver {state.solver}, {counted(len(state.members), 'member')}, seed {seed}")
    last = len(state.iterations) - 1
    page = Page(f"PSRO of {env_name(state.env_id)}", subtitle, turn="iteration", last_step=last)
    page.tiles(_tiles(state))
    page.table("Members", psro_table(state))
    charts = [_distance(state), _mixtures(state)]
    page.charts("Towards an equilibrium", [figure_of(one) for one in charts if one is not None])
    caption = (
        f"Mean reward of the row against the column{' in all other seats' * (state.seats > 2)}, over all "
        "orders of seats. Rankings and games to read are in payoffs/tournament.html."
    )
    page.charts("Who beats whom", [payoff_map(state.matrix, range(len(state.members)), caption)])
    return page.html()


def _row(one: Iteration, state: PsroState) -> Row:
    return (
        one.member,
        str(one.updates) if one.updates else NOTHING,
        f"{one.training_games:,}" if one.training_games else NOTHING,
        f"{state.iterations[-1].mixture[one.member]:.1%}",
        _gain_text(one),
    )


def _exact_cell(one: Iteration) -> Cell | str:
    if one.nash_conv is None:
        return NOTHING
    value = Interval(one.nash_conv, one.nash_conv, one.nash_conv)
    return figure_cell(value, "exact", exactly=True, is_playable=one.is_playable)


def _limits(state: PsroState) -> list[str]:
    """Return what the mixture does not tell, by what is played."""
    if state.seats > 2:
        return [MANY_SEATS]
    return [] if state.solver in ("prd", "uniform") or state.matrix.is_zero_sum else [NOT_ZERO_SUM]


def _gain_text(one: Iteration) -> str:
    return score_text(one.gain, "+.3f")


def _tiles(state: PsroState) -> list[tuple[str, str, str]]:
    last = state.iterations[-1]
    exact = [one.nash_conv for one in state.iterations if one.nash_conv is not None]
    tiles = [("Best responses", str(len(state.iterations) - 1), "")]
    if last.nash_conv is not None:
        tiles.append(("NashConv of the mixture", f"{last.nash_conv:.3f}", f"{exact[0]:.3f} at the beginning"))
    if last.gain is not None:
        tiles.append(("Gain of the last best response", f"{last.gain.mid:+.3f}", _gain_text(last)))
    trained = sum(one.training_games for one in state.iterations)
    tiles.append(("Games of training", f"{trained:,}", f"and {last.payoff_games:,} for payoffs"))
    return tiles


def _distance(state: PsroState) -> Chart | None:
    """Return NashConv of each mixture, and what the best response to it gained."""
    exact = {float(at): one.nash_conv for at, one in enumerate(state.iterations) if one.nash_conv is not None}
    gains = {float(at - 1): one.gain for at, one in enumerate(state.iterations) if one.gain is not None}
    lines = [Line("NashConv", [*exact], [*exact.values()])] if exact else []
    lines += [banded_line("gain of the best response to it", gains)] if gains else []
    caption = f"The mixture after each iteration, from 0. {GAIN if gains else ''}".strip()
    return chart("How exploitable", lines, caption)


def _mixtures(state: PsroState) -> Chart | None:
    steps = [*map(float, range(len(state.iterations)))]
    lines = [
        Line(member, steps, [one.mixture.get(member, 0.0) for one in state.iterations])
        for member in state.members
    ]
    return share_chart("The mixture", lines, "The probability of each member after each iteration, from 0.")
