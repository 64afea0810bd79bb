"""How every command ends: docs/errors.md says more."""

from enum import IntEnum


class Exit(IntEnum):
    """How every command ends."""

    DONE = 0
    FAILED = 1
    """It could not finish; its line says why, and whether anything is kept."""
    BAD_INPUT = 2
    FOUND = 3
    """Only of ``doctor``: something stands out in the run."""
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """Whoever read the output, such as ``head``, has closed it."""
