"""JobService: the files and jobs of one directory, which no other server may open meanwhile.

Jobs' files are checked, jobs are trained one at a time in a process, and their models are served. A status is
written before anything that follows from it is done, so a server that was killed continues at its next start:
files are checked again, and a job that was running continues from its last saved state, or from its outcome.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import msgspec

from sparring.core import InputError, SparringError
from sparring.core.errors import reason_of
from sparring.core.files import remove_directory
from sparring.core.manifest import Expectation
from sparring.engine.adapters import FINE_TUNED, DeliveryError, Publisher
from sparring.engine.server_errors import ApiError, model_not_found
from sparring.finetune.jobs.launch import Launch, train_in_process
from sparring.finetune.jobs.records import (
    CANCELLED,
    FAILED,
    FINE_TUNE,
    ORGANIZATION,
    OUTCOME_FILE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TRAINING,
    UNFINISHED,
    VALIDATING,
    Examples,
    JobError,
    Result,
    ServedBase,
    StoredJob,
)
from sparring.finetune.jobs.schema import CreateJob, read_conversations, read_preferences
from sparring.finetune.jobs.store import (
    FILES,
    JOBS,
    MAX_STORED_BYTES,
    FileStore,
    JobStore,
    locked,
    new_id,
    read_record,
    unusable,
)
from sparring.learn.fine_tuning.examples import WrongLine
from sparring.learn.fine_tuning.settings import RESULTS_FILE, SAVE_SECONDS, Outcome

MAX_STARTS = 4
"""How often a process that is killed, for example for lack of memory, is started by one server."""
RETRY_SECONDS, MAX_RETRIES = 60.0, 60
"""After an error that is no fault of a job, such as a full disk, it is tried again: when, and how often."""


@dataclass(eq=False, repr=False)
class JobService:
    """The files and jobs of one directory, on one event loop. Raises InputError: it cannot be used, is not a
    server's, or is in use.

    Jobs of another base model wait until a server serves it.

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

    directory: Path
    publisher: Publisher
    base: ServedBase
    _: KW_ONLY
    adapters: Mapping[str, Path]
    aliases: Mapping[str, str]
    say: Callable[[str], None]
    launch: Launch = train_in_process
    save_seconds: float = SAVE_SECONDS
    max_stored_bytes: int = MAX_STORED_BYTES

    def __post_init__(self) -> None:
        directory = self.directory.absolute()  # workers may have another working directory
        self._lock = locked(directory)
        try:
            self.files = FileStore(directory / FILES, self.max_stored_bytes, self.say)
            self.jobs = JobStore(directory / JOBS, self.say)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise unusable(directory, error) from error
            raise
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._check_turn, self._turn = asyncio.Lock(), asyncio.Lock()  # first come, first served

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the models of finished jobs, and work on the others while the body runs; then let other
        servers open the directory."""
        try:
            own = [job for job in self.jobs.all() if job.base.served == self.base.served]
            for job in own:
                try:
                    await self._serve(job)
                except SparringError as error:
                    self.say(f"note: {job.model_name} is not served ({error})")
            for job in sorted(own, key=lambda one: one.status != RUNNING):  # the interrupted one first
                if job.status in UNFINISHED:
                    self._submit(job)
            yield
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            os.close(self._lock)

    # What clients ask for.

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
            served = self.publisher.names()
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
        self._withdraw([name])
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
        self._submit(job)
        return job

    def cancel(self, job: StoredJob) -> None:
        """Cancel a job. Raises ApiError: it has ended."""
        if job.status not in UNFINISHED:
            raise ApiError(400, f"{job.id} has ended already (its status is {job.status})")
        if job.id in self._tasks:  # else its base is not served
            self._tasks[job.id].cancel()  # first: what follows fails on a full disk
        with self.jobs.changing(job) as changed:
            changed.end(CANCELLED, "The job was cancelled")

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
            raise model_not_found(name, self.publisher.names())
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

    # What jobs go through.

    def _submit(self, job: StoredJob) -> None:
        task = asyncio.create_task(self._work(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def _work(self, job: StoredJob) -> None:
        """Work on a job, and again later after an error that is no fault of the job."""
        for tried in range(MAX_RETRIES + 1):
            try:
                if job.status == VALIDATING:
                    await self._check(job)
                if job.status in UNFINISHED:
                    async with self._turn:
                        await self._train(job)
                return
            except Exception as error:  # noqa: BLE001 (the other jobs go on)
                reason = reason_of(error)
            if tried < MAX_RETRIES:
                self.say(f"note: {job.id} is tried again in {RETRY_SECONDS:g} s ({reason})")
                await asyncio.sleep(RETRY_SECONDS)
        try:
            self._fail(job, f"The server cannot finish it: {reason}")
        except OSError as unwritable:
            self.say(f"note: the end of {job.id} cannot be written ({reason_of(unwritable)})")

    async def _check(self, job: StoredJob) -> None:
        async with self._check_turn:  # files may be large
            error = await asyncio.to_thread(_wrong_line, job)
        if error is not None:
            self._fail(job, error)
            return
        with self.jobs.changing(job) as changed:
            changed.status = QUEUED
            changed.say("Files validated, moving job to queued state")

    async def _train(self, job: StoredJob) -> None:
        started = "continues from its last saved step" if job.status == RUNNING else "started"
        with self.jobs.changing(job) as changed:
            changed.say(f"Fine-tuning job {started}")
            changed.status = RUNNING
        place = self.jobs.place(job) / OUTCOME_FILE
        crash = None
        for _ in range(MAX_STARTS):
            if place.is_file():
                break
            crash = await self.launch(self.jobs.place(job))
            if crash is None or not crash.killed:
                break
        if not place.is_file():
            reason = crash.reason if crash else "the process left no outcome"
            self._fail(job, f"Training crashed: {reason}")
            return
        try:
            result = read_record(place, Result)
        except InputError as error:
            self._fail(job, str(error))
            return
        if result.outcome is None:
            self._fail(job, result.failure or "the job has no result")
        else:
            await self._finish(job, result.outcome)

    async def _finish(self, job: StoredJob, outcome: Outcome) -> None:
        """Serve the models, store the results, and say so. All of it may be repeated."""
        done = msgspec.structs.replace(job, status=SUCCEEDED, outcome=outcome)
        try:
            await self._serve(done)
        except (InputError, DeliveryError) as error:
            self._fail(job, f"The model cannot be served: {reason_of(error)}")
            return
        try:
            self.files.put_result(job.result_file, self.jobs.place(job) / TRAINING / RESULTS_FILE)
            with self.jobs.changing(job) as changed:
                changed.status, changed.outcome = SUCCEEDED, outcome
                changed.say(f"New fine-tuned model created: {job.model_name}")
                changed.end(SUCCEEDED, "The job has successfully completed")
        except OSError:
            self._withdraw(done.names())
            raise

    async def _serve(self, job: StoredJob) -> None:
        """Serve every model of a job, or none."""
        published: list[str] = []
        try:
            for name, directory in job.names().items():
                place = self.jobs.place(job) / TRAINING / directory
                await asyncio.to_thread(Expectation.must_read, place)
                await self.publisher.publish_in_background(name, place, proof=True)
                published.append(name)
        except BaseException:
            self._withdraw(published)
            raise

    def _fail(self, job: StoredJob, problem: JobError | str) -> None:
        error = JobError("server_error", problem) if isinstance(problem, str) else problem
        with self.jobs.changing(job) as changed:
            changed.end(FAILED, error.message, error)

    def _withdraw(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.publisher.names():
                self.publisher.withdraw(name)


def _wrong_line(job: StoredJob) -> JobError | None:
    read = read_preferences if job.settings.method == "dpo" else read_conversations
    for param, file in job.files().items():
        try:
            read(Path(file.path).read_bytes())
        except WrongLine as error:
            return JobError(f"invalid_{param}", str(error), param)
        except OSError as error:
            return JobError(f"invalid_{param}", reason_of(error), param)
    return None
