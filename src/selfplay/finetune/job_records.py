"""JobRecords: what is known of each fine-tuning job, written down before the provider is asked."""

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError, SelfplayError
from selfplay.core.files import write_file
from selfplay.finetune.providers.job import Job, JobProvider, JobRequest


class JobRecord(msgspec.Struct, kw_only=True):
    """A job by its name. ``file`` and ``job`` are the provider's ids, once there are any.

    Attributes:
        name: its name in the run.
        unique_name: its name at the provider, which no job of any other run has.
        model: the model that it starts from.
        method: how it learns.
        examples: number of examples.
        sha256: their digest.
    """

    name: str
    unique_name: str
    model: str
    method: str
    examples: int
    sha256: str
    file: str | None = None
    job: str | None = None


class JobRecords:
    """Submits jobs, each once, whatever is killed in between.

    A job's examples and its record are written before the provider is asked. The record draws the job's name
    at the provider, so that a run which is named like an earlier one never takes that run's jobs. After a
    restart, a file or a job that the provider already has under this name is taken; only what it lacks is
    made. If other examples are submitted before the job exists, it begins anew.

    Args:
        directory: where records and examples are kept.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def submit(self, provider: JobProvider, request: JobRequest, examples: list[dict[str, Any]]) -> Job:
        """Upload the examples, create the job and return it; what was done before is not repeated.

        Raises:
            SelfplayError: the provider refuses it or cannot be reached, or another job has this name.
        """
        content = b"".join(msgspec.json.encode(example) + b"\n" for example in examples)
        record = self._begin(request, content, len(examples))
        if record.job is not None:
            return await provider.status(record.job)
        request = replace(request, name=record.unique_name, sha256=record.sha256)
        if record.file is None:
            record.file = await provider.upload(request.name, content)
            self._write(record)
        job = await provider.create(request, record.file)
        record.job = job.id
        self._write(record)
        return job

    def read(self, name: str) -> JobRecord | None:
        """Return the record of a job, or ``None`` if there is none.

        Raises:
            InputError: the record is damaged.
        """
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobRecord)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(str(path), f"is damaged: {error}", "Restore the file") from None

    def names(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def _begin(self, request: JobRequest, content: bytes, examples: int) -> JobRecord:
        digest = hashlib.sha256(content).hexdigest()
        record = self.read(request.name)
        asked = (digest, request.model, request.method)
        same = record is not None and (record.sha256, record.model, record.method) == asked
        if record is None or (record.job is None and not same):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_file(self.directory / f"{request.name}.jsonl", content)
            record = JobRecord(
                name=request.name,
                unique_name=f"{request.name}_{secrets.token_hex(4)}",
                model=request.model,
                method=request.method,
                examples=examples,
                sha256=digest,
            )
            self._write(record)
        elif not same:
            raise SelfplayError(f"there is another job with the name {request.name} in {self.directory}")
        return record

    def _write(self, record: JobRecord) -> None:
        write_file(self._path(record.name), msgspec.json.encode(record))

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"
