"""What a command shows in the terminal while it works, and what it imports for a run."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from sparring.config import Config
from sparring.evaluation.match import Count, Progress
from sparring.run.progress_views import print_line, view_of, working
from sparring.run.start import Runtime


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


def typed(question: str, console: Console) -> str:
    """Return the line that the person types, stripped; an empty one at the end of the input."""
    try:
        return console.input(question).strip()
    except EOFError:
        console.print()
        return ""


def runtime_of(config: Config, progress: Progress) -> Runtime:
    """Import what trains a configuration's run where it takes place, which takes seconds, and return that."""
    if config.run.runtime == "local":
        with progress.doing("importing torch"):
            from sparring.run.single_process import SingleProcess
        return SingleProcess()
    with progress.doing("importing torch and Ray"):
        from sparring.cluster.connect import import_ray

        import_ray(silent=True)
        from sparring.cluster.run import Cluster
    return Cluster()
