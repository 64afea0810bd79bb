"""RolloutFile: rollouts that are kept one by one, while an iteration is sampled."""

from pathlib import Path

import msgspec

from selfplay.core import Rollout, SelfplayError
from selfplay.finetune.growing_file import GrowingFile


class _Line(msgspec.Struct):
    """The rollout of row ``index`` of an iteration."""

    index: int
    rollout: Rollout


class RolloutFile:
    """The rollouts of an iteration so far.

    Args:
        path: the file, which is created with the first rollout.
    """

    def __init__(self, path: Path) -> None:
        self._lines = GrowingFile(path, _Line)

    def read(self) -> dict[int, Rollout]:
        """Return the rollouts by row.

        Raises:
            InputError: a line is damaged.
        """
        return {line.index: line.rollout for line in self._lines.read()}

    def append(self, index: int, rollout: Rollout) -> None:
        """Add a rollout; a kill after this returns does not lose it. Call :meth:`read` first.

        Raises:
            SelfplayError: the rollout holds what JSON cannot represent.
            OSError: the file cannot be written.
        """
        try:
            self._lines.append(_Line(index, rollout))
        except (ValueError, TypeError) as error:
            raise SelfplayError(f"rollout {rollout.id} cannot be written as JSON: {error}") from error
