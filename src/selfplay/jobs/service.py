"""JobService: what the routes for files and jobs do."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selfplay.core.adapters import Quantization
from selfplay.core.files import remove_directory
from selfplay.inference.server_schema import ApiError, model_not_found
from selfplay.jobs.files import FINE_TUNE, FileStore, new_id
from selfplay.jobs.queue import JobQueue
from selfplay.jobs.records import ORGANIZATION, UNFINISHED, Job
from selfplay.jobs.schema import CreateJob
from selfplay.jobs.spec import TRAINING, JobSpec
from selfplay.jobs.store import JobStore
from selfplay.learning.fine_tuning.outcome import SAVE_SECONDS

FINE_TUNED = "ft:"
"""The beginning of the names of fine-tuned models, which no other model may have."""


@dataclass(frozen=True)
class BaseModel:
    """The base model that is served, and how another process loads it again.

    Attributes:
        served: the name that clients use.
        name: its name or directory, which is recorded with adapters.
        path: its directory.
        dtype: dtype of its weights, as torch names it.
        device: device of its weights.
        threads: threads of the computation.
        quantization: ``none`` or ``nf4``; see ``model.quantization``.
    """

    served: str
    name: str
    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization = "none"


class JobService:
    """See the module. It belongs to one event loop.

    Args:
        files: data and result files.
        jobs: the jobs.
        queue: works on them.
        base: the base model.
        adapters: directories of the adapters that are served from the start, from which jobs may start too.
        aliases: additional names of models.
        save_seconds: at most so much work of a job is lost by a kill.
    """

    def __init__(
        self,
        files: FileStore,
        jobs: JobStore,
        queue: JobQueue,
        base: BaseModel,
        adapters: Mapping[str, Path],
        aliases: Mapping[str, str],
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self.files = files
        self.jobs = jobs
        self.queue = queue
        self.base = base
        self.adapters = adapters
        self.aliases = aliases
        self.save_seconds = save_seconds

    def delete_file(self, file_id: str) -> None:
        """Delete a file.

        Raises:
            ApiError: there is no such file, or a job that has not ended needs it.
        """
        self.files.get(file_id)
        for job in self.jobs.all():
            if job.status in UNFINISHED and file_id in (job.training_file, job.validation_file):
                raise ApiError(409, f"{file_id} is in use by {job.id}. Cancel that job, or wait", param="id")
        self.files.delete(file_id)

    def made(self, name: str) -> int | None:
        """Return when a job made a model, in seconds since 1970; ``None`` if no job made it."""
        return next((found for job in self.jobs.all() if (found := job.made(name)) is not None), None)

    def delete_model(self, name: str) -> None:
        """Delete a model that a job made, and stop serving it.

        Raises:
            ApiError: no job made such a model, or a job that has not ended starts from it.
        """
        for job in self.jobs.all():
            directory = job.names().get(name)
            if directory is None:
                continue
            for other in self.jobs.all():
                if other.status in UNFINISHED and other.start == name:
                    problem = f"{name} is in use by {other.id}. Cancel that job, or wait"
                    raise ApiError(409, problem, param="model")
            job.deleted = [*job.deleted, name]
            self.jobs.save(job)
            self.queue.models.withdraw([name])
            remove_directory(self.jobs.place(job) / TRAINING / directory)
            return
        served = self.queue.models.names()
        if name in served:
            raise ApiError(400, f"{name} was not made by a fine-tuning job", param="model")
        raise model_not_found(name, served)

    def create(self, request: CreateJob) -> Job:
        """Store a new job and begin to check its files.

        Raises:
            ApiError: the request is not possible.
        """
        request.check()
        settings = request.settings(secrets.randbelow(2**31))
        start = self.aliases.get(request.model, request.model)
        adapter = self._adapter(start)
        paths = {
            param: self._data(param, file_id)
            for param, file_id in (
                ("training_file", request.training_file),
                ("validation_file", request.validation_file),
            )
            if file_id is not None
        }
        job_id = new_id("ftjob-")
        job = Job(
            id=job_id,
            created=time.time_ns(),
            base=self.base.served,
            start=start,
            start_adapter=None if adapter is None else str(adapter),
            settings=settings,
            training_file=request.training_file,
            validation_file=request.validation_file,
            suffix=request.suffix,
            metadata=request.metadata,
            model_name=self._new_name(request.suffix or ""),
            result_file=new_id("file-"),
        )
        job.say(f"Created fine-tuning job: {job_id}")
        job.say(f"Validating training file: {request.training_file}")
        spec = JobSpec(
            model=self.base.path,
            base_name=self.base.name,
            dtype=self.base.dtype,
            quantization=self.base.quantization,
            device=self.base.device,
            threads=self.base.threads,
            settings=settings,
            training_file=str(paths["training_file"]),
            validation_file=str(paths["validation_file"]) if "validation_file" in paths else None,
            start_adapter=job.start_adapter,
            save_seconds=self.save_seconds,
        )
        self.jobs.add(job, spec)
        self.queue.submit(job)
        return job

    def _data(self, param: str, file_id: str) -> Path:
        try:
            purpose = self.files.get(file_id).purpose
        except ApiError as error:
            raise ApiError(400, f"{param}: there is no file {file_id!r:.100}", param=param) from error
        if purpose != FINE_TUNE:
            raise ApiError(400, f"{param}: the purpose of {file_id} is {purpose}", param=param)
        return self.files.content(file_id).absolute()

    def _adapter(self, name: str) -> Path | None:
        """Return the directory of the adapter called ``name``; ``None`` for the base model.

        Raises:
            ApiError: there is no such model, or its base is not the one that is served.
        """
        if name == self.base.served:
            return None
        if name in self.adapters:
            return self.adapters[name].absolute()
        for job in self.jobs.all():
            directory = job.names().get(name)
            if directory is None:
                continue
            if job.base != self.base.served:
                problem = f"model: {name} is a model of {job.base}, but this server has {self.base.served}"
                raise ApiError(400, problem, param="model")
            return (self.jobs.place(job) / TRAINING / directory).absolute()
        raise model_not_found(name, self.queue.models.names())

    def _new_name(self, suffix: str) -> str:
        """Return a name for a model that no job has."""
        taken = {job.model_name for job in self.jobs.all()}
        while True:
            name = f"{FINE_TUNED}{self.base.served}:{ORGANIZATION}:{suffix}:{secrets.token_hex(4)}"
            if name not in taken:
                return name
