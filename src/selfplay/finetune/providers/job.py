"""What a provider of fine-tuning jobs does: take a file of examples, and make a better model of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from selfplay.core import SelfplayError

JobMethod = Literal["supervised", "dpo"]
JobStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "not_found"]

ENDED = ("succeeded", "failed", "cancelled", "not_found")
"""The states that a job does not leave."""


class FineTuneJobError(SelfplayError):
    """A fine-tuning job failed, was cancelled, or is unknown to its provider."""


@dataclass(frozen=True)
class JobRequest:
    """A job to be made.

    Args:
        name: the job's name, unique in all runs; the provider keeps it, so that the job is found again.
        model: the model to start from.
        method: how it learns from the examples.
        hyperparameters: OpenAI's names and values (``n_epochs``, ``beta``, ...); others are the provider's.
        seed: seed of the job; ``None`` leaves it to the provider.
        sha256: digest of the examples; with model and method it says whether a job of this name is this one.
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


class JobProvider(Protocol):
    """Fine-tuning jobs somewhere else. All methods wait a limited time.

    ``least_examples`` is the smallest number of examples that a job may have.
    """

    least_examples: int

    async def upload(self, name: str, examples: bytes) -> str:
        """Store a file of JSON lines in OpenAI's format, unless it is there by that name; return its id.

        Raises:
            SelfplayError: the provider refuses the file, or cannot be reached.
        """

    async def create(self, request: JobRequest, file: str) -> Job:
        """Make a job on an uploaded file, unless there is one of that name; return it.

        Raises:
            FineTuneJobError: the provider refuses the job, or has another one of that name.
            SelfplayError: the provider cannot be reached; the job may have been made all the same.
        """

    async def status(self, job_id: str) -> Job:
        """Return what is known of a job; ``not_found`` is a status.

        Raises:
            SelfplayError: the provider cannot be reached.
        """

    async def events(self, job_id: str) -> list[str]:
        """Return the messages of a job, oldest first.

        Raises:
            SelfplayError: the provider cannot be reached.
        """

    async def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job.

        Raises:
            SelfplayError: the provider cannot be reached.
        """
