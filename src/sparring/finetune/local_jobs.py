"""LocalJobs: fine-tuning jobs of this process, with the files and workers of ``sparring serve``.
The directory can be served later with ``--jobs``."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO

from pydantic import ValidationError

from sparring.config.problems import first_in_short
from sparring.core import SparringError
from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.schema import CreateJob
from sparring.finetune.jobs.service import JobService
from sparring.finetune.providers import (
    NAME_FIELD,
    FineTuneJobError,
    Job,
    JobProvider,
    JobRequest,
    body_of,
    check_identity,
    file_name_of,
    job_of,
)


class LocalJobs(JobProvider):
    """Jobs of a service that is open while :meth:`running` runs."""

    def __init__(self, open_service: Callable[[], JobService], least_examples: int) -> None:
        self.open_service = open_service
        self.least_examples = least_examples
        self._service: JobService | None = None

    @property
    def service(self) -> JobService:
        """The open service."""
        if self._service is None:
            raise RuntimeError("jobs are made while the provider is running")
        return self._service

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work on jobs while the body runs. Raises InputError: the directory cannot be used."""
        self._service = self.open_service()
        try:
            async with self._service.running():
                yield
        finally:
            self._service = None

    async def upload(self, name: str, examples: bytes) -> str:
        """Store a file of examples."""
        file_name = file_name_of(name, examples)
        for file in self.service.files.all():
            if file.filename == file_name:
                return file.id
        try:
            return (await self.service.files.add(file_name, len(examples), BytesIO(examples))).id
        except (ApiError, OSError) as error:
            raise SparringError(f"the file cannot be stored: {error}") from error

    async def create(self, request: JobRequest, file: str) -> Job:
        """Make a job."""
        for job in self.service.jobs.all():
            if (job.metadata or {}).get(NAME_FIELD) == request.name:
                check_identity(request, job.metadata or {})
                return job_of(job.to_object())
        try:
            body = CreateJob.model_validate(body_of(request, file))
            return job_of(self.service.create(body).to_object())
        except ApiError as error:
            raise FineTuneJobError(f"job {request.name} cannot be created: {error.message}") from error
        except ValidationError as error:
            problem = first_in_short(error)
            raise FineTuneJobError(f"job {request.name} cannot be created: {problem}") from error
        except OSError as error:
            raise SparringError(f"job {request.name} cannot be stored: {error}") from error

    async def status(self, job_id: str) -> Job:
        """Return what is known of a job."""
        try:
            return job_of(self.service.jobs.get(job_id).to_object())
        except ApiError:
            return Job(job_id, "not_found")

    async def progress(self, job_id: str) -> str:
        """Return the newest event of a job."""
        job = self.service.jobs.get(job_id)
        return str(job.event_objects(self.service.jobs.rows(job))[0]["message"])
