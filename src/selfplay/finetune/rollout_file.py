"""RolloutFile: rollouts that are kept one by one, while an iteration is sampled."""

from pathlib import Path

import msgspec

from selfplay.core import InputError, Rollout, SelfplayError
from selfplay.core.files import append_at


class _Line(msgspec.Struct):
    """The rollout of row ``index`` of an iteration."""

    index: int
    rollout: Rollout


class RolloutFile:
    """A file of JSON lines that grows. A line that a kill cut is as if it had not been written.

    Args:
        path: the file, which is created with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0

    def read(self) -> dict[int, Rollout]:
        """Return the rollouts by row.

        Raises:
            InputError: a line is damaged.
        """
        content = self.path.read_bytes() if self.path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        rollouts = {}
        for number, line in enumerate(content[: self._end].splitlines(), 1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise InputError(
                    f"{self.path}, line {number}", f"the line is damaged: {error}", "Delete the line"
                ) from None
            rollouts[entry.index] = entry.rollout
        return rollouts

    def append(self, index: int, rollout: Rollout) -> None:
        """Add a rollout; a kill after this returns does not lose it. Call :meth:`read` first.

        Raises:
            SelfplayError: the rollout holds what JSON cannot represent.
            OSError: the file cannot be written.
        """
        try:
            line = msgspec.json.encode(_Line(index, rollout)) + b"\n"
        except (ValueError, TypeError) as error:
            raise SelfplayError(f"rollout {rollout.id} cannot be written as JSON: {error}") from error
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            append_at(file, self._end, line)
        self._end += len(line)
