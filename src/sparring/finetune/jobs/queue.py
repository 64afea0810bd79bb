"""JobQueue: check jobs' files, train jobs one at a time in a process, and serve their models.

A status is written before anything that follows from it is done, so a server that was killed continues at its
next start: files are checked again, and a job that was running continues from its last saved state, or from
its outcome.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

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


Launch = Callable[[Path], Awaitable[Crash | None]]
"""Trains the job in a directory in a process of its own; returns why that crashed, if it did. The process
leaves ``outcome.json`` in the directory, and is killed if the call is cancelled."""


async def train_in_process(directory: Path) -> Crash | None:
    """Train the job in ``directory`` in a process of this machine; see ``worker``."""
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
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    if status == 0:
        return None
    if status < 0:
        return Crash(f"the process that trains was ended by signal {-status}", killed=True)
    lines = log.read_text(errors="replace")[-LAST_CHARACTERS:].split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Crash(said or f"the process that trains ended with status {status}")


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
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._check_turn, self._turn = asyncio.Lock(), asyncio.Lock()  # first come, first served

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the models of finished jobs, and work on the others while the body runs."""
        own = [job for job in self.jobs.all() if job.base.served == self.base]
        for job in own:
            try:
                await self._serve(job)
            except SparringError as error:
                self.say(f"note: {job.model_name} is not served ({error})")
        for job in sorted(own, key=lambda one: one.status != RUNNING):  # those that were interrupted first
            if job.status in UNFINISHED:
                self.submit(job)
        try:
            yield
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, job: StoredJob) -> None:
        """Bring a job to its end: check its files, train it when it is its turn, and serve its models."""
        task = asyncio.create_task(self._work(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    def cancel(self, job: StoredJob) -> None:
        """Cancel a job. Raises ApiError: it has ended."""
        if job.status not in UNFINISHED:
            raise ApiError(400, f"{job.id} has ended already (its status is {job.status})")
        if job.id in self._tasks:  # else its base is not served
            self._tasks[job.id].cancel()  # first: what follows fails on a full disk
        with self.jobs.changing(job) as changed:
            changed.end(CANCELLED, "The job was cancelled")

    def withdraw(self, names: Iterable[str]) -> None:
        """Stop serving models; those that are not served are passed over."""
        for name in names:
            if name in self.publisher.names():
                self.publisher.withdraw(name)

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
            self.withdraw(done.names())
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
            self.withdraw(published)
            raise

    def _fail(self, job: StoredJob, problem: JobError | str) -> None:
        error = JobError("server_error", problem) if isinstance(problem, str) else problem
        with self.jobs.changing(job) as changed:
            changed.end(FAILED, error.message, error)


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
