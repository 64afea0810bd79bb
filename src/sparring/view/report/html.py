"""Pages: one self-contained HTML file each, put together from the same pieces. All text is escaped."""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from plotly.offline import get_plotlyjs

from sparring.core.text import number_text
from sparring.view.report.plotly import Json, PlotlyFigure
from sparring.view.report.tokens import AnswersByToken
from sparring.view.tables import Bar, Cell, Row, Table

FEW_STEPS = 12
"""Up to this many steps, the axis has a tick for each; with more, Plotly chooses whole steps by itself."""


_SHARE_ENDS = '<div class="range-ends narrow"><span>0%</span><span>100%</span></div>'
"""The ends of bars where the table's head, which has them, is folded away."""


class Page:
    """A page that is put together from top to bottom. It loads nothing and runs only its own scripts.

    Args:
        title: its title.
        subtitle: HTML below the title.
        turn: what the axis of steps counts.
        last_step: the last step of any figure.
        model: whose tokenizer tells the tokens of answers.

    Attributes:
        by_token: the answers that the page shows by token.
    """

    def __init__(
        self, title: str, subtitle: str = "", *, turn: str = "update", last_step: int = 0, model: str = ""
    ) -> None:
        self._head = f'<h1>{escape(title)}</h1><p class="muted">{subtitle}</p>'
        self._title = title
        self._steps: Json = {"title": {"text": turn, "standoff": 4}}
        if last_step <= FEW_STEPS:
            self._steps["dtick"] = 1
        self._parts: list[str] = []
        self._figures: list[Json] = []
        self.by_token = AnswersByToken(model)

    def add(self, html: str) -> None:
        """Add HTML."""
        self._parts.append(html)

    def section(self, title: str, html: str, note: str = "") -> None:
        """Add a section with its heading and a note below it; nothing if it would be empty."""
        if html:
            said = f'<p class="muted">{escape(note)}</p>' if note else ""
            self.add(f"<section><h2>{escape(title)}</h2>{said}{html}</section>")

    def table(self, title: str, table: Table | None) -> None:
        """Add a section with a table, if there is one."""
        if table is not None:
            self.section(title, table_html(table))

    def tiles(self, tiles: Iterable[tuple[str, str, str]]) -> None:
        """Add a row of headline figures: each has a name, a value and a note."""
        shown = "".join(
            f'<div class="tile"><div class="tile-name">{escape(name)}</div>'
            f'<div class="tile-value">{escape(value)}</div><div class="tile-note">{escape(note)}</div></div>'
            for name, value, note in tiles
        )
        self.add(f'<div class="tiles">{shown}</div>')

    def charts(self, title: str, figures: Sequence[PlotlyFigure], note: str = "") -> None:
        """Add a section with figures, if there are any."""
        self.section(title, _grid(list(map(self._card, figures))), note)

    def html(self) -> str:
        """Return the whole page."""
        plotly = _one_kind_of_line_end(get_plotlyjs()) if self._figures else ""
        script = _one_kind_of_line_end(_packaged("page.js") + _packaged("games.js"))
        return Template(_packaged("page.html")).substitute(
            title=escape(self._title),
            body=self._head + "".join(self._parts),
            figures=_for_script(self._figures),
            answers=_for_script(self.by_token.collected),
            plotly=plotly,
            script=script,
            content_policy=escape(content_policy(plotly, script)),
        )

    def _card(self, figure: PlotlyFigure) -> str:
        place = f"chart-{len(self._figures)}"
        layout = {"xaxis": self._steps, **figure.layout}
        self._figures.append({"id": place, "traces": figure.traces, "layout": layout})
        return (
            f'<div class="card{" wide" * figure.wide}"><h3>{escape(figure.title)}</h3>'
            f'<p class="muted">{escape(figure.caption)}</p>'
            f'<div class="chart" id="{place}"></div>{list_html(figure.lines)}</div>'
        )


def content_policy(*scripts: str) -> str:
    """Return the page's content security policy: only these scripts run, and nothing is loaded or sent.

    It is a second line of defence behind the escaping: markup that got through would be shown, but could
    do nothing.
    """
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def list_html(lines: Sequence[str]) -> str:
    """Return lines of text as a list; empty without any."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in lines)}</ul>" if lines else ""


def badge_html(text: str, tone: str = "") -> str:
    """Return a remark; ``tone`` is ``good``, ``warn``, ``bad`` or empty."""
    return f'<span class="badge {tone}">{escape(text)}</span>'


def table_html(table: Table) -> str:
    """Return a table on a card; one with bars is folded on a narrow screen."""
    has_bars = any(
        isinstance(cell, Cell) and cell.bars for _, _, rows in table.groups for row in rows for cell in row
    )
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    if table.of_shares:
        scale = '<th class="range-head"><span>0%</span><span>50%</span><span>100%</span></th>'
        heads = heads.removesuffix("<th></th>") + scale
    body = "".join(_group_html(table, *group) for group in table.groups)
    notes = "".join(
        f'<p class="muted">{escape(note)}</p>' for note in filter(None, (table.legend, *table.notes))
    )
    return (
        f'<div class="card scroll"><table class="headline{" change" * has_bars}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{notes}</div>"
    )


def _group_html(table: Table, title: str, note: str, rows: Sequence[Row]) -> str:
    head = (
        f'<tr class="group"><th colspan="{len(table.heads)}">{escape(title)} '
        f'<span class="muted">{escape(note)}</span></th></tr>'
    )
    return head * bool(title) + "".join(
        f"<tr>{''.join(_cell_html(cell, table) for cell in row)}</tr>" for row in rows
    )


def _cell_html(cell: Cell | str, table: Table) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    if cell.bars:
        first = cell.bars[0]
        ends = _SHARE_ENDS if table.of_shares and (first.low, first.high) == (0, 1) else _ends_html(first)
        return f'<td class="range">{"".join(map(_bar_html, cell.bars))}{ends}</td>'
    text = f"<b>{escape(cell.text)}</b>" if cell.strong else escape(cell.text)
    key = f'<span class="key" style="background:{cell.key}"></span> ' if cell.key else ""
    note = f' <span class="muted">{escape(cell.note)}</span>' if cell.note else ""
    badge = f" {badge_html(cell.badge, cell.tone)}" if cell.badge else ""
    return f"<td>{key}{text}{note}{badge}</td>"


def _bar_html(bar: Bar) -> str:
    left, middle, right = (100 * (end - bar.low) / (bar.high - bar.low) for end in bar.interval)
    return (
        f'<div class="track"><i class="band" style="left:{left:.2f}%;width:{right - left:.2f}%;'
        f'background:{bar.colour}"></i><i class="dot" style="left:{middle:.2f}%;background:{bar.colour}">'
        "</i></div>"
    )


def _ends_html(bar: Bar) -> str:
    low, high = number_text(bar.low), number_text(bar.high)
    return f'<div class="range-ends"><span>{low}</span><span>{high}</span></div>'


def _for_script(content: list[Json]) -> str:
    """Return JSON without ``<``, which could end the script element."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _grid(cards: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(cards)}</div>' if cards else ""


def _packaged(name: str) -> str:
    return files("sparring.view.report").joinpath(name).read_text(encoding="utf-8")


def _one_kind_of_line_end(script: str) -> str:
    """Return the script with ``\\n`` as its only line end, because a browser hashes it in that form."""
    return script.replace("\r\n", "\n").replace("\r", "\n")
