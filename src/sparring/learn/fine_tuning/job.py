"""FineTuningJob: train an adapter on examples, such that a killed job ends with the same bytes.

Everything of a job is in one directory:

    reference/         the reference's log-probabilities (DPO), computed before the first step
    state/             the newest saved state: that of the learner, and the length of the metrics
    metrics.jsonl      a row for each step
    step-000012/       the adapter after an epoch, for the last three; the last of them is the result
    results.csv        the rows, once the job has ended

The order of the examples follows from the seed and the number of the epoch, and the learning rate from the
number of the step, so the saved state is all that the next step depends on.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparring.collection.sinks import JsonlSink
from sparring.core import SparringError, TrainingRecord
from sparring.core.adapters import LEARNER_FILE, STATE_FILE
from sparring.core.errors import DamagedState
from sparring.core.files import finish_replacements, put_in_place, scratch_for, write_file
from sparring.core.manifest import check_files, seal
from sparring.learn.algorithms.dpo import Dpo, with_reference
from sparring.learn.algorithms.sft import GivenAnswers, Sft
from sparring.learn.checkpoints import read_tensors, save_adapter, write_tensors
from sparring.learn.fine_tuning.settings import (
    COLUMNS,
    LEARNING_RATES,
    METRICS_FILE,
    RESULTS_FILE,
    SAVE_SECONDS,
    WARM_UP,
    JobSettings,
    Outcome,
    Row,
    SavedModel,
    as_csv,
    checkpoint_name,
    read_rows,
)
from sparring.learn.learner import DEFAULTS, Learner
from sparring.learn.policy import PolicyModel
from sparring.learn.saved_states import read_json

LEARNING = DEFAULTS.model_copy(
    update={
        "schedule": "linear",
        "learning_rate_end": 0.0,
        "momentum": 0.9,
        "grad_clip": 1.0,
        "max_batch_tokens": 2048,
    }
)
"""What all jobs have in common: the optimizer's numbers are those of TRL."""
REFERENCE, STATE = "reference", "state"
KEPT_CHECKPOINTS = 3
Example = list[TrainingRecord]
"""The answers of a conversation, or the preferred and the rejected answer of a pair."""


@dataclass(frozen=True)
class Data:
    """Rendered examples, and the families of those to train on."""

    train: Sequence[Example]
    families: Sequence[int]
    validation: Sequence[Example] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class FineTuningJob:
    """A learner and its source of data, in a directory that exists; the adapter ``default`` is trained. A
    state is saved when the last one is older than ``save_seconds``."""

    policy: PolicyModel
    base_name: str
    directory: Path
    settings: JobSettings
    data: Data
    _: KW_ONLY
    save_seconds: float = SAVE_SECONDS

    def __post_init__(self) -> None:
        settings, data = self.settings, self.data
        self.numbers = settings.resolved(len(data.train))
        self.steps_per_epoch = self.numbers.steps_per_epoch(len(data.train))
        self.steps = self.steps_per_epoch * self.numbers.n_epochs
        epoch_ends = range(self.steps_per_epoch, self.steps + 1, self.steps_per_epoch)
        self.checkpoints = list(epoch_ends[-KEPT_CHECKPOINTS:])
        self.algorithm: GivenAnswers = Sft() if settings.method == "supervised" else Dpo(self.numbers.beta)
        rate = LEARNING_RATES[settings.method] * self.numbers.learning_rate_multiplier
        schedule = {"steps": self.steps, "warmup_steps": self.steps // WARM_UP, "learning_rate": rate}
        self.learner = Learner(self.policy, self.algorithm, LEARNING.model_copy(update=schedule))

    def run(self, on_step: Callable[[int, int], None] = lambda step, steps: None) -> Outcome:
        """Train from the newest saved state, or from the start, to the end. ``on_step`` is called after each
        step with its number and the number of steps."""
        finish_replacements(self.directory, rf"{STATE}|{REFERENCE}|step-\d+")
        if isinstance(self.algorithm, Dpo):
            self.data = self._with_reference(self.algorithm)
        validation = list(chain.from_iterable(self.data.validation))
        log = JsonlSink(self.directory / METRICS_FILE)
        log.truncate(self._load_state())
        saved_at = time.monotonic()
        while self.learner.version < self.steps:
            row = self._step()
            step = self.learner.version
            if validation and step % self.steps_per_epoch == 0:
                row |= {f"valid_{name}": value for name, value in self.algorithm.evaluate(validation).items()}
            log.write(row | {"total_steps": self.steps, "created_at": int(time.time())})
            on_step(step, self.steps)
            if step in self.checkpoints:
                name = self.directory / checkpoint_name(step)
                save_adapter(name, self.policy, self.base_name, version=step)
            if time.monotonic() - saved_at >= self.save_seconds:
                state = {"step": step, "samples": self.learner.samples_seen, "metrics": log.offset()}
                self._save(STATE, self.learner.tensors(), state)
                saved_at = time.monotonic()
        log.close()
        rows = read_rows(self.directory)
        write_file(self.directory / RESULTS_FILE, as_csv(self.settings.method, rows))
        checkpoints = [SavedModel(one, checkpoint_name(one), rows[one - 1]) for one in self.checkpoints]
        return Outcome(self.numbers, self._trained_tokens(), checkpoints)

    def _step(self) -> Row:
        chosen = self.numbers.batch(self.data.families, self.settings.seed, self.learner.version)
        step = self.learner.version + 1
        try:
            metrics = self.learner.update(list(chain.from_iterable(self.data.train[one] for one in chosen)))
        except SparringError as error:
            raise SparringError(f"step {step}: {error}. Lower learning_rate_multiplier") from error
        wanted = COLUMNS[self.settings.method].values()
        return {
            "step": step,
            **{f"train_{name}": value for name, value in metrics.items() if f"train_{name}" in wanted},
        }

    def _with_reference(self, algorithm: Dpo) -> Data:
        examples = [*self.data.train, *self.data.validation]
        records = list(chain.from_iterable(examples))
        kept = self._load(REFERENCE)
        logprobs_T = algorithm.reference(records) if kept is None else kept[0]["logprobs"].numpy()
        if kept is None:
            self._save(REFERENCE, {"logprobs": torch.from_numpy(logprobs_T)}, {})
        known = iter(with_reference(records, logprobs_T))
        pairs = [[next(known) for _ in example] for example in examples]
        number = len(self.data.train)
        return Data(pairs[:number], self.data.families, pairs[number:])

    def _load_state(self) -> int:
        saved = self._load(STATE)
        if saved is None:
            return 0
        tensors, state = saved
        self.learner.load_tensors(tensors, state["step"], state["samples"])
        return int(state["metrics"])

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        directory = self.directory / name
        if not directory.is_dir():
            return None
        try:
            check_files(directory)
        except DamagedState as error:
            print(f"{error.problem}; it is computed again", flush=True)
            return None
        return read_tensors(directory / LEARNER_FILE), read_json(directory / STATE_FILE)

    def _save(self, name: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        scratch = scratch_for(self.directory / name)
        write_tensors(scratch / LEARNER_FILE, tensors)
        (scratch / STATE_FILE).write_text(json.dumps(state))
        seal(scratch)
        put_in_place(scratch, self.directory / name)

    def _trained_tokens(self) -> int:
        return self.numbers.n_epochs * sum(map(self._tokens_of, self.data.train))

    def _tokens_of(self, example: Example) -> int:
        lengths = [len(one.prompt_token_ids) + len(one.completion_token_ids) for one in example]
        return sum(lengths) if self.settings.method == "dpo" else max(lengths)
