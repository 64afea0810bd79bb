"""A disk that is full after some bytes: the size that a file of this process may have."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of any file fail with an OSError, after what still fitted."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@contextmanager
def nearly_full_disk(journal: Path, room: int | None, *, new: bool = False) -> Iterator[None]:
    """There is room for ``room`` more bytes in a journal's entries, or in a new file; ``None`` for enough."""
    if room is None:
        yield
        return
    entries = [] if new else sorted(journal.glob("entries-*.jsonl"))
    with files_no_longer_than(room + (entries[-1].stat().st_size if entries else 0)):
        yield
