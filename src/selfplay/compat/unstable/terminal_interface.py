"""TerminalInterface: shows a run in a terminal, given the handle of its tracker."""

from typing import Any

from selfplay.cluster.view import HandleSource


class TerminalInterface:
    """Shows a run whose tracker is a Ray actor, like UnstableBaselines' class of this name.

    Args:
        tracker: the actor's handle.
    """

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def run(self) -> None:
        """Show the run until a key ends the view; see docs/howto-watch.md."""
        from selfplay.watch import terminal_interface
        from selfplay.watch.themes import has_light_terminal

        source = HandleSource(self.tracker)
        terminal_interface.TerminalInterface(source, light=has_light_terminal()).run()
