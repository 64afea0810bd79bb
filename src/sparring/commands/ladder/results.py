"""``ladder.json``: what every cell of a ladder measured, its command, and the hash of its end."""

import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError
from sparring.core.files import write_file
from sparring.evaluation.figures import NASH_CONV

RESULTS, PAGE = "ladder.json", "ladder.html"
_CPUS = Path("/proc/cpuinfo")


class Point(msgspec.Struct):
    """One evaluation: the figure after so many games, and seconds of playing and learning, if known."""

    value: float
    games: int | None = None
    seconds: float | None = None
    is_playable: bool = True


class CellResult(msgspec.Struct, kw_only=True):
    """A cell. It has no points and no hash unless its run is complete; ``problem`` is why it is not.

    ``sha256`` is that of the adapters of its last checkpoint. What others made has no recipe of ours: then
    ``recipe`` is its name.
    """

    game: str
    recipe: str
    opponents: str = ""
    seed: int
    command: str
    points: list[Point] = []
    smaller_is_better: bool = False
    is_share: bool = False
    sha256: str = ""
    problem: str = ""

    @property
    def entry(self) -> str:
        """What competes: a recipe with a rule of choosing opponents."""
        return ", ".join(filter(None, (self.recipe, self.opponents))) or "all"

    @property
    def name(self) -> str:
        """The name of the cell's run."""
        return cell_name(self.game, self.recipe, self.opponents, self.seed)


def cell_name(game: str, recipe: str, opponents: str, seed: int) -> str:
    """Return the name of a cell and of its directory."""
    return ".".join(filter(None, (game, recipe, opponents, f"seed-{seed}")))


class LadderResult(msgspec.Struct, kw_only=True):
    """All cells, and what is common to them.

    ``scales`` has for each game what its figures are divided by before games are put together: NashConv of
    uniform play, or 1 for other measures.
    """

    measure: str
    scales: dict[str, float]
    processor: str = ""
    sparring: str = ""
    torch: str = ""
    cells: list[CellResult]

    def write(self, directory: Path) -> None:
        """Write ``ladder.json``."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_file(directory / RESULTS, content + b"\n")

    @classmethod
    def read(cls, path: Path) -> "LadderResult":
        """Read a ``ladder.json``; raise an InputError if it is none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise InputError(str(path), f"cannot be read ({error.strerror})", "Name a ladder.json") from error
        except UNREADABLE as error:
            raise InputError(str(path), "is no ladder.json, or is damaged", "Name another") from error

    @property
    def smaller_is_better(self) -> bool:
        """Whether less of the measure is better."""
        return self.measure == NASH_CONV or any(cell.smaller_is_better for cell in self.cells)

    @property
    def is_share(self) -> bool:
        """Whether the measure is a share of what was counted, and is written in percent."""
        return bool(self.done) and all(cell.is_share for cell in self.done)

    @property
    def done(self) -> list[CellResult]:
        """The cells that are complete."""
        return [cell for cell in self.cells if cell.points]


def value_text(value: float, *, is_share: bool) -> str:
    """Return a figure as text, a share in percent."""
    return f"{100 * value:.1f}%" if is_share else f"{value:.3f}"


def machine() -> dict[str, str]:
    """Return what decides how sums are rounded: the processor and the versions."""
    return {"processor": _processor(), "sparring": version("sparring"), "torch": version("torch")}


def differing(first: LadderResult, second: LadderResult) -> tuple[list[str], list[str]]:
    """Return the cells that both have complete: those that end with the same bytes, and the others."""
    ends = {cell.name: cell.sha256 for cell in second.cells if cell.sha256}
    common = [cell for cell in first.cells if cell.sha256 and cell.name in ends]
    same = [cell.name for cell in common if cell.sha256 == ends[cell.name]]
    return same, [cell.name for cell in common if cell.name not in same]


def entries_of(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Return the cells by entry, in the order of the ladder."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.entry, []).append(cell)
    return found


def _processor() -> str:
    try:
        lines: Sequence[str] = _CPUS.read_text().splitlines()
    except OSError:  # it is Linux's
        lines = ()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
