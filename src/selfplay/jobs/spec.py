"""What the server and the process that trains a job tell each other, in files of the job's directory."""

import msgspec

from selfplay.core.adapters import Quantization
from selfplay.learning.fine_tuning.outcome import Outcome
from selfplay.learning.fine_tuning.settings import JobSettings

SPEC_FILE, OUTCOME_FILE, LOG_FILE, TRAINING = "spec.json", "outcome.json", "worker.log", "training"


class JobSpec(msgspec.Struct, frozen=True):
    """A job's training; it does not change.

    Attributes:
        model: directory of the base model.
        base_name: its name, which is recorded with adapters.
        dtype: dtype of the base, as torch names it.
        device: device of all weights.
        threads: threads of the computation, on which rounding depends.
        settings: what the client chose.
        training_file: path of the examples.
        validation_file: path of the examples to validate with.
        start_adapter: directory of the adapter that it starts from; ``None`` for the base.
        save_seconds: at most so much work is lost by a kill.
        quantization: ``none`` or ``nf4``; see ``model.quantization``.
    """

    model: str
    base_name: str
    dtype: str
    device: str
    threads: int
    settings: JobSettings
    training_file: str
    validation_file: str | None
    start_adapter: str | None
    save_seconds: float
    quantization: Quantization = "none"


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed, with OpenAI's fields."""

    code: str
    message: str
    param: str | None = None


class Result(msgspec.Struct, frozen=True):
    """What a job's process leaves in ``outcome.json``: one of the two."""

    outcome: Outcome | None = None
    failure: JobError | None = None
