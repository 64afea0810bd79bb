"""Fine-tuning speed: whole jobs over prefix trees against TRL's SFTTrainer and DPOTrainer.

Both train the same adapter of SmolLM2-135M on the same tokens, in the same mini-batches and order, with the
same optimizer, for one epoch, in one process on one thread:

- job: ``FineTuningJob``, with the reference of DPO, saved states and the saved adapter;
- TRL: ``train()`` of its trainer, with the micro-batch (1 or 4) that is faster on the first mini-batch,
  without gradient checkpointing. Its DPO computes the reference with every step.

The data (``fine_tuning_data.py``): ``pairs`` are preferences at each node of a tree of answers, as MALT makes
them; ``proofs`` are transcripts with a line for each turn; the other two share nothing but a pair's prompt.
Tokens are counted as if no sequence shared anything.

First, in float32, the gradients of the first mini-batch and the change of the adapter by the whole job must
agree. Then the jobs are timed in turn, in the type that a server would choose.

Command:  python benchmarks/fine_tuning_speed.py [--data pairs proofs] [--claims 4] [--rounds 3]
Needs:    an environment with this package and trl==1.16.0. The default takes about an hour on one core,
          nearly all of it in TRL.
"""

import argparse
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
from datasets import Dataset
from peft import set_peft_model_state_dict
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from fine_tuning_data import DATA, make_data, method_of
from measuring import interleave, pin_one_thread, print_table, ratio
from plain_model import load_both
from record_batches import auto_dtype
from sparring.learn.algorithms.dpo import Dpo, with_reference
from sparring.learn.algorithms.sft import GivenAnswers
from sparring.learn.fine_tuning.job import LEARNING, Data, FineTuningJob
from sparring.learn.fine_tuning.settings import BETA, LEARNING_RATES, WARM_UP, JobSettings, epoch_order
from sparring.learn.policy import PolicyModel
from sparring.learn.schedules import Schedule

Weights = dict[str, Tensor]
TOLERANCE = 1e-4
TOLERANCE_OF_JOBS = 1e-2
"""Adam divides gradients by their size, so the rounding of the smallest ones counts."""
CHECKED = 4
"""Size of the mini-batches that are compared before anything is timed."""


class Job:
    """Our job, which begins with the same adapter every time."""

    def __init__(self, policy: PolicyModel, start: Weights, settings: JobSettings, data: Data) -> None:
        self.policy, self.start, self.settings, self.data = policy, start, settings, data

    def __call__(self) -> None:
        self.policy.load_adapter_state(self.start)
        with tempfile.TemporaryDirectory() as directory:
            job = FineTuningJob(self.policy, "smollm2-135m", Path(directory), self.settings, self.data)
            job.run()

    def gradient(self, number: int) -> Tensor:
        """Return the gradient of the first ``number`` examples."""
        self.policy.load_adapter_state(self.start)
        with tempfile.TemporaryDirectory() as directory:
            job = FineTuningJob(self.policy, "smollm2-135m", Path(directory), self.settings, self.data)
            order = epoch_order(self.data.families, self.settings.seed, 0)[:number]
            records = list(chain.from_iterable(self.data.train[index] for index in order))
            if isinstance(job.algorithm, Dpo):
                records = with_reference(records, job.algorithm.reference(records))
            job.learner.optimizer.zero_grad()
            job.algorithm.begin(records)
            job.algorithm.update(job.algorithm.prepare_batch(records))
        return _gradient(self.policy.adapter_parameters())

    def change(self) -> Tensor:
        """Return the change of the adapter since its start."""
        now = self.policy.adapter_state()
        return torch.cat([(now[key] - self.start[key]).flatten() for key in self.start])


class Trl:
    """TRL's trainer over the same tokens in the same order."""

    def __init__(
        self, model: Any, start: Weights, settings: JobSettings, data: Data, tokenizer: Any, micro_batch: int
    ) -> None:
        self.model, self.start, self.settings, self.micro_batch = model, start, settings, micro_batch
        self.tokenizer = tokenizer
        order = epoch_order(data.families, settings.seed, 0)
        self.rows = [_row(data.train[index]) for index in order]

    def __call__(self) -> None:
        self.trainer().train()

    def trainer(self) -> Any:
        """Return a trainer whose adapter is the one that the job starts from."""
        if "ref" in self.model.peft_config:
            self.model.delete_adapter("ref")
        set_peft_model_state_dict(self.model, self.start)
        assert self.settings.batch_size is not None
        options = {
            "output_dir": tempfile.mkdtemp(),
            "per_device_train_batch_size": self.micro_batch,
            "gradient_accumulation_steps": self.settings.batch_size // self.micro_batch,
            "num_train_epochs": 1,
            "learning_rate": LEARNING_RATES[self.settings.method],
            "adam_beta1": LEARNING.momentum,
            "adam_beta2": GivenAnswers.squares_decay,
            "weight_decay": 0.0,
            "max_grad_norm": LEARNING.grad_clip,
            "max_length": None,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        rows = Dataset.from_list(self.rows)
        if self.settings.method == "dpo":
            return _Dpo(
                self.model,
                args=DPOConfig(beta=BETA, **options),
                train_dataset=rows,
                processing_class=self.tokenizer,
            )
        return _Sft(
            self.model, args=SFTConfig(**options), train_dataset=rows, processing_class=self.tokenizer
        )

    def gradient(self, number: int) -> Tensor:
        """Return the gradient of the first ``number`` examples in one batch."""
        trainer = self.trainer()
        self.model.zero_grad()
        inputs = trainer.data_collator(self.rows[:number])
        trainer.compute_loss(self.model, inputs).backward()
        return _gradient([one for one in self.model.parameters() if one.requires_grad])

    def change(self) -> Tensor:
        """Return the change of the adapter since its start, in the order of :meth:`Job.change`."""
        now = {key.replace(".default", ""): one for key, one in self.model.state_dict().items()}
        return torch.cat([(now[key] - self.start[key]).flatten() for key in self.start])


class _InOrder:
    """Examples in the order of the data set, which is that of our job, and its learning rates."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[attr-defined]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        used = optimizer or self.optimizer  # type: ignore[attr-defined]
        schedule = Schedule(1.0, 0.0, num_training_steps, num_training_steps // WARM_UP, linear=True)
        self.lr_scheduler = LambdaLR(used, schedule.at)
        return self.lr_scheduler


class _Sft(_InOrder, SFTTrainer):  # type: ignore[misc]
    pass


class _Dpo(_InOrder, DPOTrainer):  # type: ignore[misc]
    def _prepare_dataset(self, dataset: Any, *arguments: Any) -> Any:
        return dataset  # it holds token ids already


def _row(example: Any) -> dict[str, list[int]]:
    """Return an example with TRL's columns."""
    first, *rest = example
    prompt, completion = first.prompt_token_ids, first.completion_token_ids
    if rest:
        rejected = rest[0].completion_token_ids
        return {"prompt_ids": prompt, "chosen_ids": completion, "rejected_ids": rejected}
    return {"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion}


def _gradient(parameters: list[Any]) -> Tensor:
    return torch.cat([one.grad.double().flatten() for one in parameters])


def tokens_of(data: Data) -> int:
    """Return the tokens of all sequences, as if nothing was shared."""
    return sum(len(answer.input_ids) for example in data.train for answer in example)


def settings_of(name: str, batch_size: int) -> JobSettings:
    """Return one epoch of a data set's method."""
    method = method_of(name)
    assert method in LEARNING_RATES
    return JobSettings(method, 0, n_epochs=1, batch_size=batch_size)  # type: ignore[arg-type]


def check(names: list[str]) -> None:
    """Check in float32 that gradients and whole jobs of two steps agree."""
    policy, model = load_both(torch.float32)
    start = policy.adapter_state()
    for name in names:
        data, settings = make_data(name, policy, 2), settings_of(name, CHECKED)
        data = Data(data.train[: 2 * CHECKED], data.families[: 2 * CHECKED])
        ours = Job(policy, start, settings, data)
        theirs = Trl(model, start, settings, data, policy.tokenizer, 1)
        error = _difference(ours.gradient(CHECKED), theirs.gradient(CHECKED))
        ours()
        theirs()
        whole = _difference(ours.change(), theirs.change())
        print(
            f"{name}: gradients differ by {error:.0e} of their norm, adapters after a job by {whole:.0e}",
            flush=True,
        )
        if error > TOLERANCE or whole > TOLERANCE_OF_JOBS:
            raise SystemExit("the gradients differ, so there is nothing to compare")


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def faster(make: Callable[[int], Trl], sizes: tuple[int, ...]) -> int:
    """Return the micro-batch with which TRL is faster."""
    seconds = interleave({str(size): make(size) for size in sizes}, rounds=1)
    return int(min(seconds, key=lambda size: seconds[size]))


def measure(policy: PolicyModel, model: Any, name: str, claims: int, batch: int, rounds: int) -> list[str]:
    """Time the jobs on one data set; return its row of the table."""
    start = policy.adapter_state()
    data, settings = make_data(name, policy, claims), settings_of(name, batch)
    some = Data(data.train[:batch], data.families[:batch])
    micro = faster(lambda size: Trl(model, start, settings, some, policy.tokenizer, size), (1, 4))
    ours = Job(policy, start, settings, data)
    theirs = Trl(model, start, settings, data, policy.tokenizer, micro)
    seconds = interleave({"job": ours, "TRL": theirs}, rounds)
    tokens = tokens_of(data)
    policy.load_adapter_state(start)
    rates = [f"{tokens / median(seconds[one]):,.0f}" for one in ("job", "TRL")]
    figures = [str(len(data.train)), str(tokens), str(micro), *rates]
    return [name, *figures, f"{ratio(seconds['TRL'], seconds['job']):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--claims", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check-only", action="store_true")
    arguments = parser.parse_args()
    pin_one_thread()
    check(list(arguments.data))
    if arguments.check_only:
        return
    policy, model = load_both(auto_dtype())
    print(f"{arguments.rounds} rounds, 1 thread, {policy.dtype}; separate tokens/s of whole jobs")
    header = ["data", "examples", "separate tokens", "micro-batch", "job", "TRL", "job / TRL"]
    rows = [
        measure(policy, model, name, arguments.claims, arguments.batch_size, arguments.rounds)
        for name in arguments.data
    ]
    print_table(header, rows)


if __name__ == "__main__":
    main()
