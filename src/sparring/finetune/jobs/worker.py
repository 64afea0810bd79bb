"""The process that trains one job: ``python -m sparring.finetune.jobs.worker DIRECTORY``, or an actor.

It has a copy of the base model of its own, so the server goes on answering, and it ends with the server: Ray
ends an actor, and the standard input of a child process is a pipe that the system closes. ``outcome.json`` is
its last file. If it ends without one, it crashed; a child's ``worker.log`` ends with the reason.
"""

import hashlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparring.core import SparringError, derive_seed
from sparring.core.errors import reason_of
from sparring.core.files import LOCK
from sparring.core.locks import lock
from sparring.core.manifest import damaged
from sparring.finetune.jobs.records import (
    JOB_FILE,
    OUTCOME_FILE,
    TRAINING,
    Examples,
    JobError,
    Result,
    StoredJob,
)
from sparring.finetune.jobs.schema import read_conversations, read_preferences
from sparring.finetune.jobs.store import read_record, write_record
from sparring.learn.adapter_weights import read_weights
from sparring.learn.fine_tuning.examples import Renderer, WrongLine, families, opening
from sparring.learn.fine_tuning.job import Data, FineTuningJob
from sparring.learn.fine_tuning.settings import Outcome
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel


def main(directory: Path) -> None:
    """Train the job in ``directory``; end early if the server ends."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    train_job(directory)


def train_job(directory: Path) -> None:
    """Train the job in ``directory`` and write its outcome. The process must end afterwards: it keeps the
    job's lock."""
    # A process that a killed server left is about to end.
    lock(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600), wait=True)
    try:
        job = read_record(directory / JOB_FILE, StoredJob)
        result = Result(outcome=_train(job, directory / TRAINING))
    except _WrongFile as error:
        result = Result(failure=JobError(f"invalid_{error.param}", str(error), error.param))
    except SparringError as error:
        result = Result(failure=JobError("training_failed", reason_of(error)))
    write_record(directory / OUTCOME_FILE, result)


class _WrongFile(SparringError):
    def __init__(self, param: str, error: WrongLine) -> None:
        self.param = param
        super().__init__(str(error))


def _end_with_the_server() -> None:
    os.read(sys.stdin.fileno(), 1)  # unbuffered: a lock of sys.stdin would be held when the process ends
    os._exit(1)


def _train(job: StoredJob, directory: Path) -> Outcome:
    torch.set_num_threads(job.base.threads)
    weights, lora = _start(job)
    policy = PolicyModel(
        job.base.path,
        lora,
        dtype=getattr(torch, job.base.dtype),
        device=job.base.device,
        quantization=job.base.quantization,
        seed=derive_seed(job.settings.seed, "adapter"),
        template_options=job.base.template_options,
    )
    if weights is not None:
        policy.load_adapter_state(weights, TRAINED)
    renderer = Renderer(policy.tokens, policy.context_length)
    rendered = {param: _examples(job, param, file, renderer) for param, file in job.files().items()}
    train, numbers = rendered["training_file"]
    validation, _ = rendered.get("validation_file", ([], []))
    directory.mkdir(exist_ok=True)
    data = Data(train, numbers, validation)
    return FineTuningJob(
        policy, job.base.name, directory, job.settings, data, save_seconds=job.save_seconds
    ).run()


def _start(job: StoredJob) -> tuple[dict[str, Tensor] | None, LoraSettings]:
    if job.start_adapter is None:
        return None, LoraSettings()
    directory = Path(job.start_adapter)
    return read_weights(directory), LoraSettings.read(directory)


def _examples(job: StoredJob, param: str, file: Examples, renderer: Renderer) -> tuple[list[Any], list[int]]:
    content = Path(file.path).read_bytes()
    if hashlib.sha256(content).hexdigest() != file.digest:
        raise damaged(Path(file.path))
    try:
        if job.settings.method == "dpo":
            pairs = read_preferences(content)
            tokens = [renderer.preference(one) for one in pairs]
            return tokens, families([opening(one.messages) for one in pairs])
        talks = read_conversations(content)
        return [renderer.conversation(one) for one in talks], families(
            [opening(one.messages) for one in talks]
        )
    except WrongLine as error:
        raise _WrongFile(param, error) from error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
