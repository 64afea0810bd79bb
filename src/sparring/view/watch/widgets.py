"""The views: widgets that draw a RunView at any size."""

import time
from collections.abc import Callable, Mapping

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from sparring.core.text import printable
from sparring.view.cards import card_of
from sparring.view.chart_list import chart_sections
from sparring.view.charts import Chart
from sparring.view.episodes import LoggedEpisode
from sparring.view.run_view import RunView
from sparring.view.watch import panels
from sparring.view.watch.header import header
from sparring.view.watch.plot import draw_chart
from sparring.view.watch.text import MUTED, card_text, line

CHART_HEIGHT = 11
"""The smallest height of a chart in lines, if the screen is that high."""
CHART_WIDTH = 60
"""A screen has one column of charts for each multiple of this width in characters, and at least two."""

CURVES = ("Strength", "Population", "Rewards", "Learning")
RATES = ("Play", "Answers", "Speed")
"""The sections of charts on the two pages."""

Draw = Callable[[RunView], panels.Panel]
OVERVIEW: Mapping[str, Draw] = {
    "": panels.warnings_panel,
    "Actors": panels.actors_panel,
    "Run": panels.run_panel,
    "Evaluation": panels.evaluation_panel,
    "Jobs": panels.jobs_panel,
    "Last update": panels.last_update_panel,
}
"""The panels of the overview."""


class ChartWidget(Widget):
    """One chart in a titled frame."""

    def __init__(self, chart: Chart, turn: str) -> None:
        super().__init__(classes="framed")
        self.turn = turn
        self.show(chart)

    def show(self, chart: Chart) -> None:
        """Show another chart."""
        self.chart = chart
        self.border_title = Content(printable(chart.title, keep=""))
        self.border_subtitle = "logarithmic" if chart.axis == "log" else ""
        self.refresh()

    def render(self) -> Content:
        """Draw the content."""
        return draw_chart(self.chart, self.turn, self.content_size.width, self.content_size.height)


class ChartsView(VerticalScroll):
    """The charts of some sections, in columns that fit.

    Args:
        sections: the titles of the sections; see :func:`chart_sections`.
        view: the first view to show.
        id: the name of the view.
        scrolls: whether the charts that do not fit can be scrolled to; otherwise they are left out.
    """

    def __init__(self, sections: tuple[str, ...], view: RunView, *, id: str, scrolls: bool = True) -> None:
        super().__init__(id=id, can_focus=scrolls)
        self.sections = sections
        self.scrolls = scrolls
        self._take(view)

    def compose(self) -> ComposeResult:
        """Yield the charts, or the text for none."""
        if not self.charts:
            yield Static(line("Nothing has been measured yet.", MUTED))
        for chart in self.charts:
            yield ChartWidget(chart, self.turn)

    def show(self, view: RunView) -> None:
        """Show another view; charts come and go with its metrics."""
        self._take(view)
        widgets = list(self.query(ChartWidget))
        if [widget.chart.title for widget in widgets] == [chart.title for chart in self.charts]:
            for widget, chart in zip(widgets, self.charts, strict=True):
                widget.show(chart)
        else:
            self.refresh(recompose=True)
            self.call_after_refresh(self.on_resize)

    def on_resize(self, event: Resize | None = None) -> None:
        """Fit columns and rows to the size."""
        width, height = self.size
        columns = min(max(2, width // CHART_WIDTH), max(1, len(self.charts)))
        rows = -(-len(self.charts) // columns)
        visible = max(1, min(rows, height // CHART_HEIGHT))
        self.styles.grid_size_columns = columns
        self.styles.grid_rows = str(max(6, height // visible)) if self.charts else "1"
        for index, widget in enumerate(self.query(ChartWidget)):
            widget.display = self.scrolls or index < columns * visible

    def _take(self, view: RunView) -> None:
        found = chart_sections(view)
        self.turn = view.turn
        self.charts = [chart for title in self.sections for chart in found.get(title, [])]


class PanelsView(VerticalScroll):
    """Panels one below the other, hidden where there is nothing to draw.

    Args:
        drawn: how each panel is drawn, by the title of its frame; without a title it has no frame.
        view: the first view to show.
        id: the name of the view.
    """

    def __init__(self, drawn: Mapping[str, Draw], view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.panels = [(Static(classes="framed" if title else ""), draw) for title, draw in drawn.items()]
        for (panel, _), title in zip(self.panels, drawn, strict=True):
            panel.border_title = title or None
        self._draw(view)

    def compose(self) -> ComposeResult:
        """Yield the panels."""
        yield from (panel for panel, _ in self.panels)

    def show(self, view: RunView) -> None:
        """Show another view."""
        self._draw(view)

    def _draw(self, view: RunView) -> None:
        for panel, draw in self.panels:
            drawn = draw(view)
            panel.display = drawn is not None
            panel.update(drawn or "")


class OverviewView(PanelsView):
    """The panels of the overview and, on a tall screen, as many curves below them as fit."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(OVERVIEW, view, id=id)
        self.curves = ChartsView(CURVES, view, id="first-curves", scrolls=False)

    def compose(self) -> ComposeResult:
        """Yield the panels and the curves."""
        yield from super().compose()
        yield self.curves

    def show(self, view: RunView) -> None:
        """Show another view."""
        super().show(view)
        self.curves.show(view)


class GameView(VerticalScroll):
    """The last finished game. A visible game stays until the reader asks for a newer one."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id, classes="framed")
        self.view = view
        self.shown: LoggedEpisode | None = None
        self.card = Static(card_text(None))

    def compose(self) -> ComposeResult:
        """Yield the text of the game."""
        yield self.card

    def show(self, view: RunView) -> None:
        """Note the newest game, and show it if there is no other."""
        self.view = view
        if self.shown is None:
            self.show_newest()
        self._entitle()

    def show_newest(self) -> None:
        """Show the newest game from its beginning."""
        if self.shown != self.view.game:
            self.shown = self.view.game
            self.card.update(card_text(card_of(self.shown) if self.shown is not None else None))
            self.scroll_home(animate=False)
        self._entitle()

    def _entitle(self) -> None:
        kind, turn, newest = "episode" if self.view.is_program else "game", self.view.turn, self.view.game
        step = f", {turn} {self.shown.step}" if self.shown is not None else ""
        self.border_title = Content(f"Last {kind}{step}")
        self.border_subtitle = ""
        if newest is not None and newest != self.shown:
            self.border_subtitle = Content(f"n: newer {kind}, {turn} {newest.step}")


class HeaderLine(Widget):
    """The line on top: the run's name, progress and state."""

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self.view = view

    def show(self, view: RunView) -> None:
        """Show another view, or the same view at a later time."""
        self.view = view
        self.refresh()

    def render(self) -> Content:
        """Draw the content."""
        return header(self.view, time.time(), self.size.width)
