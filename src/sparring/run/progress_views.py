"""Draw progress: bars in a terminal, plain lines where standard output goes to a file or a pipe."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import TimeRemainingColumn as Remaining
from rich.text import Text

from sparring.core.text import one_line, printable

FIRST_MINUTE = 60.0
SECONDS_BETWEEN_LINES = (5.0, 60.0)
"""Seconds without a line after which one says what goes on: in the first minute, and later."""
_FREE_AT_THE_EDGE = 4
"""Columns that the lowest line leaves free, so that the terminal's own ``^C`` does not start a new line."""


def print_line(console: Console, line: str) -> None:
    """Print a line that can be copied: not wrapped, without colours, and without interpreting markup."""
    console.print(Text(printable(line, keep="")), soft_wrap=True)


@contextmanager
def working(console: Console, text: str) -> Iterator[None]:
    """Show ``text`` and the time while the body runs: beside a spinner in a terminal, else as lines."""
    if not console.is_terminal:
        view = LinesView(console, "", None)
        view.start()
        try:
            view.doing(text)
            yield
        finally:
            view.stop()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task(one_line(text), total=None)
        yield


class BarsView(Progress):
    """A bar of updates, a bar of games or episodes, and below them the current activity and latest figures.

    ``unit`` is what is played, in the plural; ``steps`` is ``None`` for a match outside training.
    """

    def __init__(self, console: Console, unit: str, size: int | None, steps: int | None = None) -> None:
        self._below: dict[str, str] = {}
        super().__init__(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            _Count(),
            TimeElapsedColumn(),
            Remaining(),
            console=console,
        )
        self._updates = self.add_task("updates", total=steps, visible=steps is not None)
        self._played = self.add_task(unit, total=size)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars, then the texts, each in one line that is truncated at the terminal's width."""
        yield self.make_tasks_table(self.tasks)
        for text in self._below.values():
            if text:
                line = Text(text, no_wrap=True)
                line.truncate(self.console.width - _FREE_AT_THE_EDGE, overflow="ellipsis")
                yield line

    def doing(self, text: str) -> None:
        """Show the current activity."""
        self._below["doing"] = one_line(text)
        self.refresh()

    def passing(self, text: str) -> None:
        """Show an activity of every update."""
        self.doing(text)

    def count(self, done: int, size: int | None) -> None:
        """Show how many games or episodes are played."""
        self.update(self._played, completed=done, total=size)

    def counting(self, unit: str) -> None:
        """Restart the count, of something else."""
        self.reset(self._played, total=None, description=unit)

    def begin(self, size: int | None) -> None:
        """Restart the count."""
        self.reset(self._played, total=size)

    def updated(self, step: int, figures: str) -> None:
        """Show that an update is done."""
        self._below = {"figures": figures, "doing": ""}
        self.update(self._updates, completed=step, refresh=True)

    def stop(self) -> None:
        """Leave only the bar of updates on the screen."""
        self._below = {}
        self.update(self._played, visible=False)
        super().stop()


class LinesView:
    """Progress as plain lines, for files and pipes.

    Each activity that begins and each update is a line. Where nothing was printed for a while, a line says
    how far the count is or, if it has not moved, for how long the activity has gone on.
    """

    def __init__(self, console: Console, unit: str, size: int | None, steps: int | None = None) -> None:
        self._console = console
        self._unit = unit
        self._steps = steps
        self._step = 0
        self._doing = self._passing = ""
        self._counted = self._told = 0
        self._size = size
        self._started = self._since = self._last = monotonic()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to say what goes on where nothing else is printed."""
        threading.Thread(target=self._tell, daemon=True).start()

    def stop(self) -> None:
        """Print no more lines of this kind; those that were printed stay."""
        self._stopped.set()

    def doing(self, text: str) -> None:
        """Print the activity that begins."""
        if text and text != self._doing:
            self._print(one_line(text))
        self._begin(doing=text)

    def passing(self, text: str) -> None:
        """Note the activity: the line of the update follows."""
        self._begin(doing=self._doing, passing=text)

    def count(self, done: int, size: int | None) -> None:
        """Note how many games or episodes are played."""
        self._counted, self._size = done, size
        self.tell()

    def counting(self, unit: str) -> None:
        """Restart the count, of something else."""
        self._unit, self._counted, self._told = unit, 0, 0

    def begin(self, size: int | None) -> None:
        """Restart the count."""
        self._counted, self._told, self._size = 0, 0, size

    def tell(self) -> None:
        """Print the count or the time that has passed, unless a line was printed just now."""
        now = monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES[0 if now - self._started < FIRST_MINUTE else 1]:
            return
        activity = self._passing or self._doing
        if self._counted != self._told and not self._passing:
            size = f"/{self._size}" if self._size is not None else ""
            self._print(f"{self._unit}: {self._counted}{size}")
            self._told = self._counted
        elif activity or self._unit:
            self._print(f"{one_line(activity or self._unit)}: {now - self._since:.0f} s so far")

    def updated(self, step: int, figures: str) -> None:
        """Print that an update is done."""
        if step > self._step:
            self._print(f"update {step:>4}/{self._steps}: {figures or 'done'}")
        self._step = step
        self._begin()

    def _begin(self, doing: str = "", passing: str = "") -> None:
        if (doing, passing) != (self._doing, self._passing):
            self._since = monotonic()
        self._doing, self._passing = doing, passing

    def _tell(self) -> None:
        while not self._stopped.wait(1.0):
            self.tell()

    def _print(self, line: str) -> None:
        print_line(self._console, line)
        self._last = monotonic()


View = BarsView | LinesView


def view_of(console: Console, unit: str, size: int | None, steps: int | None = None) -> View:
    """Return the view that suits ``console``: bars for a terminal, else lines."""
    kind = BarsView if console.is_terminal else LinesView
    return kind(console, unit, size, steps)


class _Count(ProgressColumn):
    """``12/64``, or ``12`` where the total is not known."""

    def render(self, task: Task) -> Text:
        """The count of ``task``."""
        of = f"/{int(task.total)}" if task.total is not None else ""
        return Text(f"{int(task.completed)}{of}", style="progress.download")
