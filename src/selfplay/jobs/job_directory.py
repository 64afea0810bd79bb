"""Open a directory of files and jobs for one server."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from selfplay.core import InputError
from selfplay.core.files import LOCK, lock_directory
from selfplay.jobs.files import MAX_STORED_BYTES, FileStore
from selfplay.jobs.launch import Launch, LocalWorker
from selfplay.jobs.models import CheckedLoader, JobModels
from selfplay.jobs.queue import JobQueue
from selfplay.jobs.service import BaseModel, JobService
from selfplay.jobs.store import JobStore
from selfplay.learning.fine_tuning.outcome import SAVE_SECONDS

FILES, JOBS = "files", "jobs"
"""What a server keeps in its directory, beside the lock."""


class JobDirectory:
    """The files and jobs of a directory, which no other server may open meanwhile.

    Args:
        directory: where they are; it is created.
        checked_loader: serves the models that jobs make.
        base: the base model, which is served too.
        adapters: directories of the adapters that are served from the start.
        aliases: additional names of models.
        say: prints a line for whoever runs the server.
        launch: starts the process that trains a job.
        save_seconds: at most so much work of a job is lost by a kill.
        max_stored_bytes: maximum size of all files together.

    Raises:
        InputError: the directory cannot be used, is not a server's, or is in use.
    """

    def __init__(
        self,
        directory: Path,
        checked_loader: CheckedLoader,
        base: BaseModel,
        *,
        adapters: Mapping[str, Path],
        aliases: Mapping[str, str],
        say: Callable[[str], None],
        launch: Launch = LocalWorker.start,
        save_seconds: float = SAVE_SECONDS,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        _check_own(directory)
        self._lock = _lock(directory)
        try:
            files = FileStore(directory / FILES, max_stored_bytes, say)
            jobs = JobStore(directory / JOBS, say)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _unusable(directory, error) from error
            raise
        queue = JobQueue(jobs, files, JobModels(checked_loader), base.served, launch, say)
        self.service = JobService(files, jobs, queue, base, adapters, aliases, save_seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work on jobs while the body runs; then let other servers open the directory."""
        try:
            async with self.service.queue.running():
                yield
        finally:
            os.close(self._lock)


def _check_own(directory: Path) -> None:
    """Raise an InputError if a directory holds something else than files and jobs of a server."""
    try:
        names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    except OSError as error:
        raise _unusable(directory, error) from error
    own = {FILES, JOBS, LOCK}
    if names - own and not own <= names:
        problem = f"{directory} is not a server's directory of jobs: it holds {min(names - own)!r}"
        raise InputError("--jobs", problem, "Name a new directory")


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock_directory(directory)
    except BlockingIOError as error:
        problem = f"{directory} is in use by another server"
        raise InputError("--jobs", problem, "Choose another directory, or end that server.") from error
    except OSError as error:
        raise _unusable(directory, error) from error


def _unusable(directory: Path, error: OSError) -> InputError:
    return InputError("--jobs", f"{directory} cannot be used ({error.strerror})", "Choose another directory.")
