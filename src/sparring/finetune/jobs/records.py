"""The records of a server's files and jobs, the objects that clients see, and what a worker leaves. Times are
in nanoseconds."""

import time
from typing import Any, Self

import msgspec

from sparring.core.adapters import Quantization
from sparring.engine.answering import ModelFacts
from sparring.learn.fine_tuning.settings import JobSettings, Outcome, Row, SavedModel

JOB_FILE, OUTCOME_FILE, LOG_FILE, TRAINING = "job.json", "outcome.json", "worker.log", "training"
FINE_TUNE, RESULTS = "fine-tune", "fine-tune-results"
"""The purposes of files."""
ORGANIZATION = "sparring"
VALIDATING, QUEUED, RUNNING = "validating_files", "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
UNFINISHED = (VALIDATING, QUEUED, RUNNING)


class StoredFile(msgspec.Struct, frozen=True):
    """An uploaded file, or the results of a job; ``digest`` is the SHA-256 of its content."""

    id: str
    created: int
    bytes: int
    filename: str
    purpose: str
    digest: str

    def to_object(self) -> dict[str, Any]:
        """Return OpenAI's ``file`` object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created // 10**9,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
            "expires_at": None,
        }


class ServedBase(msgspec.Struct, frozen=True):
    """The base model that is served: the name that clients use, the name that is recorded with adapters, and
    how another process loads it again. Rounding depends on ``threads``."""

    served: str
    name: str
    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization = "none"
    template_options: dict[str, bool | int | str] = {}

    @classmethod
    def of(cls, served: str, name: str, facts: ModelFacts) -> Self:
        """Return the base model that an engine computes."""
        return cls(
            served,
            name,
            facts.path,
            facts.dtype,
            facts.device,
            facts.threads,
            facts.quantization,
            dict(facts.template_options),
        )


class Examples(msgspec.Struct, frozen=True):
    """A file that a job learns from or validates with: its id, path and SHA-256."""

    id: str
    path: str
    digest: str


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed, with OpenAI's fields."""

    code: str
    message: str
    param: str | None = None


class Result(msgspec.Struct, frozen=True):
    """What a job's process leaves in ``outcome.json``: one of the two."""

    outcome: Outcome | None = None
    failure: JobError | None = None


class Event(msgspec.Struct, frozen=True):
    """A message of a job. ``last``: it belongs after the steps of the same second."""

    created: int
    message: str
    level: str = "info"
    last: bool = False


class StoredJob(msgspec.Struct, kw_only=True):
    """All that a server keeps of a job beside its training.

    ``start`` is the model that it starts from, as the client named it, and ``start_adapter`` that model's
    directory, ``None`` for the base. A kill loses at most ``save_seconds`` of work. ``outcome`` is what it
    has made, once it has ended well; ``deleted`` are models that a client has deleted.
    """

    id: str
    created: int
    base: ServedBase
    start: str
    start_adapter: str | None
    settings: JobSettings
    training_file: Examples
    validation_file: Examples | None
    save_seconds: float
    suffix: str | None
    metadata: dict[str, str] | None
    model_name: str
    result_file: str
    status: str = VALIDATING
    error: JobError | None = None
    finished: int | None = None
    outcome: Outcome | None = None
    deleted: list[str] = []
    events: list[Event] = []

    def files(self) -> dict[str, Examples]:
        """Return its files by the names of OpenAI's fields."""
        files = {"training_file": self.training_file, "validation_file": self.validation_file}
        return {param: file for param, file in files.items() if file is not None}

    def say(self, message: str, level: str = "info") -> None:
        """Add an event."""
        last = self.status not in (VALIDATING, QUEUED)
        self.events = [*self.events, Event(time.time_ns(), message, level, last)]

    def end(self, status: str, message: str, error: JobError | None = None) -> None:
        """Set the status in which the job ends, with an event."""
        self.status, self.error, self.finished = status, error, time.time_ns()
        self.say(message, "error" if error else "info")

    def names(self) -> dict[str, str]:
        """Return the directories of the models that it has made by the names that they are served under."""
        found = {self.checkpoint_name(one): one.directory for one in self._made()}
        return {name: directory for name, directory in found.items() if name not in self.deleted}

    def made(self, name: str) -> int | None:
        """Return when it made a model, in seconds since 1970; ``None`` if it made no such model."""
        found = (one for one in self._made() if self.checkpoint_name(one) == name)
        return next((int(one.metrics["created_at"]) for one in found), None)

    def checkpoint_name(self, one: SavedModel) -> str:
        """Return the name of a checkpoint's model; that of the last one is the job's own."""
        last = one.step == self._made()[-1].step
        return self.model_name if last else f"{self.model_name}:ckpt-step-{one.step}"

    def _made(self) -> list[SavedModel]:
        done = self.outcome is not None and self.status == SUCCEEDED
        return self.outcome.checkpoints if self.outcome is not None and done else []

    def to_object(self) -> dict[str, Any]:
        """Return OpenAI's ``fine_tuning.job`` object."""
        method, outcome = self.settings.method, self.outcome
        known = self.settings if outcome is None else outcome.hyperparameters
        names = ["n_epochs", "batch_size", "learning_rate_multiplier", "beta"]
        values = {name: getattr(known, name) for name in names if name != "beta" or method == "dpo"}
        hyperparameters = {name: "auto" if value is None else value for name, value in values.items()}
        done = self.status == SUCCEEDED
        return {
            "id": self.id,
            "object": "fine_tuning.job",
            "created_at": self.created // 10**9,
            "finished_at": None if self.finished is None else self.finished // 10**9,
            "estimated_finish": None,
            "model": self.start,
            "fine_tuned_model": self.model_name if done else None,
            "organization_id": ORGANIZATION,
            "status": self.status,
            "hyperparameters": {key: value for key, value in hyperparameters.items() if key != "beta"},
            "method": {"type": method, method: {"hyperparameters": hyperparameters}},
            "training_file": self.training_file.id,
            "validation_file": None if self.validation_file is None else self.validation_file.id,
            "result_files": [self.result_file] if done else [],
            "trained_tokens": None if outcome is None else outcome.trained_tokens,
            "error": None if self.error is None else msgspec.to_builtins(self.error),
            "seed": self.settings.seed,
            "user_provided_suffix": self.suffix,
            "metadata": self.metadata,
            "integrations": [],
        }

    def checkpoint_objects(self) -> list[dict[str, Any]]:
        """Return OpenAI's ``fine_tuning.job.checkpoint`` objects, newest first: those that are served."""
        served = self.names()
        kept = [one for one in self._made() if self.checkpoint_name(one) in served]
        return [self._checkpoint(one) for one in reversed(kept)]

    def _checkpoint(self, one: SavedModel) -> dict[str, Any]:
        row = one.metrics
        token_means = self.settings.method == "supervised"
        metrics = {
            "step": one.step,
            "train_loss": row.get("train_loss"),
            "full_valid_loss": row.get("valid_loss"),
            "train_mean_token_accuracy": row.get("train_accuracy") if token_means else None,
            "full_valid_mean_token_accuracy": row.get("valid_accuracy") if token_means else None,
        }
        return {
            "id": f"ftckpt-{self._key}-{one.step}",
            "object": "fine_tuning.job.checkpoint",
            "created_at": row["created_at"],
            "fine_tuned_model_checkpoint": self.checkpoint_name(one),
            "fine_tuning_job_id": self.id,
            "step_number": one.step,
            "metrics": {key: value for key, value in metrics.items() if value is not None},
        }

    def event_objects(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Return OpenAI's ``fine_tuning.job.event`` objects, newest first, those of steps included."""
        keyed = [
            ((event.created // 10**9, 2 * event.last, index), self._message(index, event))
            for index, event in enumerate(self.events)
        ]
        keyed += [((int(row["created_at"]), 1, int(row["step"])), self._metrics(row)) for row in rows]
        return [found for _, found in sorted(keyed, key=lambda pair: pair[0], reverse=True)]

    def _message(self, index: int, event: Event) -> dict[str, Any]:
        return {
            "id": f"ftevent-{self._key}-m{index}",
            "object": "fine_tuning.job.event",
            "created_at": event.created // 10**9,
            "level": event.level,
            "message": event.message,
            "type": "message",
            "data": {},
        }

    def _metrics(self, row: Row) -> dict[str, Any]:
        return {
            "id": f"ftevent-{self._key}-s{row['step']}",
            "object": "fine_tuning.job.event",
            "created_at": row["created_at"],
            "level": "info",
            "message": f"Step {row['step']}/{row['total_steps']}: training loss={row['train_loss']:.4f}",
            "type": "metrics",
            "data": {key: value for key, value in row.items() if key != "created_at"},
        }

    @property
    def _key(self) -> str:
        return self.id.removeprefix("ftjob-")
