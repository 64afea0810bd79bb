"""Progress: what a long measurement tells whoever waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Count = Callable[[int, int | None], None]
"""Called with how much is done and how much there is, ``None`` if that is not known."""


class Progress:
    """Tells nobody. The commands show progress in a terminal with a class of their own."""

    def say(self, line: str) -> None:
        """Tell something that is worth keeping: a note, a warning, the path of a result."""

    @contextmanager
    def doing(self, text: str, unit: str = "", total: int | None = None) -> Iterator[Count]:
        """Tell what goes on while the body runs, which may count ``total`` of some unit, such as games."""
        yield _uncounted


def _uncounted(done: int, total: int | None) -> None:
    """Tell nobody."""
