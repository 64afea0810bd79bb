"""The views: widgets that draw a RunView at any size."""

import time
from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.widget import Widget

from selfplay.core.text import printable
from selfplay.read.chart_list import chart_sections
from selfplay.read.charts import Chart
from selfplay.read.episodes import LoggedEpisode
from selfplay.read.run_view import RunView
from selfplay.watch import panels
from selfplay.watch.actor_tables import actors_panel
from selfplay.watch.evaluation import evaluation_panel
from selfplay.watch.game import game_text
from selfplay.watch.header import header
from selfplay.watch.plot import MUTED, draw_chart
from selfplay.watch.tuning_panels import jobs_panel, models_panel, stage_panel, statistics_panel

CHART_HEIGHT = 11
"""The smallest height of a chart in lines, if the screen is that high."""
CHART_WIDTH = 60
"""A screen has one column of charts for each multiple of this width in characters, and at least two."""

CURVES = ("Strength", "Population", "Rewards", "Learning")
RATES = ("Play", "Answers", "Speed")
"""The sections of charts on the two pages."""

Draw = Callable[[RunView, Size], Content]
PANELS = (
    ("speed", "Speed", panels.speed_panel),
    ("time", "Time of the last update", panels.time_panel),
    ("stage", "Stage", stage_panel),
    ("jobs", "Jobs", jobs_panel),
    ("evaluation", "Evaluation", evaluation_panel),
    ("statistics", "Last statistics", statistics_panel),
    ("models", "Models", models_panel),
    ("accounts", "Accounts", panels.accounts_panel),
    ("work", "Work of the last update", panels.work_panel),
    ("run", "Run", panels.run_panel),
)
OF_TUNING = ("stage", "jobs", "statistics", "models")
"""The panels of runs through fine-tuning jobs."""
NOT_OF_TUNING = ("speed", "time", "accounts", "work")
"""The panels of all other runs."""


class Drawing(Widget):
    """Text that is redrawn from the view and the available size.

    Args:
        draw: makes the text from the view and the size: the width, and the container's height.
        view: the first view to show.
    """

    DEFAULT_CSS = "Drawing { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, draw: Draw, view: RunView, *, title: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self.draw = draw
        self.view = view
        if title:
            self.border_title = title

    def show(self, view: RunView) -> None:
        """Show another view."""
        self.view = view
        self.refresh(layout=True)

    def render(self) -> Content:
        """Draw the content."""
        return self.draw(self.view, Size(self.content_size.width, self.container_size.height))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines drawn."""
        return self.draw(self.view, Size(width, container.height)).plain.count("\n") + 1


class ChartWidget(Widget):
    """One chart in a titled frame."""

    def __init__(self, chart: Chart, turn: str) -> None:
        super().__init__()
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
        nothing: the text shown while there are no charts.
        scrolls: whether the charts that do not fit can be scrolled to; otherwise they are left out.
    """

    def __init__(
        self,
        sections: tuple[str, ...],
        view: RunView,
        nothing: str,
        *,
        id: str,
        scrolls: bool = True,
    ) -> None:
        super().__init__(id=id, can_focus=scrolls)
        self.sections = sections
        self.nothing = nothing
        self.scrolls = scrolls
        self.turn = view.turn
        self.charts = self._charts_of(view)

    def compose(self) -> ComposeResult:
        """Yield the charts, or the text for none."""
        if not self.charts:
            yield Drawing(lambda *_: Content.styled(self.nothing, MUTED), RunView(""))
        for chart in self.charts:
            yield ChartWidget(chart, self.turn)

    def show(self, view: RunView) -> None:
        """Show another view; charts come and go with its metrics."""
        self.turn = view.turn
        self.charts = self._charts_of(view)
        widgets = list(self.query(ChartWidget))
        if [widget.chart.title for widget in widgets] == [chart.title for chart in self.charts]:
            for widget, chart in zip(widgets, self.charts, strict=True):
                widget.show(chart)
        else:
            self.refresh(recompose=True)
            self.call_after_refresh(self._arrange)

    def on_resize(self, event: Resize) -> None:
        """Fit columns and rows to the size."""
        self._arrange()

    def _charts_of(self, view: RunView) -> list[Chart]:
        found = chart_sections(view)
        return [chart for title in self.sections for chart in found.get(title, [])]

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
    """The panels and, on a tall screen, as many curves below them as fit."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.view = view

    def compose(self) -> ComposeResult:
        """Yield the panels and the curves."""
        yield Drawing(panels.warnings_panel, self.view, id="warnings")
        yield Drawing(actors_panel, self.view, title="Actors", id="actors")
        with Grid(id="panels"):
            for name, title, panel in PANELS:
                yield Drawing(panel, self.view, title=title, id=name)
        yield ChartsView(CURVES, self.view, "", id="first-curves", scrolls=False)

    def show(self, view: RunView) -> None:
        """Show another view."""
        self.view = view
        self._hide_empty_panels()
        for drawing in self.query(Drawing):
            drawing.show(view)
        self.query_one(ChartsView).show(view)

    def on_mount(self) -> None:
        """Hide the panels that are empty or of another kind of run."""
        self._hide_empty_panels()

    def _hide_empty_panels(self) -> None:
        self.query_one("#actors").display = bool(self.view.actors)
        self.query_one("#warnings").display = bool(self.view.warnings())
        is_tuning = self.view.tuning is not None
        for names, shown in ((OF_TUNING, is_tuning), (NOT_OF_TUNING, not is_tuning)):
            for name in names:
                self.query_one(f"#{name}").display = shown


class TableView(VerticalScroll):
    """One drawing in a scrollable frame."""

    def __init__(self, draw: Draw, view: RunView, *, title: str, id: str) -> None:
        super().__init__(id=id)
        self.border_title = title
        self.drawing = Drawing(draw, view)

    def compose(self) -> ComposeResult:
        """Yield the drawing."""
        yield self.drawing

    def show(self, view: RunView) -> None:
        """Show another view."""
        self.drawing.show(view)


class GameView(VerticalScroll):
    """The last finished game. A visible game stays until the reader asks for a newer one."""

    def __init__(self, view: RunView, *, id: str) -> None:
        super().__init__(id=id)
        self.newest: LoggedEpisode | None = view.game
        self.shown: LoggedEpisode | None = view.game
        self.kind, self.turn = "game", view.turn
        self.drawing = Drawing(lambda _, room: game_text(self.shown, room.width), view)

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
