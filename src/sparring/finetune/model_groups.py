"""PureTextSharedModelGroup: agents that share a model, and the jobs that make it better, each made once."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sparring.config.finetune import METHODS
from sparring.core import InputError, SparringError
from sparring.core.files import write_file
from sparring.finetune.providers import FineTuneJobError, Job, JobMethod, JobProvider, JobRequest
from sparring.finetune.run_files import (
    FROZEN_JOB,
    INSUFFICIENT_DATA_JOB,
    GroupState,
    JobRecord,
    read_json_if_there,
    write_json,
)

Example = dict[str, Any]
"""A line of a provider's file: ``messages``, or ``input`` with a preferred and a non-preferred output."""


class JobRecords:
    """Submits jobs, each once, whatever is killed in between.

    A job's examples and its record are written before the provider is asked. The record draws the job's name
    at the provider, so that a run never takes the jobs of another of its name; what the provider has under it
    is taken. If other examples are submitted before the job exists, it begins anew.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def submit(self, provider: JobProvider, request: JobRequest, examples: list[dict[str, Any]]) -> Job:
        """Upload the examples, create the job and return it; nothing is repeated. Raises SparringError: the
        provider refuses it or cannot be reached, or another job has this name."""
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
        """Return the record of a job, or ``None`` if there is none. Raises InputError: it is damaged."""
        return read_json_if_there(self._path(name), JobRecord)

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
            raise SparringError(f"there is another job with the name {request.name} in {self.directory}")
        return record

    def _write(self, record: JobRecord) -> None:
        write_json(self._path(record.name), record)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"


@dataclass
class PureTextSharedModelGroup:
    """The model of one or more agents. Raises InputError: the name of the group cannot name files and jobs.

    A job starts from the base model (``fine_tune_from_scratch``) or from the last one. A frozen group has no
    jobs; with fewer examples than the provider accepts, a group keeps its model, and its state says so.
    ``hyperparameters`` are those of jobs by OpenAI's names, those of one method alone under its name.
    """

    group_name: str
    agent_names: tuple[str, ...]
    base_model_name: str
    provider: JobProvider
    records: JobRecords
    freeze_agent: bool = False
    fine_tune_from_scratch: bool = True
    dpo_beta: float | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    state: GroupState = field(default_factory=GroupState)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]{,63}", self.group_name, re.ASCII):
            raise InputError(
                "shared_model_group",
                f"{self.group_name!r} cannot name the jobs of its agents",
                "Use at most 64 letters, digits, '.', '_' and '-'",
            )

    @property
    def model_name(self) -> str:
        """The model that the agents use now."""
        return self.state.fine_tuned_model_name or self.base_model_name

    async def create_supervised_fine_tune_job(self, examples: list[Example], job_name: str) -> None:
        """Make a job that imitates the assistant's messages of these conversations."""
        await self._create("supervised", examples, job_name)

    async def create_dpo_fine_tune_job(self, examples: list[Example], job_name: str) -> None:
        """Make a job that prefers the first of two answers to the same conversation."""
        await self._create("dpo", examples, job_name)

    async def _create(self, method: JobMethod, examples: list[Example], job_name: str) -> None:
        if self.freeze_agent:
            self.state.fine_tune_job_id = FROZEN_JOB
            return
        if len(examples) < self.provider.least_examples:
            self.state.fine_tune_job_id = INSUFFICIENT_DATA_JOB
            return
        start = self.base_model_name if self.fine_tune_from_scratch else self.model_name
        request = JobRequest(job_name, start, method, self.hyperparameters_of(method), self.seed)
        self.state.fine_tune_job_id = (await self.records.submit(self.provider, request, examples)).id

    def hyperparameters_of(self, method: JobMethod) -> dict[str, Any]:
        """Return the hyperparameters of jobs with a method."""
        common = {name: value for name, value in self.hyperparameters.items() if name not in METHODS}
        beta = {} if method != "dpo" or self.dpo_beta is None else {"beta": self.dpo_beta}
        return {**common, **self.hyperparameters.get(method, {}), **beta}

    @property
    def has_job(self) -> bool:
        """Whether the provider works on a job of this group, or did."""
        return self.state.fine_tune_job_id not in (None, FROZEN_JOB, INSUFFICIENT_DATA_JOB)

    async def get_fine_tune_job_status(self) -> Job:
        """Return the job of this group; a group that keeps its model has one that succeeded with it."""
        job_id = self.state.fine_tune_job_id
        if job_id is None or not self.has_job:
            return Job(job_id or "", "succeeded", self.model_name)
        return await self.provider.status(job_id)

    async def fine_tune_job_failed(self) -> bool:
        """Return whether the job ended without a model."""
        return (await self.get_fine_tune_job_status()).status in ("failed", "cancelled", "not_found")

    def switch_to_next_model(self, job: Job) -> None:
        """Use the model of a job. Raises FineTuneJobError: it has not succeeded."""
        if job.status != "succeeded" or job.model is None:
            raise self.failure(job)
        if self.has_job:
            self.state.fine_tuned_model_name = job.model

    def failure(self, job: Job) -> FineTuneJobError:
        """Return the error of a job that ended without a model."""
        ended = {"not_found": "is unknown to the provider", "cancelled": "was cancelled"}
        how = ended.get(job.status, f"failed: {job.error or 'the provider gives no reason'}")
        return FineTuneJobError(f"the fine-tuning job {job.id} of {self.group_name} {how}")
