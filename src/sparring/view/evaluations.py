"""The evaluations of a run, read again and again: every figure by update."""

from pathlib import Path

from sparring.evaluation.figures import (
    DRAWS,
    REWARD,
    WINS,
    Figure,
    FigureName,
    figures_of,
)
from sparring.evaluation.results import EvaluationResult, NashConvResult, decoded_evaluation
from sparring.view.files import Folder

FILES_AT_A_TIME = 50
"""The number of files read at a time."""

Figures = dict[FigureName, dict[int, Figure]]
"""The figures of a run's evaluations, by name and by the update after which they were measured."""


class EvaluationFiles:
    """Follows ``evaluation/`` or ``tasks/`` of a run. Files that are no evaluations, or damaged, are skipped.

    Args:
        directory: it need not exist yet.
        whole: keep the results, which may be long: a policy with its observations, the values of a measure.
    """

    def __init__(self, directory: Path, *, whole: bool = False) -> None:
        self.folder = Folder(directory)
        self.whole = whole
        self.unread = 0
        self._found: dict[str, tuple[int, int, EvaluationResult | None, list[Figure]]] = {}

    def read(self) -> None:
        """Read some of the new or changed files; ``unread`` is then the number of the others.

        Raises:
            OSError: the directory exists but cannot be read.
        """
        if self.folder.look():
            for gone in self._found.keys() - self.folder.entries.keys():
                del self._found[gone]
        files = self.folder.entries
        names = [
            name
            for name, stamp in sorted(files.items())
            if name.endswith(".json") and self._found.get(name, (-1,))[0] != stamp
        ]
        for name in names[:FILES_AT_A_TIME]:
            self._found[name] = files[name], *self._read(self.folder.path / name)
        self.unread = len(names[FILES_AT_A_TIME:])

    @property
    def share_read(self) -> float:
        """The share of the files that have been read."""
        return 1 - self.unread / max(1, len(self.folder.entries))

    def figures(self) -> Figures:
        """Return the figures, each by update."""
        found: Figures = {}
        for _, step, _, figures in sorted(self._found.values(), key=lambda one: one[1]):
            for figure in figures:
                found.setdefault(figure.name, {})[step] = figure
        return found

    def damaged(self) -> list[str]:
        """Return the files that are no evaluations, or damaged, by their paths in the run."""
        damaged = sorted(name for name, (_, step, _, _) in self._found.items() if step < 0)
        return [f"{self.folder.path.name}/{name}" for name in damaged]

    def result(self, name: str) -> EvaluationResult | None:
        """Return what a file holds; ``None`` if it is missing or damaged, or results are not kept."""
        return self._found[name][2] if name in self._found else None

    def exact(self) -> dict[str, dict[int, NashConvResult]]:
        """Return the exact evaluations by environment and update; none unless results are kept."""
        found: dict[str, dict[int, NashConvResult]] = {}
        for _, step, result, _ in sorted(self._found.values(), key=lambda one: one[1]):
            if isinstance(result, NashConvResult):
                found.setdefault(result.env_id, {})[step] = result
        return found

    def _read(self, path: Path) -> tuple[int, EvaluationResult | None, list[Figure]]:
        try:
            step, result = decoded_evaluation(path.read_bytes())
            return step, result if self.whole else None, figures_of(result)
        except (FileNotFoundError, ValueError):
            return -1, None, []


def of_measure(figures: Figures, *measures: str) -> Figures:
    """Return the figures of these measures, such as ``win rate``, whoever was played."""
    return {name: series for name, series in figures.items() if name.measure in measures}


def of_program(figures: Figures) -> Figures:
    """Return a program's own measures."""
    return {name: series for name, series in figures.items() if not name.env_id}


def of_tasks(figures: Figures, *measures: str) -> Figures:
    """Return the figures of tasks, or only those of these measures."""
    return {
        name: series
        for name, series in figures.items()
        if name.is_of_task and (not measures or name.measure in measures)
    }


def decisive(figures: Figures) -> Figures:
    """Return the figure that says how good the policy is in each match: its wins or its mean reward.

    If all games were draws, as they are where all players get the same, wins say nothing.
    """
    found: Figures = {}
    for name, series in of_measure(figures, WINS).items():
        drawn = figures.get(name._replace(measure=DRAWS), {})
        if drawn and all(one.value == 1 for one in drawn.values()):
            name = name._replace(measure=REWARD)
            series = figures.get(name, {})
        found[name] = series
    return found


def match_title(env_id: str, opponent: str) -> str:
    """Return what was played against whom; a one-player game is played alone."""
    return f"{env_id} against {opponent}" if opponent else f"{env_id} alone"
