"""Progress of the commands in the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from sparring.evaluation.progress import Count, Progress
from sparring.run.progress_views import print_line, view_of, working


class ConsoleProgress(Progress):
    """Prints lines, and shows what goes on with a bar, or as lines outside a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, line: str) -> None:
        """Print the line."""
        print_line(self.console, line)

    @contextmanager
    def doing(self, text: str, unit: str = "", total: int | None = None) -> Iterator[Count]:
        """Show a bar where something is counted, else the time that passes."""
        if not unit:
            with working(self.console, text), super().doing(text) as count:
                yield count
            return
        view = view_of(self.console, unit, total)
        view.start()
        try:
            view.doing(text)
            yield view.count
        finally:
            view.stop()
