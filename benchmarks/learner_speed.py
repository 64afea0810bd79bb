"""Learner speed: prefix-tree training against a bare peft + transformers loop and TRL's GRPOTrainer.

All three compute the gradients of the same loss (REINFORCE with a constant normaliser; TRL: ``dr_grpo``
without KL) in the same adapter on the same recorded batch, in one process on one thread:

- tree: ``Reinforce`` as a run uses it, packing included;
- bare: a loop over micro-batches of 1 or 8 sequences, whichever is faster on the batch's first records;
  sorted by length, padded, with logits only for the completion;
- TRL: ``GRPOTrainer.compute_loss`` and backward, which is its work after generation, on the same
  micro-batches, without gradient checkpointing.

First the gradients of all three must agree in float32. Then they are timed in turn, in the type that a run
would choose; the cosine of the tree's gradient to that in float32 is given too. Tokens are counted as if no
sequence shared anything ("separate").

Command:  python benchmarks/learner_speed.py [--batches kuhn tictactoe unshared] [--rounds 3]
Needs:    an environment with this package and trl==1.16.0 (without TRL its columns are left out). The default
          takes about 40 minutes on one core, nearly all of it in the other two.
"""

import argparse
import importlib.util
import tempfile
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from measuring import interleave, peak_memory_mb, pin_one_thread, print_table, ratio
from plain_model import load_both, pad
from record_batches import BATCHES, auto_dtype, load_batch
from sparring.core import TrainingRecord
from sparring.learn.algorithms import Reinforce
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, PolicyModel

Records = list[TrainingRecord]


def longest_completion(records: Records) -> int:
    """The constant normaliser."""
    return max(len(record.completion_token_ids) for record in records)


class Tree:
    """Our learner. Records get this model's log-probabilities, so that importance weights are 1."""

    def __init__(self, policy: PolicyModel, records: Records) -> None:
        self.parameters = policy.adapter_parameters()
        self.packed_tokens = 0
        self.algorithm = Reinforce()
        self.algorithm.initialize(policy, max_generation_len=longest_completion(records))
        self.records = [replace(record, logprobs=list(record.logprobs)) for record in records]
        for plan in self.algorithm.prepare_batch(records).plans:
            with torch.no_grad(), policy.adapter(TRAINED):
                logprobs_S = plan_logprobs(policy, plan)[torch.from_numpy(plan.prediction_S)]
            for sample, offset, logprob in zip(plan.sample_S, plan.offset_S, logprobs_S, strict=True):
                self.records[sample].logprobs[offset] = float(logprob)

    def __call__(self) -> None:
        batch = self.algorithm.prepare_batch(self.records)
        self.packed_tokens = batch.packed_tokens
        self.algorithm.update(batch)


class Plain:
    """What the other two share: the model, and micro-batches (prompts padded left, completions right)."""

    def __init__(self, model: Any, records: Records, micro_batch: int) -> None:
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.normaliser = longest_completion(records)
        ordered = sorted(records, key=lambda record: len(record.input_ids))
        self.micro_batches = [ordered[i : i + micro_batch] for i in range(0, len(ordered), micro_batch)]
        self.num_records = len(records)

    def inputs(self, records: Records) -> dict[str, Tensor]:
        """A micro-batch under TRL's names."""
        prompts, prompt_mask = pad([record.prompt_token_ids for record in records], left=True)
        completions, completion_mask = pad([record.completion_token_ids for record in records], left=False)
        return {
            "prompt_ids": prompts,
            "prompt_mask": prompt_mask,
            "completion_ids": completions,
            "completion_mask": completion_mask,
            "advantages": torch.tensor([record.advantage for record in records]),
        }


class Bare(Plain):
    """A straightforward training loop."""

    def __call__(self) -> None:
        for records in self.micro_batches:
            inputs = self.inputs(records)
            input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            kept = inputs["completion_ids"].shape[1]
            logits = self.model(
                input_ids=input_ids,
                attention_mask=mask if len(records) > 1 else None,
                logits_to_keep=kept + 1,
                use_cache=False,
            ).logits[:, :-1]
            logprobs = torch.log_softmax(logits.float(), dim=-1)
            logprobs = logprobs.gather(2, inputs["completion_ids"].unsqueeze(2)).squeeze(2)
            weighted = inputs["advantages"].unsqueeze(1) * logprobs * inputs["completion_mask"]
            (-weighted.sum() / (self.normaliser * self.num_records)).backward()


class Trl(Plain):
    """GRPOTrainer's training half."""

    def __init__(self, model: Any, records: Records, micro_batch: int) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        super().__init__(model, records, micro_batch)
        settings = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=self.normaliser,
            loss_type="dr_grpo",
            beta=0.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
        )
        unused = Dataset.from_dict({"prompt": ["unused"] * 2})
        self.trainer = GRPOTrainer(
            model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=unused,
        )
        self.trainer.current_gradient_accumulation_steps = len(self.micro_batches)

    def __call__(self) -> None:
        for records in self.micro_batches:
            self.trainer.compute_loss(self.model, self.inputs(records)).backward()


def run_from_zero(contender: Any) -> None:
    """Compute a contender's gradients; they stay with its parameters."""
    for parameter in contender.parameters:
        parameter.grad = None
    contender()


def gradient(contender: Any) -> Tensor:
    """Return the gradients of the last run as one vector in float64."""
    return torch.cat([parameter.grad.double().flatten() for parameter in contender.parameters])


def contenders(policy: PolicyModel, model: Any, records: Records, micro_batch: int) -> dict[str, Any]:
    """Return our learner and the others, over the same records."""
    others: dict[str, Any] = {"bare": Bare(model, records, micro_batch)}
    if importlib.util.find_spec("trl") is not None:
        others["TRL"] = Trl(model, records, micro_batch)
    return {"tree": Tree(policy, records), **others}


def check_gradients(batches: list[str], num_records: int) -> None:
    """Check that the gradients of the first records of each batch agree in float32."""
    policy, model = load_both(torch.float32)
    for batch in batches:
        records = load_batch(batch)[:num_records]
        gradients = {}
        for name, contender in contenders(policy, model, records, 1).items():
            run_from_zero(contender)
            gradients[name] = gradient(contender)
        ours = gradients.pop("tree")
        for name, theirs in gradients.items():
            error = float((ours - theirs).norm() / theirs.norm())
            print(f"{batch}: gradients of tree and {name} differ by {error:.0e} of their norm (float32)")
            if error > 1e-4:
                raise SystemExit("the gradients differ, so there is nothing to compare")


def faster_micro_batch(model: Any, records: Records) -> int:
    """Return 1 or 8, whichever makes the bare loop faster on the first 8 records."""
    seconds = interleave({str(size): Bare(model, records[:8], size) for size in (1, 8)}, rounds=2)
    return int(min(seconds, key=lambda size: min(seconds[size])))


def cosine_to_float32(ours: Tensor, records: Records) -> float:
    """Return the cosine of a gradient of ours and the same one in float32."""
    policy, _ = load_both(torch.float32)
    exact = Tree(policy, records)
    run_from_zero(exact)
    return float(torch.cosine_similarity(ours, gradient(exact), dim=0))


def measure(policy: PolicyModel, model: Any, batch: str, records: Records, rounds: int) -> list[str]:
    """Time one batch; returns its row of the table."""
    tokens = sum(len(record.input_ids) for record in records)
    micro_batch = faster_micro_batch(model, records)
    timed = contenders(policy, model, records, micro_batch)
    # The others reach their peak in their longest micro-batch.
    longest = contenders(
        policy, model, sorted(records, key=lambda one: len(one.input_ids))[-micro_batch:], micro_batch
    )
    longest["tree"] = timed["tree"]
    memory = {name: peak_memory_mb(partial(run_from_zero, one)) for name, one in longest.items()}
    seconds = interleave({name: partial(run_from_zero, one) for name, one in timed.items()}, rounds)
    ours = gradient(timed["tree"])
    row = [batch, str(len(records)), str(tokens), str(timed["tree"].packed_tokens), str(micro_batch)]
    row.append(f"{cosine_to_float32(ours, records):.4f}")
    for name in ("tree", "bare", "TRL"):
        if name in timed:
            rate = tokens / median(seconds[name])
            row.append(f"{rate:,.0f} ({memory[name] / 1024:.1f})")
    for name in ("bare", "TRL"):
        if name in timed:
            cosine = float(torch.cosine_similarity(ours, gradient(timed[name]), dim=0))
            row.append(f"{ratio(seconds[name], seconds['tree']):.2f} ({cosine:.4f})")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", nargs="+", choices=BATCHES, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, help="use only this many records of each batch")
    parser.add_argument("--gate-records", type=int, default=8)
    arguments = parser.parse_args()
    pin_one_thread()
    check_gradients(arguments.batches, arguments.gate_records)
    policy, model = load_both(auto_dtype())
    others = ["bare", "TRL"] if importlib.util.find_spec("trl") is not None else ["bare"]
    print(f"{arguments.rounds} rounds, 1 thread, {policy.dtype}; separate tokens/s (peak memory, GB)")
    header = [
        "batch",
        "records",
        "separate tokens",
        "packed",
        "micro-batch",
        "cosine to float32",
        "tree",
        *others,
    ]
    header += [f"tree / {name} (cosine of gradients)" for name in others]
    rows = [
        measure(policy, model, batch, load_batch(batch)[: arguments.records], arguments.rounds)
        for batch in arguments.batches
    ]
    print_table(header, rows)


if __name__ == "__main__":
    main()
