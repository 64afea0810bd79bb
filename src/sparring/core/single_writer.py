"""Epoch: the number of a run's start. Processes left over from an earlier start write nothing more."""

from dataclasses import dataclass
from pathlib import Path

from sparring.core.errors import InputError, SparringError
from sparring.core.files import write_file

EPOCH_FILE = ".epoch"


@dataclass(frozen=True)
class Epoch:
    """A number that each start of a run increments, and that is checked before shared state is written.

    The lock of a run belongs to one process, and on some file systems it holds on one machine only. After a
    cluster loses its head node, its other nodes continue for a while, and the run may meanwhile be resumed
    elsewhere.

    Attributes:
        file: ``.epoch`` of the run.
        number: the number of this start, from 1.
    """

    file: Path
    number: int

    @classmethod
    def begin(cls, run: Path) -> "Epoch":
        """Begin a new epoch of the run; call it with the run locked.

        Raises:
            InputError: the number of the last start is damaged.
            OSError: the directory cannot be written.
        """
        file = run / EPOCH_FILE
        number = _read_number(file) + 1 if file.exists() else 1
        write_file(file, str(number).encode())
        return cls(file.absolute(), number)

    def is_over(self) -> bool:
        """Whether the run has been started again since; raise an InputError if the file is damaged."""
        return _read_number(self.file) != self.number

    def check(self) -> None:
        """Raise a SparringError if the run has been started again since; otherwise as :meth:`is_over`."""
        if self.is_over():
            raise SparringError(f"{self.file.parent} was resumed by another process, so this one stops")


def _read_number(file: Path) -> int:
    try:
        return int(file.read_text())
    except ValueError as error:
        raise InputError(
            "run directory",
            f"{file} is damaged: it must contain the number of the run's starts",
            "Delete it if no other process works on the run, and resume.",
        ) from error
