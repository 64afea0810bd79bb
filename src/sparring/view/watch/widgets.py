"""The views: widgets that draw a RunView at any size."""

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.visual import visualize
from textual.widget import Widget

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

Draw = Callable[[RunView, Size], panels.Panel]
WIDE_PANELS: dict[str, Draw] = {
    "": panels.warnings_panel,
    "Actors": panels.actors_panel,
    "Run": panels.run_panel,
    "Evaluation": panels.evaluation_panel,
    "Jobs": panels.jobs_panel,
}
"""The panels of the overview that need the whole width."""
PANELS: dict[str, Draw] = {
    "Last statistics": panels.statistics_panel,
    "Last update": panels.last_update_panel,
}


class Drawing(Widget):
    """A panel that is redrawn from the view and the available size; hidden if there is nothing to draw.

    Args:
        draw: makes the panel from the view and the size: the width, and the container's height.
        view: the first view to show.
        title: the title of its frame; without one it has no frame.
    """

    DEFAULT_CSS = "Drawing { height: auto; }"

    def __init__(self, draw: Draw, view: RunView, title: str = "") -> None:
        super().__init__(classes="framed" if title else "")
        self.draw = draw
        self.border_title = title or None
        self.show(view)

    def show(self, view: RunView) -> None:
        """Show another view."""
        self.view = view
        self.display = self.draw(view, Size(80, 24)) is not None
        self.refresh(layout=True)

    def render(self) -> RenderableType:
        """Draw the panel."""
        return self.draw(self.view, Size(self.content_size.width, self.container_size.height)) or Text()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines drawn."""
        drawn = self.draw(self.view, Size(width, container.height)) or Text()
        return visualize(self, drawn).get_height({}, width)


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
            yield Drawing(lambda *_: line("Nothing has been measured yet.", MUTED), RunView(""))
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
    """Panels one below the other.

    Args:
        drawn: how each panel is drawn, by its title.
        view: the first view to show.
        id: the name of the view.
    """

    def __init__(self, drawn: dict[str, Draw], view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.drawn = drawn
        self.view = view

    def compose(self) -> ComposeResult:
        """Yield the panels."""
        for title, draw in self.drawn.items():
            yield Drawing(draw, self.view, title)

    def show(self, view: RunView) -> None:
        """Show another view."""
        self.view = view
        for drawing in self.query(Drawing):
            drawing.show(view)
        for charts in self.query(ChartsView):
            charts.show(view)


class OverviewView(PanelsView):
    """The panels of the overview and, on a tall screen, as many curves below them as fit."""

    def compose(self) -> ComposeResult:
        """Yield the panels and the curves."""
        yield from super().compose()
        with Grid(id="panels"):
            for title, draw in PANELS.items():
                yield Drawing(draw, self.view, title)
        yield ChartsView(CURVES, self.view, id="first-curves", scrolls=False)


class GameView(VerticalScroll):
    """The last finished game. A visible game stays until the reader asks for a newer one."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id, classes="framed")
        self.newest: LoggedEpisode | None = view.game
        self.shown: LoggedEpisode | None = view.game
        self.kind, self.turn = "game", view.turn
        self.drawing = Drawing(self._draw, view)

    def compose(self) -> ComposeResult:
        """Yield the text of the game."""
        yield self.drawing

    def on_mount(self) -> None:
        """Set the titles of the frame."""
        self._entitle()

    def show(self, view: RunView) -> None:
        """Store the newest game, and show it if no other game is visible."""
        self.newest = view.game
        self.kind = "episode" if view.is_program else "game"
        self.turn = view.turn
        if not self.display or self.shown is None:
            self.show_newest()
        self._entitle()

    def show_newest(self) -> None:
        """Show the newest game from its beginning."""
        if self.shown != self.newest:
            self.shown = self.newest
            self.drawing.refresh(layout=True)
            self.scroll_home(animate=False)
        self._entitle()

    def _draw(self, view: RunView, room: Size) -> panels.Panel:
        return card_text(card_of(self.shown) if self.shown is not None else None)

    def _entitle(self) -> None:
        step = f", {self.turn} {self.shown.step}" if self.shown is not None else ""
        self.border_title = Content(f"Last {self.kind}{step}")
        self.border_subtitle = ""
        if self.newest is not None and self.newest != self.shown:
            self.border_subtitle = Content(f"n: newer {self.kind}, {self.turn} {self.newest.step}")


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
