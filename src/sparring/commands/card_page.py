"""An exploitability card in the terminal, and as one HTML page that needs no network."""

from dataclasses import replace
from html import escape
from pathlib import Path

from sparring.commands.tables import budget_text, exploited_table, gain_text, title_of
from sparring.core.text import counted
from sparring.evaluation.exploitability_card import ExploitabilityCard
from sparring.view.cards import Card, card_of
from sparring.view.charts import Chart, banded_line
from sparring.view.episodes import first_episodes
from sparring.view.report.cards import Shared, cards_html
from sparring.view.report.html import Page
from sparring.view.report.plotly import figure_of
from sparring.view.tables import Row, Table, figure_cell

MOST_GAMES = 100
NOTHING = "-"


def card_tables(card: ExploitabilityCard) -> list[Table]:
    """Return the card as tables: the gains, the measures of a program, and the calibration."""
    tables = [exploited_table(card.exploited)]
    if card.measures:
        rows: list[Row] = [
            [one.name, *(figure_cell(value, one.kind) for value in (one.before, one.after))]
            for one in card.measures
        ]
        note = "Untrained: before the responses learned. Trained: with all of them. With 95% intervals."
        tables.append(Table(("", "Untrained", "Trained"), [("The program's measures", "", rows)], [note]))
    return [*tables, calibration_table(card)]


def calibration_table(card: ExploitabilityCard) -> Table:
    """Return how well such responses do where the exact gain is known."""
    known, rows = card.calibrated, list[Row]()
    if (found := known.summary) is not None:
        correlation = NOTHING if found.rank_correlation is None else f"{found.rank_correlation:.3f}"
        recovery = NOTHING if found.median_recovery is None else f"{found.median_recovery:.0%}"
        rows = [
            ["Policies in the table", f"{found.cells} in {counted(found.games, 'game')}"],
            ["Share of the exact gain that was found, median", recovery],
            ["Rank correlation with the exact gain", correlation],
            ["Found more than there is, beyond the interval", str(found.above)],
        ]
    of_kind = f"games of {known.kind}" if known.kind is not None else ""
    notes = [known.problem] if known.problem else []
    return Table(("", ""), [("Calibration of this probe", of_kind, rows)], notes)


def card_html(card: ExploitabilityCard, games: Path) -> str:
    """Return the whole page. All text is escaped, and the page's policy allows only its own scripts.

    ``games`` is the log of the games in which the response earned most.
    """
    result = card.exploited
    last = max((step for step, _ in card.curve), default=0)
    subtitle = "What a best response gains that was trained against it"
    turn = "update" if result.positions is None else "game"
    page = Page(f"Exploitability card of {title_of(result)}", escape(subtitle), turn=turn, last_step=last)
    page.tiles(_tiles(card))
    first, *others = card_tables(card)
    page.table("Gains", first)
    if card.curve:
        line = banded_line("", {float(step): one for step, one in card.curve})
        settled = "It had settled." if result.settled else "It had not settled: more updates may find more."
        name, what = "Mean reward", "The response's mean reward against the agent"
        if result.positions is not None:
            name, what = "Gain, by games learned from", "What the response gains in all seats"
        caption = f"{what}, with 95% intervals. {settled}"
        page.charts("Training", [figure_of(Chart(name, [line], caption))])
    for table in others:
        ((title, note, rows),) = table.groups
        page.table(", ".join(filter(None, (title, note))), replace(table, groups=[("", "", rows)]))
    page.section("Games", _games(card, games), "Those in which the response earned most.")
    return page.html()


def _tiles(card: ExploitabilityCard) -> list[tuple[str, str, str]]:
    result, share = card.exploited, card.share_of_exact
    exact = result.exact_gains
    beside = "" if exact is None else f"exact {sum(exact):.4f}"
    tiles = [
        ("Gain, all seats", gain_text(result.total), beside if result.found else "no gain found"),
        *([("Share of the exact gain", f"{share:.0%}", beside)] if share is not None else []),
        (
            "Budget",
            budget_text(result),
            "settled" if result.settled else "had not settled",
        ),
    ]
    if invalid := max(one.invalid_own for one in result.seats):
        tiles.append(("Its own invalid moves", f"{invalid:.1%}", "of its games, in its worst seat"))
    if result.calls is not None:
        tiles.append(("Calls", f"{result.calls:,}", f"of {result.max_calls:,}"))
    known = card.calibrated.summary
    recovery = None if known is None else known.median_recovery
    shown = "not calibrated" if recovery is None else f"{recovery:.0%}"
    median = f"of the exact gain, median{', with more games' if card.calibrated.problem else ''}"
    tiles.append(("This probe finds", shown, "" if recovery is None else median))
    return tiles


def _games(card: ExploitabilityCard, path: Path) -> str:
    names = {one.seat: one.title for one in card.exploited.seats}
    groups: dict[str, list[Card]] = {}
    for one in first_episodes(path, MOST_GAMES):
        seat = names.get(str(one.rollout.meta.get("response")), "")
        groups.setdefault(f"The response in {escape(seat)}", []).append(card_of(one))
    return cards_html(groups, Shared([*names.values()], of_evaluation=True))
