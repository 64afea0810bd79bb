"""A tournament as one HTML page that looks like a run's report and needs no network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from sparring.commands.payoff_map import payoff_map
from sparring.commands.tournament_tables import (
    INTERVALS,
    MANY_PLAYERS,
    NASH_CONV,
    NO_CYCLE,
    NOT_ZERO_SUM,
    RESAMPLED_RANGE,
    Column,
    cycle_text,
    has_nash_conv,
    invalid_text,
    rating_text,
    score_text,
    share_text,
    shown,
)
from sparring.core.confidence_intervals import Interval
from sparring.core.text import counted
from sparring.population import PayoffTable
from sparring.population.meta_strategies import ResampledShare
from sparring.population.payoffs import PayoffMatrix
from sparring.population.rankings import MemberRank, Rankings
from sparring.view.cards import Card, card_of
from sparring.view.charts import COLOURS
from sparring.view.episodes import first_episodes
from sparring.view.report.cards import Shared, cards_html
from sparring.view.report.html import Page, list_html
from sparring.view.report.plotly import GREY, Json, PlotlyFigure, members_figure, members_layout, plain
from sparring.view.tables import Cell, Row, Table


def tournament_html(
    env_id: str, seed: int, table: PayoffTable, rankings: Rankings, samples: Mapping[str, Sequence[Path]]
) -> str:
    """Return the whole page. All text is escaped, and the page's policy allows only its own scripts.

    Args:
        env_id: what was played.
        seed: root of all randomness.
        table: the payoffs.
        rankings: what is read off them.
        samples: for each pair by its name, the logs of the games to read; those that do not exist are left
            out.
    """
    members, matrix = counted(len(rankings.members), "member"), rankings.matrix
    who = "every pair in both seats" if matrix is not None else "every group in every order of seats"
    page = Page(f"Tournament of {env_id}", escape(f"{members}, {who}, seed {seed}"))
    page.tiles(_tiles(table, rankings))
    page.table("Ranking", _ranking(rankings))
    if matrix is not None:
        cycles = [cycle_text(cycle) for cycle in rankings.cycles] or [NO_CYCLE]
        page.section("Cycles", f'<div class="card">{list_html(cycles)}</div>')
    for title, figures in _sections(rankings).items():
        page.charts(title, figures)
    seats = [f"seat {seat}" for seat in range(table.seats)]
    note = f"The first deal of every {'pair, in both' if len(seats) == 2 else 'group, in two'} seat orders."
    page.section("Games", cards_html(_games(samples), Shared(seats, of_evaluation=True)), note)
    return page.html()


def _sections(rankings: Rankings) -> dict[str, list[PlotlyFigure]]:
    score = _dots("Mean reward", _SCORE, "mean reward", rankings, lambda one: one.score)
    trueskill = _dots("TrueSkill", _TRUESKILL, "rating", rankings, _trueskill)
    exact = (
        [_dots("NashConv", _NASH_CONV, "NashConv", rankings, _nash_conv)] if has_nash_conv(rankings) else []
    )
    if rankings.matrix is None:
        return {"Rankings side by side": [score, trueskill, *exact]}
    bradley_terry = _dots("Bradley-Terry", _BRADLEY_TERRY, "rating", rankings, lambda one: one.bradley_terry)
    return {
        "Who beats whom": [_payoffs(rankings, rankings.matrix)],
        "Rankings side by side": [score, bradley_terry, trueskill, _shares(rankings), *exact],
    }


_SCORE = "Against the field: every other member has the same weight. With 95% intervals."
_BRADLEY_TERRY = "400 points more are ten times the odds of a win; a draw is half a win. With 95% intervals."
_TRUESKILL = "Plus and minus two standard deviations. Depends on the order of games."
_NASH_CONV = (
    "What best responses gain against the member, summed over the seats: computed exactly, 0 is best."
)
_SHARES = (
    "Nash averaging: the share of each member in the equilibrium of maximum entropy. "
    f"α-rank: how long evolution stays with it, by who beats whom alone. With the {RESAMPLED_RANGE}."
)
_MATRIX = "Mean reward of the row against the column over both seats, best member first."


def _tiles(table: PayoffTable, rankings: Rankings) -> list[tuple[str, str, str]]:
    games = sum(payoff.games for _, payoff in table.items())
    failed = sum(payoff.failed for _, payoff in table.items())
    invalid = sum(sum(payoff.invalid) for _, payoff in table.items())
    best = rankings.members[0]
    tiles = [
        ("Games", f"{games:,}", f"{failed:,} failed" if failed else ""),
        ("Ended by an invalid move", f"{invalid / games:.1%}", ""),
        ("Highest mean reward", best.uid, score_text(best.score)),
    ]
    if rankings.matrix is not None:
        dominated = sum(one.dominated_by is not None for one in rankings.members)
        tiles += [
            ("Dominated members", str(dominated), ""),
            ("Groups with cycles", str(len(rankings.cycles)), ""),
        ]
    measured = [one for one in rankings.members if one.nash_conv is not None]
    if measured:
        least = min(measured, key=lambda one: one.nash_conv or 0.0)
        tiles.append(("Least exploitable", least.uid, f"NashConv {NASH_CONV.text(least)}"))
    return tiles


def _ranking(rankings: Rankings) -> Table:
    columns = shown(_COLUMNS, rankings)
    rows: list[Row] = []
    for number, one in enumerate(rankings.members, start=1):
        mark = "" if one.dominated_by is None else f"dominated by {one.dominated_by}"
        cells = (column.text(one) for column in columns)
        rows.append([f"{number} {one.uid}", *cells, Cell(badge=mark, tone="warn")])
    note = _RANKING_NOTE if rankings.matrix is not None else f"{INTERVALS} {MANY_PLAYERS} {_INVALID_NOTE}"
    if rankings.matrix is not None and not rankings.matrix.is_zero_sum:
        note = f"{note} {NOT_ZERO_SUM}"
    return Table(("", *(column.head for column in columns), ""), [("", "", rows)], [note])


_COLUMNS = (
    Column("Mean reward", lambda one: score_text(one.score)),
    Column("Against Nash", lambda one: score_text(one.nash_score), of_pairs=True),
    Column("Bradley-Terry", lambda one: score_text(one.bradley_terry, ".0f"), of_pairs=True),
    Column("TrueSkill", rating_text),
    Column("Nash", lambda one: share_text(one.nash), of_pairs=True),
    Column("α-rank", lambda one: share_text(one.alpharank), of_pairs=True),
    Column("Invalid", invalid_text),
)
_INVALID_NOTE = "Invalid: games that its own invalid moves ended."
_RANKING_NOTE = (
    f"{INTERVALS} In parentheses, of Nash and α-rank: the {RESAMPLED_RANGE}. A member is dominated if "
    f"another one is nowhere worse, and somewhere better beyond noise. {_INVALID_NOTE}"
)


def _payoffs(rankings: Rankings, matrix: PayoffMatrix) -> PlotlyFigure:
    place = {uid: row for row, uid in enumerate(matrix.members)}
    return payoff_map(matrix, [place[one.uid] for one in rankings.members], _MATRIX)


def _dots(
    title: str,
    caption: str,
    axis: str,
    rankings: Rankings,
    value: Callable[[MemberRank], Interval | None],
) -> PlotlyFigure:
    """Return the members by one measure with its intervals, best member by mean reward at the top."""
    found = {one.uid: interval for one in rankings.members if (interval := value(one)) is not None}
    return members_figure(title, caption, axis, found)


def _nash_conv(one: MemberRank) -> Interval | None:
    return None if one.nash_conv is None else Interval(one.nash_conv, one.nash_conv, one.nash_conv)


def _trueskill(one: MemberRank) -> Interval:
    mu, sigma = one.trueskill
    return Interval(mu - 2 * sigma, mu, mu + 2 * sigma)


def _shares(rankings: Rankings) -> PlotlyFigure:
    named: list[tuple[str, Callable[[MemberRank], ResampledShare | None]]] = [
        ("Nash averaging", lambda one: one.nash),
        ("α-rank", lambda one: one.alpharank),
    ]
    traces = [_bars(name, colour, rankings, share) for colour, (name, share) in enumerate(named)]
    layout = members_layout("", len(rankings.members)) | {"showlegend": True, "barmode": "group"}
    layout["xaxis"] |= {"tickformat": ".0%", "range": [0, 1.02]}
    return PlotlyFigure("Nash averaging and α-rank", _SHARES, traces, layout)


def _bars(
    name: str, colour: int, rankings: Rankings, share: Callable[[MemberRank], ResampledShare | None]
) -> Json:
    found = [(one.uid, value) for one in rankings.members if (value := share(one)) is not None]
    spread = {
        "array": [one.high - one.share for _, one in found],
        "arrayminus": [one.share - one.low for _, one in found],
    }
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [one.share for _, one in found],
        "y": [plain(uid) for uid, _ in found],
        "error_x": {"type": "data", "symmetric": False, "color": GREY, "width": 3, "thickness": 1, **spread},
        "marker": {"color": COLOURS[colour]},
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }


def _games(samples: Mapping[str, Sequence[Path]]) -> dict[str, list[Card]]:
    """Return the games to read of each pair or group, by its name as HTML."""
    return {
        escape(name): [
            card_of(replace(one, index=number))
            for number, path in enumerate(paths)
            if path.is_file()
            for one in first_episodes(path, 1)
        ]
        for name, paths in samples.items()
    }
