"""TerminalInterface: a live view of a run in the terminal, from any source of views."""

import asyncio
import os
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Footer

from sparring.view.run_view import RunView, ViewSource
from sparring.view.watch.panels import population_panel, ratings_panel
from sparring.view.watch.widgets import (
    CURVES,
    RATES,
    ChartsView,
    GameView,
    HeaderLine,
    OverviewView,
    PanelsView,
)

DARK, LIGHT = "textual-dark", "textual-light"
PERIOD = 1.0
"""Seconds between two reads of the source."""
CATCH_UP = 0.02
"""Seconds between two reads while there is more to read."""
VIEWS = ("overview", "curves", "ratings", "population", "rates", "game")
NOT_OF_TUNING = ("ratings", "population")
"""The views that a run through fine-tuning jobs does not have."""


class TerminalInterface(App[None]):
    """Shows a run until the user quits; see docs/howto-watch.md for the views.

    The source is read in a thread, so that a slow source never blocks the keyboard. The theme is light if
    COLORFGBG says that the terminal is.
    """

    CSS = """
    Screen { background: $background; color: $foreground; }
    HeaderLine { height: 1; dock: top; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    Footer { background: $panel; }
    ContentSwitcher { height: 1fr; }

    .framed {
        border: round $foreground 25%;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $primary;
        padding: 0 1;
    }

    VerticalScroll {
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-color: $foreground 25%;
    }
    ChartsView { layout: grid; }
    #first-curves { display: none; height: 1fr; min-height: 12; }
    .-tall #first-curves { display: block; }
    """
    TITLE = "sparring watch"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"show_view('{name}')", name.capitalize())
            for number, name in enumerate(VIEWS, start=1)
        ),
        Binding("n", "newest_game", show=False),
        Binding("t", "switch_theme", "Theme"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, source: ViewSource) -> None:
        super().__init__()
        self.source = source
        self.view = RunView("", share_read=0.0)
        self.header = HeaderLine(self.view)
        self._looking = False

    def compose(self) -> ComposeResult:
        """Yield the header, the views (of which one is visible) and the footer with the keys."""
        yield self.header
        with ContentSwitcher(initial=VIEWS[0]):
            yield OverviewView(self.view, id="overview")
            yield ChartsView(CURVES, self.view, id="curves")
            yield PanelsView({"Ratings": ratings_panel}, self.view, id="ratings")
            yield PanelsView({"Population": population_panel}, self.view, id="population")
            yield ChartsView(RATES, self.view, id="rates")
            yield GameView(self.view, id="game")
        yield Footer()

    def on_mount(self) -> None:
        """Read the source now and then every second."""
        background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        self.theme = LIGHT if background in ("7", "15") else DARK
        self.current().focus()
        self._look_soon()
        self.set_interval(PERIOD, self._look_soon)

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self.run_worker(self._look())

    async def _look(self) -> None:
        try:
            await self.look()
        finally:
            self._looking = False
        if self.view.share_read < 1:
            self.set_timer(CATCH_UP, self._look_soon)

    async def look(self) -> None:
        """Read the source once and show the result."""
        view = await asyncio.to_thread(self.source.read)
        changed, self.view = view != self.view, view
        if changed:
            self.refresh_bindings()
        if not self.header.is_attached:
            return  # The app was closed in the meantime.
        self.header.show(view)
        if changed:
            self.current().show(view)

    def current(self) -> PanelsView | ChartsView | GameView:
        """Return the visible view."""
        found = self.query_one(ContentSwitcher).visible_content
        assert isinstance(found, PanelsView | ChartsView | GameView)
        return found

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the views that a run through fine-tuning jobs does not have."""
        return not (self.view.tuning is not None and action == "show_view" and parameters[0] in NOT_OF_TUNING)

    def action_show_view(self, name: str) -> None:
        """Switch to a view and draw it, because only the visible view is kept up to date."""
        self.query_one(ContentSwitcher).current = name
        if isinstance(found := self.current(), GameView):
            found.shown = None
        self.current().show(self.view)
        self.current().focus()

    def action_newest_game(self) -> None:
        """Show the newest game instead of the one on the screen."""
        self.query_one(GameView).show_newest()

    def action_switch_theme(self) -> None:
        """Switch between the dark and the light theme."""
        self.theme = DARK if self.theme == LIGHT else LIGHT
