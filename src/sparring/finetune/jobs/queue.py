"""JobQueue: check jobs' files, train jobs one at a time in a process, and serve their models.

A status is written before anything that follows from it is done, so a server that was killed continues at its
next start: files are checked again, and a job that was running continues from its last saved state, or from
its outcome.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from sparring.core import InputError, SparringError
from sparring.core.errors import reason_of
from sparring.core.manifest import Expectation
from sparring.engine.adapters import DeliveryError, Publisher
from sparring.engine.server_http import ApiError
from sparring.finetune.jobs.records import (
    CANCELLED,
    FAILED,
    LOG_FILE,
    OUTCOME_FILE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TRAINING,
    UNFINISHED,
    VALIDATING,
    JobError,
    Result,
    StoredJob,
)
from sparring.finetune.jobs.schema import read_conversations, read_preferences
from sparring.finetune.jobs.store import FileStore, JobStore, read_record
from sparring.learn.fine_tuning.examples import WrongLine
from sparring.learn.fine_tuning.settings import RESULTS_FILE, Outcome

LAST_CHARACTERS = 2000


@dataclass(frozen=True)
class Crash:
    """Why a process that trains crashed, and whether something killed it."""

    reason: str
    killed: bool = False


class Worker(Protocol):
    """A process that trains one job and leaves ``outcome.json`` in the job's directory."""

    async def wait(self) -> Crash | None:
        """Wait for its end; return why it crashed, if it did."""

    def kill(self) -> None:
        """End it at once."""


Launch = Callable[[Path], Awaitable[Worker]]
"""Starts the worker of the job in a directory."""


class LocalWorker:
    """A worker on this machine; see ``worker``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, directory: Path) -> "LocalWorker":
        """Start the worker of the job in ``directory``."""
        log = directory / LOG_FILE
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "sparring.finetune.jobs.worker", str(directory)),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the server, which then ends this process
            )
        return cls(process, log)

    async def wait(self) -> Crash | None:
        """Wait for the end; see :class:`Worker`."""
        status = await self._process.wait()
        if status == 0:
            return None
        if status < 0:
            return Crash(f"the process that trains was ended by signal {-status}", killed=True)
        lines = self._log.read_text(errors="replace")[-LAST_CHARACTERS:].split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return Crash(said or f"the process that trains ended with status {status}")

    def kill(self) -> None:
        """End the process, if it has not ended."""
        if self._process.returncode is None:
            self._process.kill()


MAX_STARTS = 4
"""How often a process that is killed, for example for lack of memory, is started by one server."""
RETRY_SECONDS, MAX_RETRIES = 60.0, 60
"""After an error that is no fault of a job, such as a full disk, it is tried again: when, and how often."""


class JobQueue:
    """The jobs of one base model at work, on one event loop; jobs of another ``base`` wait until a server
    serves it. ``say`` prints a line for whoever runs the server."""

    def __init__(
        self,
        jobs: JobStore,
        files: FileStore,
        publisher: Publisher,
        base: str,
        launch: Launch,
        say: Callable[[str], None],
    ) -> None:
        self.jobs = jobs
        self.files = files
        self.publisher = publisher
        self.base = base
        self.launch = launch
        self.say = say
        self._checking: set[asyncio.Task[None]] = set()
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._retries: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._worker: Worker | None = None
        self._working_on: StoredJob | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the models of finished jobs, and work on the others while the body runs."""
        for job in self._own():
            try:
                await self._serve(job)
            except SparringError as error:
                self.say(f"note: {job.model_name} is not served ({error})")
            if job.status == VALIDATING:
                self.submit(job)
        working = asyncio.create_task(self._work())
        try:
            yield
        finally:
            for timer in self._resting.values():
                timer.cancel()
            tasks = [working, *self._checking]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, job: StoredJob) -> None:
        """Check the files of a new job, and queue it."""
        task = asyncio.create_task(self._check(job))
        self._checking.add(task)
        task.add_done_callback(partial(self._checked, job))

    def cancel(self, job: StoredJob) -> None:
        """Cancel a job. Raises ApiError: it has ended."""
        if job.status not in UNFINISHED:
            raise ApiError(400, f"{job.id} has ended already (its status is {job.status})")
        self._end(job, CANCELLED, "The job was cancelled")
        if job is self._working_on and self._worker is not None:
            self._worker.kill()

    def withdraw(self, names: Iterable[str]) -> None:
        """Stop serving models; those that are not served are passed over."""
        for name in names:
            if name in self.publisher.names():
                self.publisher.withdraw(name)

    def _own(self) -> list[StoredJob]:
        return [job for job in self.jobs.all() if job.base.served == self.base]

    async def _check(self, job: StoredJob) -> None:
        error = await asyncio.to_thread(_wrong_line, job)
        if job.status != VALIDATING:
            return
        if error is not None:
            self._fail(job, error)
            return
        job.status = QUEUED
        job.say("Files validated, moving job to queued state")
        self.jobs.save(job)
        self._news.set()

    def _checked(self, job: StoredJob, task: asyncio.Task[None]) -> None:
        self._checking.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._rest(job, error)

    def _rest(self, job: StoredJob, error: Exception) -> None:
        """Go on with other jobs after an error that is no fault of this job, and try it again later."""
        if job.status not in UNFINISHED:  # cancelled meanwhile
            return
        self._retries[job.id] += 1
        if self._retries[job.id] <= MAX_RETRIES:
            loop = asyncio.get_running_loop()
            self._resting[job.id] = loop.call_later(RETRY_SECONDS, self._wake, job)
            self.say(f"note: {job.id} is tried again in {RETRY_SECONDS:g} s ({reason_of(error)})")
            return
        try:
            self._fail(job, f"The server cannot finish it: {reason_of(error)}")
        except OSError as unwritable:
            self.say(f"note: the end of {job.id} cannot be written ({reason_of(unwritable)})")

    def _wake(self, job: StoredJob) -> None:
        del self._resting[job.id]
        if job.status == VALIDATING:
            self.submit(job)
        self._news.set()

    async def _work(self) -> None:
        """Train jobs, oldest first, those first that were interrupted."""
        while True:
            self._news.clear()
            waiting = [job for job in self._own() if job.id not in self._resting]
            ready = [job for status in (RUNNING, QUEUED) for job in waiting if job.status == status]
            if not ready:
                await self._news.wait()
                continue
            try:
                await self._train(ready[0])
            except Exception as error:  # noqa: BLE001 (the other jobs go on)
                self._rest(ready[0], error)

    async def _train(self, job: StoredJob) -> None:
        started = "continues from its last saved step" if job.status == RUNNING else "started"
        job.say(f"Fine-tuning job {started}")
        job.status = RUNNING
        self.jobs.save(job)
        place = self.jobs.place(job) / OUTCOME_FILE
        crash = None
        for _ in range(MAX_STARTS):
            if job.status != RUNNING or place.is_file():
                break
            crash = await self._run_worker(job)
            if crash is None or not crash.killed:
                break
        if job.status != RUNNING:  # cancelled meanwhile
            return
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

    async def _run_worker(self, job: StoredJob) -> Crash | None:
        worker = await self.launch(self.jobs.place(job))
        self._worker, self._working_on = worker, job
        try:
            if job.status != RUNNING:  # cancelled while the process started
                worker.kill()
            return await worker.wait()
        finally:
            worker.kill()
            self._worker, self._working_on = None, None

    async def _finish(self, job: StoredJob, outcome: Outcome) -> None:
        """Serve the models, store the results, and say so. All of it may be repeated."""
        done = msgspec.structs.replace(job, status=SUCCEEDED, outcome=outcome)
        try:
            await self._serve(done)
        except (InputError, DeliveryError) as error:
            if job.status == RUNNING:
                self._fail(job, f"The model cannot be served: {reason_of(error)}")
            return
        if job.status != RUNNING:  # cancelled meanwhile
            self.withdraw(done.names())
            return
        try:
            self.files.put_result(job.result_file, self.jobs.place(job) / TRAINING / RESULTS_FILE)
        except OSError:
            self.withdraw(done.names())
            raise
        job.status, job.outcome = SUCCEEDED, outcome
        job.say(f"New fine-tuned model created: {job.model_name}")
        self._end(job, SUCCEEDED, "The job has successfully completed")

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
            self.withdraw(published)
            raise

    def _fail(self, job: StoredJob, problem: JobError | str) -> None:
        error = JobError("server_error", problem) if isinstance(problem, str) else problem
        self._end(job, FAILED, error.message, error)

    def _end(self, job: StoredJob, status: str, message: str, error: JobError | None = None) -> None:
        job.end(status, message, error)
        self.jobs.save(job)


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
