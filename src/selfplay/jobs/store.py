"""JobStore: the jobs of a server, each in a directory of its own.

job.json       the job, written by the server only
spec.json      what is trained, written once before the job appears
training/      written by the process that trains; see ``learning.fine_tuning.job``
outcome.json   the last file of that process
worker.log     what that process printed
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from selfplay.core.files import put_in_place, remove_partial, scratch_for, write_file
from selfplay.core.manifest import seal
from selfplay.inference.server_schema import ApiError
from selfplay.jobs.files import read_record, whole_records
from selfplay.jobs.records import Job
from selfplay.jobs.spec import SPEC_FILE, TRAINING, JobSpec
from selfplay.learning.fine_tuning.metrics import Row, read_rows

JOB_FILE = "job.json"
JOB_ID = r"ftjob-[0-9a-f]+"
_TRAINED = r"step-\d+|state|[a-z]+\.(csv|json|jsonl)"
"""What the process that trains writes."""


class JobStore:
    """The jobs below one directory. It belongs to one event loop.

    Args:
        directory: where the jobs are; it is created.
        say: called with a line about a job whose file is damaged, and which is left out.
    """

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial(directory, JOB_ID)
        for job in directory.glob("ftjob-*"):
            remove_partial(job, JOB_FILE)
            remove_partial(job / TRAINING, _TRAINED)
        self.directory = directory
        found = whole_records(directory, JOB_ID, JOB_FILE, Job, say)
        self._jobs = {one.id: one for one in sorted(found, key=lambda one: one.created)}

    def all(self) -> list[Job]:
        """Return all jobs, oldest first."""
        return list(self._jobs.values())

    def get(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            ApiError: there is no such job.
        """
        if job_id not in self._jobs:
            problem = f"Could not find fine tune: {job_id:.100}"
            raise ApiError(404, problem, param="fine_tune_id", code="fine_tune_not_found")
        return self._jobs[job_id]

    def place(self, job: Job) -> Path:
        """Return a job's directory."""
        return self.directory / job.id

    def add(self, job: Job, spec: JobSpec) -> None:
        """Store a new job, whole or not at all."""
        scratch = scratch_for(self.place(job))
        (scratch / SPEC_FILE).write_bytes(msgspec.json.encode(spec))
        (scratch / JOB_FILE).write_bytes(msgspec.json.encode(job))
        seal(scratch, names=(SPEC_FILE,))  # the job itself changes
        put_in_place(scratch, self.place(job))
        self._jobs[job.id] = job

    def save(self, job: Job) -> None:
        """Write a job that has changed."""
        write_file(self.place(job) / JOB_FILE, msgspec.json.encode(job))

    def spec(self, job: Job) -> JobSpec:
        """Return what a job trains."""
        return read_record(self.place(job) / SPEC_FILE, JobSpec)

    def rows(self, job: Job) -> list[Row]:
        """Return the metrics of a job's steps so far."""
        return read_rows(self.place(job) / TRAINING)
