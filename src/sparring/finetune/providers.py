"""What a provider of fine-tuning jobs does: take a file of examples, and make a better model of it."""

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from sparring.core import Messages, MockInferenceClient, SparringError
from sparring.core.text import one_line
from sparring.programs.proofs.answers import SCALES, stated
from sparring.programs.proofs.protocol import Protocol

JobMethod = Literal["supervised", "dpo"]
JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]

ENDED = ("succeeded", "failed", "cancelled", "not_found")
"""The states that a job does not leave."""
STATES: Mapping[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "pending": "pending",
    "paused": "pending",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The states of OpenAI's jobs."""
NAME_FIELD = "sparring_job"
"""The key of a job's metadata under which its name is kept; the keys of what else it is begin with it."""
MAX_SUFFIX = 64
PREFIX = "dry-run:"


class FineTuneJobError(SparringError):
    """A fine-tuning job failed, was cancelled, or is unknown to its provider."""


@dataclass(frozen=True)
class JobRequest:
    """A job to be made. ``name`` is unique in all runs, so that the provider finds the job again; with
    ``model``, ``method`` and the digest of the examples it says which job it is. A seed of ``None`` leaves it
    to the provider.
    """

    name: str
    model: str
    method: JobMethod
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    sha256: str = ""


@dataclass(frozen=True)
class Job:
    """What a provider says of a job. ``model`` is the resulting one, once there is one."""

    id: str
    status: JobStatus
    model: str | None = None
    error: str = ""


class JobProvider(ABC):
    """Fine-tuning jobs somewhere else. All methods wait a limited time, and raise SparringError if the
    provider cannot be reached."""

    least_examples = 1
    """The smallest number of examples that a job may have."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what the provider has to do by itself while the body runs."""
        yield

    @abstractmethod
    async def upload(self, name: str, examples: bytes) -> str:
        """Store a file of JSON lines in OpenAI's format, unless it is there by that name; return its id."""

    @abstractmethod
    async def create(self, request: JobRequest, file: str) -> Job:
        """Make a job on an uploaded file, unless there is one of that name; return it. Raises
        FineTuneJobError: it is refused, or another one."""

    @abstractmethod
    async def status(self, job_id: str) -> Job:
        """Return what is known of a job; ``not_found`` is a status."""

    async def progress(self, job_id: str) -> str:
        """Return the last line that the provider says of a job at work; empty if it says nothing."""
        return ""


class DryRunJobs(JobProvider):
    """Jobs that succeed at once with the model that they started from. Their id says all, so a resumed run
    finds them."""

    async def upload(self, name: str, examples: bytes) -> str:
        """Accept anything."""
        return f"file-{name}"

    async def create(self, request: JobRequest, file: str) -> Job:
        """Return a job that has succeeded."""
        return await self.status(f"{PREFIX}{quote(request.name, safe='')}:{request.model}")

    async def status(self, job_id: str) -> Job:
        """Return the job; one of another provider is not found."""
        if not job_id.startswith(PREFIX):
            return Job(job_id, "not_found")
        _, _, model = job_id.removeprefix(PREFIX).partition(":")
        return Job(job_id, "succeeded", model)


def body_of(request: JobRequest, file: str) -> dict[str, Any]:
    """Return the body of a request for a job, in OpenAI's words."""
    body = {
        "model": request.model,
        "training_file": file,
        "method": {
            "type": request.method,
            request.method: {"hyperparameters": dict(request.hyperparameters)},
        },
        "suffix": suffix_of(request.name),
        "metadata": {NAME_FIELD: request.name, **_identity(request)},
    }
    return body if request.seed is None else {**body, "seed": request.seed}


def job_of(reply: Mapping[str, Any]) -> Job:
    """Read OpenAI's object of a job. Raises ValueError: it is none."""
    said, model, error = (reply.get(name) for name in ("status", "fine_tuned_model", "error"))
    status = STATES.get(str(said))
    if not isinstance(reply.get("id"), str) or status is None:
        raise ValueError(f"the reply is not a job: its status is {said!r}")
    if status == "succeeded" and not isinstance(model, str):
        raise ValueError("the job succeeded, but names no model")
    message = error.get("message") if isinstance(error, dict) else error
    return Job(reply["id"], status, model if status == "succeeded" else None, one_line(str(message or "")))


def check_identity(request: JobRequest, metadata: Mapping[str, Any]) -> None:
    """Check that a job with a request's name is that request's. Raises FineTuneJobError: its model, method or
    file is another."""
    other = [key for key, value in _identity(request).items() if metadata.get(key) != value]
    if other:
        raise FineTuneJobError(
            f"the API has another job with the name {request.name}, which differs in {', '.join(other)}"
        )


def file_name_of(name: str, examples: bytes) -> str:
    """Return the name of a job's file, which no file with other examples has."""
    return f"{suffix_of(name)}-{hashlib.sha256(examples).hexdigest()[:16]}.jsonl"


def suffix_of(name: str) -> str:
    """Return the end of a name, in characters that every API accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-MAX_SUFFIX:]


def _identity(request: JobRequest) -> dict[str, str]:
    known = {"model": request.model, "method": request.method, "sha256": request.sha256}
    return {f"{NAME_FIELD}_{key}": value for key, value in known.items()}


def drawing_agents(protocol: Protocol) -> MockInferenceClient:
    """Return a client that answers with a message to every channel or with a decision, drawn by the seed; the
    next try of an invalid answer draws again."""
    message = "\n".join(f"{channel.name}: What follows from that?" for channel in protocol.channels)
    decisions = [stated(entry) for entry in SCALES[protocol.scale]]

    def answer(messages: Messages, seed: int | None) -> str:
        drawn = random.Random(seed)
        return message if drawn.random() < 0.5 else drawn.choice(decisions)

    return MockInferenceClient(answer)
