"""Locks of open files, which other processes respect and which end with the process that holds them."""

import errno
import os
import sys

if sys.platform == "win32":
    import msvcrt

    _HELD = (errno.EACCES, errno.EDEADLK)
    """The errors of a lock that another holds, at once and after ten seconds."""
    _PLACE = 1 << 30
    """The byte that is locked: beyond what a file holds, because nobody else may read it meanwhile."""

    def lock(descriptor: int, *, wait: bool) -> None:
        """Lock an open file; raise a BlockingIOError if another holds it and this one does not ``wait``."""
        while not _try(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK):
            if not wait:
                raise BlockingIOError("another process holds the lock")

    def is_held(descriptor: int) -> bool:
        """Return whether an open file is locked by another process."""
        if not _try(descriptor, msvcrt.LK_NBLCK):
            return True
        _try(descriptor, msvcrt.LK_UNLCK)
        return False

    def _try(descriptor: int, mode: int) -> bool:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        except OSError as error:
            if error.errno not in _HELD:
                raise
            return False
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)
        return True

else:
    import fcntl

    def lock(descriptor: int, *, wait: bool) -> None:
        """Lock an open file; raise a BlockingIOError if another holds it and this one does not ``wait``."""
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_held(descriptor: int) -> bool:
        """Return whether an open file is locked by another process."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
