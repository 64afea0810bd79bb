"""The views: widgets that draw a RunView in whatever room they have."""

import time
from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.widget import Widget

from selfplay.tracking import watch_panels as panels
from selfplay.tracking.watch_actors import actors_panel
from selfplay.tracking.watch_charts import Chart, learning_charts
from selfplay.tracking.watch_game import ReadableGame
from selfplay.tracking.watch_header import header
from selfplay.tracking.watch_plot import MUTED, draw_chart
from selfplay.tracking.watch_tables import game_text
from selfplay.tracking.watch_view import RunView

CHART_HEIGHT = 11
"""Charts are at least so many lines high, if the screen is."""
CHART_WIDTH = 60
"""A screen gets another column of charts when each has so many characters; two fit on every screen."""

Draw = Callable[[RunView, Size], Content]
PANELS = (
    ("speed", "Speed", panels.speed_panel),
    ("time", "Time of the last step", panels.time_panel),
    ("evaluation", "Evaluation", panels.evaluation_panel),
    ("accounts", "Accounts", panels.accounts_panel),
    ("work", "Work of the last step", panels.work_panel),
    ("run", "Run", panels.run_panel),
)


class Drawing(Widget):
    """Text that is made anew from the view and the room there is.

    Args:
        draw: makes it from the view and the room: the width, and the height of the container.
        view: what is shown first.
    """

    DEFAULT_CSS = "Drawing { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, draw: Draw, view: RunView, *, title: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self.draw = draw
        self.view = view
        if title:
            self.border_title = title

    def show(self, view: RunView) -> None:
        """Draw another view."""
        self.view = view
        self.refresh(layout=True)

    def render(self) -> Content:
        """Draw."""
        return self.draw(self.view, Size(self.content_size.width, self.container_size.height))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return how many lines are drawn."""
        return self.draw(self.view, Size(width, container.height)).plain.count("\n") + 1


class ChartWidget(Widget):
    """One chart in a frame with its title."""

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.show(chart)

    def show(self, chart: Chart) -> None:
        """Draw another chart."""
        self.chart = chart
        self.border_title = Content(chart.title)
        self.refresh()

    def render(self) -> Content:
        """Draw."""
        return draw_chart(self.chart, self.content_size.width, self.content_size.height)


class ChartsView(VerticalScroll):
    """As many charts as there are, in columns that fit.

    Args:
        charts_of: which charts a view has.
        view: what is shown first.
        nothing: what is said while there are none.
        scrolls: whether charts that have no room can be scrolled to, or are left out.
    """

    def __init__(
        self,
        charts_of: Callable[[RunView], list[Chart]],
        view: RunView,
        nothing: str,
        *,
        id: str,
        scrolls: bool = True,
    ) -> None:
        super().__init__(id=id, can_focus=scrolls)
        self.charts_of = charts_of
        self.nothing = nothing
        self.scrolls = scrolls
        self.charts = charts_of(view)

    def compose(self) -> ComposeResult:
        """The charts there are."""
        if not self.charts:
            yield Drawing(lambda *_: Content.styled(self.nothing, MUTED), RunView(""))
        for chart in self.charts:
            yield ChartWidget(chart)

    def show(self, view: RunView) -> None:
        """Draw another view; charts come and go with its metrics."""
        self.charts = self.charts_of(view)
        widgets = list(self.query(ChartWidget))
        if [widget.chart.title for widget in widgets] == [chart.title for chart in self.charts]:
            for widget, chart in zip(widgets, self.charts, strict=True):
                widget.show(chart)
        else:
            self.refresh(recompose=True)
            self.call_after_refresh(self._arrange)

    def on_resize(self, event: Resize) -> None:
        """Fit columns and rows to the room."""
        self._arrange()

    def _arrange(self) -> None:
        width, height = self.size
        columns = min(max(2, width // CHART_WIDTH), max(1, len(self.charts)))
        rows = -(-len(self.charts) // columns)
        visible = max(1, min(rows, height // CHART_HEIGHT))
        self.styles.grid_size_columns = columns
        self.styles.grid_rows = str(max(6, height // visible)) if self.charts else "1"
        for index, widget in enumerate(self.query(ChartWidget)):
            widget.display = self.scrolls or index < columns * visible


class OverviewView(VerticalScroll):
    """The panels, and on a tall screen below them as many curves as there is room for."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.view = view

    def compose(self) -> ComposeResult:
        """The panels and the curves."""
        yield Drawing(actors_panel, self.view, title="Actors", id="actors")
        with Grid(id="panels"):
            for name, title, panel in PANELS:
                yield Drawing(panel, self.view, title=title, id=name)
        yield ChartsView(learning_charts, self.view, "", id="first-curves", scrolls=False)

    def show(self, view: RunView) -> None:
        """Draw another view."""
        self.view = view
        self._show_actors()
        for drawing in self.query(Drawing):
            drawing.show(view)
        self.query_one(ChartsView).show(view)

    def on_mount(self) -> None:
        """Leave out the actors of a run that has none."""
        self._show_actors()

    def _show_actors(self) -> None:
        self.query_one("#actors").display = bool(self.view.actors)


class TableView(VerticalScroll):
    """One drawing in a frame, which scrolls."""

    def __init__(self, draw: Draw, view: RunView, *, title: str, id: str) -> None:
        super().__init__(id=id)
        self.border_title = title
        self.drawing = Drawing(draw, view)

    def compose(self) -> ComposeResult:
        """The drawing."""
        yield self.drawing

    def show(self, view: RunView) -> None:
        """Draw another view."""
        self.drawing.show(view)


class GameView(VerticalScroll):
    """The last finished game. One that is being read stays until a newer one is asked for."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.newest: ReadableGame | None = view.game
        self.shown: ReadableGame | None = view.game
        self.kind = "game"
        self.drawing = Drawing(lambda _, room: game_text(self.shown, room.width), view)

    def compose(self) -> ComposeResult:
        """The text of the game."""
        yield self.drawing

    def on_mount(self) -> None:
        """Say which step the game is of."""
        self._entitle()

    def show(self, view: RunView) -> None:
        """Take note of the newest game; show it if nobody is reading another."""
        self.newest = view.game
        self.kind = "episode" if view.is_program else "game"
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

    def _entitle(self) -> None:
        step = f", step {self.shown.step}" if self.shown is not None else ""
        self.border_title = Content(f"Last {self.kind}{step}")
        self.border_subtitle = ""
        if self.newest is not None and self.newest != self.shown:
            self.border_subtitle = Content(f"n: a newer one, step {self.newest.step}")


class HeaderLine(Widget):
    """The line on top: which run, how far, how it is."""

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self.view = view

    def show(self, view: RunView) -> None:
        """Draw another view, or the same one at a later time."""
        self.view = view
        self.refresh()

    def render(self) -> Content:
        """Draw."""
        return header(self.view, time.time(), self.size.width)
