"""Reads the files of a run's evaluations, and reads them again when they change."""

from pathlib import Path

from selfplay.read.evaluations import Evaluation
from selfplay.read.files import Folder, decoded, number_of

FILES_AT_A_TIME = 50
"""The number of files read at a time."""


class EvaluationFiles:
    """Follows the directory ``evaluation/``. Files that are not evaluations are skipped.

    Args:
        directory: it need not exist yet.
        whole: keep the long fields: a policy with its observations, and the values of a measure.
    """

    def __init__(self, directory: Path, *, whole: bool = False) -> None:
        self.folder = Folder(directory)
        self.whole = whole
        self.unread = 0
        self._found: dict[str, tuple[int, Evaluation | None]] = {}

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
            self._found[name] = files[name], self._read(self.folder.path / name)
        self.unread = len(names[FILES_AT_A_TIME:])

    @property
    def share_read(self) -> float:
        """The share of the files that have been read."""
        return 1 - self.unread / max(1, len(self.folder.entries))

    def evaluations(self) -> list[Evaluation]:
        """Return the evaluations by step."""
        found = [one for _, one in self._found.values() if one is not None]
        return sorted(found, key=lambda evaluation: evaluation.step)

    def _read(self, path: Path) -> Evaluation | None:
        try:
            evaluation = decoded(path.read_bytes(), Evaluation)
        except FileNotFoundError:
            return None
        if evaluation is None or not evaluation.is_consistent:
            return None
        if not self.whole:
            evaluation.values, evaluation.policy, evaluation.observations = [], {}, {}
        if evaluation.step < 0:
            evaluation.step = number_of(path)
        return evaluation
