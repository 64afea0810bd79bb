"""FineTuningJob: train an adapter on examples, such that a killed job ends with the same bytes.

Everything of a job is in one directory:

    reference.json     the reference's log-probabilities (DPO), computed before the first step
    state/             the newest saved state: weights, optimizer, number of steps
    metrics.jsonl      a row for each step
    step-000012/       the adapter after an epoch, for the last three; the last of them is the result
    results.csv        the rows, once the job has ended

The order of the examples follows from the seed and the number of the epoch, and the learning rate from the
number of the step, so the saved state is all that the next step depends on.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from selfplay.core import SelfplayError
from selfplay.core.adapters import LEARNER_FILE, STATE_FILE
from selfplay.core.errors import DamagedState
from selfplay.core.files import finish_replacements, put_in_place, scratch_for, write_file
from selfplay.core.manifest import check_files, seal
from selfplay.core.sealed_json import sealed, unsealed
from selfplay.learning.algorithms.dpo import Dpo, Pair
from selfplay.learning.algorithms.packed_loss import PackedLoss, Sample
from selfplay.learning.algorithms.sft import Sft
from selfplay.learning.checkpoints import read_tensors
from selfplay.learning.delivery_file import save_proven_adapter
from selfplay.learning.fine_tuning.metrics import MetricsLog, Row, as_csv
from selfplay.learning.fine_tuning.outcome import RESULTS_FILE, SAVE_SECONDS, Outcome, SavedModel
from selfplay.learning.fine_tuning.settings import (
    LEARNING_RATES,
    JobSettings,
    epoch_order,
    rate_share,
)
from selfplay.learning.optimizer_state import load_training_tensors, training_tensors
from selfplay.learning.policy import TRAINED, PolicyModel
from selfplay.learning.saved_states import read_json

BETAS, GRAD_CLIP = (0.9, 0.999), 1.0
"""AdamW without weight decay, and the maximum norm of the gradient, as in TRL."""
REFERENCE_FILE, STATE = "reference.json", "state"
KEPT_CHECKPOINTS = 3


@dataclass(frozen=True)
class Data:
    """Rendered examples (conversations' samples, or pairs), and the families of those to train on."""

    train: Sequence[Any]
    families: Sequence[int]
    validation: Sequence[Any] = ()


class FineTuningJob:
    """See the module.

    Args:
        policy: the model; its adapter ``default`` is trained from where it is.
        base_name: name of the base model, which is recorded with adapters.
        directory: the job's directory, which exists.
        settings: what the client chose.
        data: the examples.
        save_seconds: a state is saved when the last one is older.
        report: called with each row.
    """

    def __init__(
        self,
        policy: PolicyModel,
        base_name: str,
        directory: Path,
        settings: JobSettings,
        data: Data,
        *,
        save_seconds: float = SAVE_SECONDS,
        report: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self.policy = policy
        self.base_name = base_name
        self.directory = directory
        self.settings = settings
        self.numbers = settings.resolved(len(data.train))
        self.data = data
        self.save_seconds = save_seconds
        self.report = report
        self.steps_per_epoch = math.ceil(len(data.train) / self.numbers.batch_size)
        self.steps = self.steps_per_epoch * self.numbers.n_epochs
        epoch_ends = range(self.steps_per_epoch, self.steps + 1, self.steps_per_epoch)
        self.checkpoints = list(epoch_ends[-KEPT_CHECKPOINTS:])
        self.loss: PackedLoss[Any] = (
            Sft(policy) if settings.method == "supervised" else Dpo(policy, beta=self.numbers.beta)
        )
        self.optimizer = torch.optim.AdamW(
            policy.adapter_parameters(TRAINED), lr=0.0, betas=BETAS, weight_decay=0.0
        )

    def run(self) -> Outcome:
        """Train from the newest saved state, or from the start, to the end.

        Raises:
            SelfplayError: the loss is not finite.
        """
        finish_replacements(self.directory, rf"{STATE}|step-\d+")
        if isinstance(self.loss, Dpo):
            self.data = self._with_reference(self.loss)
        step = self._load_state()
        log = MetricsLog(self.directory, step)
        saved_at = time.monotonic()
        while step < self.steps:
            row = self._step(step)
            step += 1
            ends_epoch = step % self.steps_per_epoch == 0
            if ends_epoch and self.data.validation:
                validation = self.loss.evaluate(self.data.validation)
                row |= {f"valid_{name}": value for name, value in validation.items()}
            log.add(row | {"created_at": int(time.time())})
            self.report(row)
            if step in self.checkpoints:
                name = self.directory / _name(step)
                save_proven_adapter(name, self.policy, self.base_name, TRAINED, step)
            if time.monotonic() - saved_at >= self.save_seconds:
                log.sync()
                self._save_state(step)
                saved_at = time.monotonic()
        write_file(self.directory / RESULTS_FILE, as_csv(self.settings.method, log.rows))
        log.close()
        checkpoints = [SavedModel(one, _name(one), log.rows[one - 1]) for one in self.checkpoints]
        return Outcome(self.numbers, self._trained_tokens(), checkpoints)

    def _step(self, step: int) -> Row:
        """Make the step after ``step`` steps and return its row."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.data.families, self.settings.seed, epoch)
        size = self.numbers.batch_size
        batch = [self.data.train[one] for one in order[index * size : (index + 1) * size]]
        base_rate = LEARNING_RATES[self.settings.method] * self.numbers.learning_rate_multiplier
        for group in self.optimizer.param_groups:
            group["lr"] = base_rate * rate_share(step, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        metrics = self.loss.update(batch)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.adapter_parameters(TRAINED), GRAD_CLIP)
        if not math.isfinite(metrics["loss"] + float(norm)):
            raise SelfplayError(
                f"step {step + 1}: the loss ({metrics['loss']}) or gradient norm ({float(norm)}) is not "
                "finite. Lower learning_rate_multiplier"
            )
        self.optimizer.step()
        return {"step": step + 1, **{f"train_{name}": value for name, value in metrics.items()}}

    def _with_reference(self, loss: Dpo) -> Data:
        """Return the data with the reference's log-probabilities, from the file once they are known."""
        path = self.directory / REFERENCE_FILE
        both: list[Pair] = [*self.data.train, *self.data.validation]
        known = self._known_reference(path)
        if len(known) == len(both):
            pairs = [replace(one, reference=(a, b)) for one, (a, b) in zip(both, known, strict=True)]
        else:
            pairs = loss.with_reference(both)
            known = [one.reference for one in pairs]
            write_file(path, sealed({"pairs": known}))
        number = len(self.data.train)
        return Data(pairs[:number], self.data.families, pairs[number:])

    def _known_reference(self, path: Path) -> list[Any]:
        """Return the reference's log-probabilities if they are there and whole."""
        try:
            return list(unsealed(path.read_bytes())["pairs"])
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _load_state(self) -> int:
        """Restore the saved state, if there is one that is whole; return the number of steps made."""
        directory = self.directory / STATE
        if not directory.is_dir():
            return 0
        try:
            check_files(directory)
        except DamagedState as error:
            print(f"{error.problem}; the job begins again", flush=True)
            return 0
        tensors = read_tensors(directory / LEARNER_FILE)
        load_training_tensors(self.policy, TRAINED, self.optimizer, tensors)
        return int(read_json(directory / STATE_FILE)["step"])

    def _save_state(self, step: int) -> None:
        tensors: dict[str, Tensor] = training_tensors(self.policy, TRAINED, self.optimizer)
        scratch = scratch_for(self.directory / STATE)
        save_file({key: value.contiguous() for key, value in tensors.items()}, scratch / LEARNER_FILE)
        (scratch / STATE_FILE).write_text(json.dumps({"step": step}))
        seal(scratch)
        put_in_place(scratch, self.directory / STATE)

    def _trained_tokens(self) -> int:
        """Return the tokens of all examples, as if nothing was shared, over all epochs."""
        return self.numbers.n_epochs * sum(_tokens_of(example) for example in self.data.train)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _tokens_of(example: list[Sample] | Pair) -> int:
    if isinstance(example, Pair):
        return 2 * len(example.prompt) + len(example.preferred) + len(example.rejected)
    return max(len(sample.prompt) + len(sample.completion) for sample in example)
