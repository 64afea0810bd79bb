"""JobService: the files and jobs of one directory, which no other server may open meanwhile."""

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from sparring.core import InputError
from sparring.core.files import LOCK, lock_directory, remove_directory
from sparring.engine.adapters import FINE_TUNED, Publisher
from sparring.engine.server_http import ApiError, model_not_found
from sparring.finetune.jobs.queue import JobQueue, Launch, train_in_process
from sparring.finetune.jobs.records import (
    FINE_TUNE,
    ORGANIZATION,
    TRAINING,
    UNFINISHED,
    Examples,
    ServedBase,
    StoredJob,
)
from sparring.finetune.jobs.schema import CreateJob
from sparring.finetune.jobs.store import MAX_STORED_BYTES, FileStore, JobStore, new_id
from sparring.learn.fine_tuning.settings import SAVE_SECONDS

FILES, JOBS = "files", "jobs"
"""What a server keeps in its directory, beside the lock."""


class JobService:
    """The files and jobs of one directory, on one event loop. Raises InputError: it cannot be used, is not a
    server's, or is in use.

    Args:
        directory: where they are; it is created.
        publisher: where the models that jobs make are published.
        base: the base model, which is served too.
        adapters: directories of the adapters that are served from the start; jobs may start from them.
        aliases: additional names of models.
        say: prints a line for whoever runs the server.
        launch: trains a job in a process of its own.
        save_seconds: at most so much work of a job is lost by a kill.
        max_stored_bytes: maximum size of all files together.
    """

    def __init__(
        self,
        directory: Path,
        publisher: Publisher,
        base: ServedBase,
        *,
        adapters: Mapping[str, Path],
        aliases: Mapping[str, str],
        say: Callable[[str], None],
        launch: Launch = train_in_process,
        save_seconds: float = SAVE_SECONDS,
        max_stored_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self.base = base
        self.adapters = adapters
        self.aliases = aliases
        self.save_seconds = save_seconds
        directory = directory.absolute()  # workers may have another working directory
        _check_own(directory)
        self._lock = _lock(directory)
        try:
            self.files = FileStore(directory / FILES, max_stored_bytes, say)
            self.jobs = JobStore(directory / JOBS, say)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _unusable(directory, error) from error
            raise
        self.queue = JobQueue(self.jobs, self.files, publisher, base.served, launch, say)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work on jobs while the body runs; then let other servers open the directory."""
        try:
            async with self.queue.running():
                yield
        finally:
            os.close(self._lock)

    def delete_file(self, file_id: str) -> None:
        """Delete a file. Raises ApiError: there is none, or a job needs it."""
        self.files.get(file_id)
        for job in self.jobs.all():
            if job.status in UNFINISHED and file_id in [file.id for file in job.files().values()]:
                raise ApiError(409, f"{file_id} is in use by {job.id}. Cancel that job, or wait", param="id")
        self.files.delete(file_id)

    def made(self, name: str) -> int | None:
        """Return when a job made a model, in seconds since 1970; ``None`` if no job made it."""
        return next((found for job in self.jobs.all() if (found := job.made(name)) is not None), None)

    def delete_model(self, name: str) -> None:
        """Delete a model that a job made, and stop serving it. Raises ApiError: there is none, or a job
        starts from it."""
        found = self._maker(name)
        if found is None:
            served = self.queue.publisher.names()
            if name in served:
                raise ApiError(400, f"{name} was not made by a fine-tuning job", param="model")
            raise model_not_found(name, served)
        job, directory = found
        for other in self.jobs.all():
            if other.status in UNFINISHED and other.start == name:
                problem = f"{name} is in use by {other.id}. Cancel that job, or wait"
                raise ApiError(409, problem, param="model")
        with self.jobs.changing(job) as changed:
            changed.deleted = [*job.deleted, name]
        self.queue.withdraw([name])
        remove_directory(directory)

    def create(self, request: CreateJob) -> StoredJob:
        """Store a new job and begin to check its files. Raises ApiError: the request is not possible."""
        request.check()
        settings = request.settings(secrets.randbelow(2**31))
        start = self.aliases.get(request.model, request.model)
        adapter = self._adapter(start)
        training = self._examples("training_file", request.training_file)
        validation = None
        if request.validation_file is not None:
            validation = self._examples("validation_file", request.validation_file)
        job = StoredJob(
            id=new_id("ftjob-"),
            created=time.time_ns(),
            base=self.base,
            start=start,
            start_adapter=None if adapter is None else str(adapter.absolute()),
            settings=settings,
            training_file=training,
            validation_file=validation,
            save_seconds=self.save_seconds,
            suffix=request.suffix,
            metadata=request.metadata,
            model_name=self._new_name(request.suffix or ""),
            result_file=new_id("file-"),
        )
        job.say(f"Created fine-tuning job: {job.id}")
        job.say(f"Validating training file: {request.training_file}")
        self.jobs.add(job)
        self.queue.submit(job)
        return job

    def _examples(self, param: str, file_id: str) -> Examples:
        try:
            file = self.files.get(file_id)
        except ApiError as error:
            raise ApiError(400, f"{param}: there is no file {file_id!r:.100}", param=param) from error
        if file.purpose != FINE_TUNE:
            raise ApiError(400, f"{param}: the purpose of {file_id} is {file.purpose}", param=param)
        return Examples(file_id, str(self.files.content(file_id)), file.digest)

    def _maker(self, name: str) -> tuple[StoredJob, Path] | None:
        for job in self.jobs.all():
            directory = job.names().get(name)
            if directory is not None:
                return job, self.jobs.place(job) / TRAINING / directory
        return None

    def _adapter(self, name: str) -> Path | None:
        """Return the directory of the adapter called ``name``; ``None`` for the base model."""
        if name == self.base.served:
            return None
        if name in self.adapters:
            return self.adapters[name]
        found = self._maker(name)
        if found is None:
            raise model_not_found(name, self.queue.publisher.names())
        job, directory = found
        if job.base.served != self.base.served:
            made, served = job.base.served, self.base.served
            problem = f"model: {name} is a model of {made}, but this server has {served}"
            raise ApiError(400, problem, param="model")
        return directory

    def _new_name(self, suffix: str) -> str:
        taken = {job.model_name for job in self.jobs.all()}
        while True:
            name = f"{FINE_TUNED}{self.base.served}:{ORGANIZATION}:{suffix}:{secrets.token_hex(4)}"
            if name not in taken:
                return name


def _check_own(directory: Path) -> None:
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
