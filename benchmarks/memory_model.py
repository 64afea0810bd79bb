"""The memory model (``memory_formulas.py``) compared with the memory that the learner needs on a CPU.

Each measurement runs in a separate process. It loads a model, makes a small first update so that the
optimizer's state exists and libraries are warm, and then makes one update on synthetic records that give one
pass of the desired size. The figure is the peak resident memory during that update, minus the resident memory
with the model loaded and warm but without a learner. It includes adapter gradients, moments and average, but
not the base.

Records are ``single`` (one sequence whose last quarter is sampled), ``few sampled`` (one sequence with 16
sampled tokens) or ``shared`` (a common prefix of 256 tokens, then branches of 48 tokens, 16 of them sampled).
Models are SmolLM2-135M and, with random weights, two of other shapes, some with fewer layers. Cases marked
``fit`` gave the two fitted factors; docs/memory.md says to what extent the others are a test. glibc's
allocator is set to return freed memory, so that resident memory is memory in use; some cases are also
measured with its default settings, under which the heap keeps holes.

Command:  OMP_NUM_THREADS=1 python benchmarks/memory_model.py
          python benchmarks/memory_model.py --table     (prints the first table of docs/memory.md)
Needs:    this package. Linux, to measure memory.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from measuring import peak_memory_mb, pin_one_thread, print_table, resident_mb
from memory_formulas import (
    SHAPES,
    LoraShape,
    ModelShape,
    PassSize,
    PlayMemory,
    base_bytes,
    largest_pass,
    play_memory,
    training_memory,
)

MB = 1024 * 1024
GB = 1_000_000_000
MEMORY_GB = (12, 16, 24, 48, 80)
USABLE = 0.9
CACHED_TOKENS = 8192
MOST_TOKENS = 16_384
PREFIX, BRANCH, ANSWER = 256, 48, 16
# By default, glibc eventually allocates tensors of up to 32 MB from a heap, which gets holes. With fixed
# thresholds it requests every block of a megabyte or more from the kernel and returns it afterwards.
RETURN_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(MB), "MALLOC_TRIM_THRESHOLD_": str(MB)}


@dataclass(frozen=True)
class Case:
    """One measurement. ``layers`` is how many of the shape's layers are used; 0 means all.

    ``default_allocator`` means that it is also measured with the C library's own settings.
    """

    model: str
    dtype: str
    records: str
    tokens: int
    rank: int = 16
    layers: int = 0
    recomputed: bool = False
    default_allocator: bool = False
    fit: bool = False

    @property
    def shape(self) -> ModelShape:
        """The shape of the measured model."""
        shape = SHAPES[self.model]
        return replace(shape, num_layers=self.layers) if self.layers else shape

    @property
    def name(self) -> str:
        """The case's name in the table."""
        return f"{self.model}, {self.layers} layers" if self.layers else self.model


SMALL, QWEN, LLAMA = "SmolLM2-135M", "Qwen3-0.6B", "Llama-3.2-1B"
CASES = [
    Case(SMALL, "bfloat16", "single", 1024, default_allocator=True),
    Case(SMALL, "float32", "single", 1024, default_allocator=True),
    Case(SMALL, "bfloat16", "few sampled", 4096, recomputed=True, fit=True),
    Case(SMALL, "bfloat16", "single", 512),
    Case(SMALL, "bfloat16", "single", 1536),
    Case(SMALL, "bfloat16", "single", 2048, recomputed=True),
    Case(SMALL, "bfloat16", "single", 1024, rank=64),
    Case(SMALL, "bfloat16", "shared", 1024),
    Case(SMALL, "bfloat16", "shared", 2048, recomputed=True, default_allocator=True),
    Case(SMALL, "float32", "single", 512),
    Case(SMALL, "float32", "single", 2048, recomputed=True),
    Case(SMALL, "float32", "shared", 1536),
    Case(LLAMA, "bfloat16", "single", 1536, layers=2, fit=True),
    Case(QWEN, "bfloat16", "shared", 2048, layers=8, recomputed=True),
    Case(QWEN, "bfloat16", "single", 1024),
]


def made_up_records(case: Case, records: str, tokens: int) -> list[Any]:
    """Return records of random tokens whose prefix tree feeds ``tokens`` tokens, as nearly as possible."""
    from sparring.core import TrainingRecord

    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(3, 40_000) for _ in range(count)]

    def record(prompt: list[int], completion: list[int]) -> TrainingRecord:
        return TrainingRecord(
            role_id="nobody",
            rollout_id="",
            prompt_token_ids=prompt,
            completion_token_ids=completion,
            logprobs=[0.0] * len(completion),
            reward=1.0,
            advantage=1.0,
        )

    if records == "shared":
        prefix = ids(PREFIX)
        count = max(1, (tokens - PREFIX) // (BRANCH - 1))
        return [record(prefix + ids(BRANCH - ANSWER), ids(ANSWER)) for _ in range(count)]
    sampled = ANSWER if records == "few sampled" else max(tokens // 4, 1)
    return [record(ids(tokens + 1 - sampled), ids(sampled))]


def load(case: Case) -> Any:
    """Return the case's model as a policy. Shapes other than the bundled model's get random weights."""
    import torch

    from sparring.core.adapters import BUNDLED_MODEL
    from sparring.learn.model_files import resolve_model
    from sparring.learn.policy import LoraSettings, PolicyModel

    dtype = getattr(torch, case.dtype)
    bundled = resolve_model(BUNDLED_MODEL)
    if case.model == SMALL:
        return PolicyModel(bundled, LoraSettings(case.rank), dtype=dtype)
    with tempfile.TemporaryDirectory() as directory:
        save_random_model(case.shape, bundled, Path(directory))
        return PolicyModel(directory, LoraSettings(case.rank), dtype=dtype)


def save_random_model(shape: ModelShape, tokenizer: str, directory: Path) -> None:
    """Write a model of this shape with another model's tokenizer and weights in bfloat16."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config_class, model_class = (
        (Qwen3Config, Qwen3ForCausalLM) if shape.qk_norm else (LlamaConfig, LlamaForCausalLM)
    )
    config = config_class(
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=16_384,
    )
    torch.set_default_dtype(torch.bfloat16)
    model_class(config).save_pretrained(directory)
    torch.set_default_dtype(torch.float32)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)


def measure(case: Case) -> dict[str, Any]:
    """Run one case in this process; returns megabytes above the loaded model, and the passes' sizes."""
    from sparring.config.learning import LearningSettings
    from sparring.learn.algorithms import Reinforce
    from sparring.learn.learner import Learner

    pin_one_thread()
    policy = load(case)
    algorithm = Reinforce()
    algorithm.initialize(policy, max_generation_len=16, max_batch_tokens=case.tokens + BRANCH)
    algorithm.limits.memory.limit = 0.0 if case.recomputed else math.inf
    warm = made_up_records(case, "single", 16)
    algorithm.update(algorithm.prepare_batch(warm))
    for parameter in policy.adapter_parameters():
        parameter.grad = None
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    loaded = resident_mb()
    settings = LearningSettings(
        learning_rate=1e-5,
        schedule="constant",
        average_decay=0.9,
        max_mismatch=1e6,
        max_generation_len=16,
        max_batch_tokens=case.tokens + BRANCH,
    )
    learner = Learner(policy, algorithm, settings)
    algorithm.limits.memory.limit = 0.0 if case.recomputed else math.inf
    learner.update(warm)
    records = made_up_records(case, case.records, case.tokens)
    plans = algorithm.prepare_batch(records).plans
    peak = peak_memory_mb(lambda: learner.update(records))
    passes = [asdict(pass_size(plan, case.recomputed)) for plan in plans]
    return {"megabytes": peak - loaded, "passes": passes}


def pass_size(plan: Any, recomputed: bool) -> PassSize:
    """Return the sizes of a plan that the memory model needs."""
    import numpy as np
    import torch

    from sparring.learn.tree_attention import RunAttention

    attend = RunAttention(plan, torch.float32, torch.device("cpu"))
    runs = attend.runs
    copied = sum(len(run.context_K) + run.stop - run.start for run in runs if len(run.context_K))
    masked = sum(mask.numel() for run in runs if (mask := attend.mask(run, None)) is not None)
    return PassSize(plan.num_tokens, len(np.unique(plan.predict_node_C)), copied, masked, recomputed)


def computed(case: Case, passes: list[PassSize]) -> int:
    """Return the computed bytes of the largest pass, beyond what is loaded before a learner exists."""
    lora = LoraShape(case.rank)
    needs = [training_memory(case.shape, lora, size, case.dtype, average=True) for size in passes]
    return max(memory.total - memory.base - memory.adapter for memory in needs)


def run_apart(case: Case, allocator: dict[str, str]) -> dict[str, Any]:
    """Measure a case in a fresh process."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**environment, **allocator}
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(cases: list[Case]) -> None:
    """Print the measured memory beside the computed one."""
    header = ["model", "base", "records", "rank", "packed", "recomputed", "measured, MB", "computed, MB"]
    header += ["computed / measured", "default allocator, MB", "use"]
    rows = []
    ratios: dict[str, list[float]] = {"fit": [], "test": []}
    for case in cases:
        found = run_apart(case, RETURN_AT_ONCE)
        usual = f"{run_apart(case, {})['megabytes']:,.0f}" if case.default_allocator else ""
        passes = [PassSize(**size) for size in found["passes"]]
        need = computed(case, passes) / MB
        use = "fit" if case.fit else "test"
        ratios[use].append(need / found["megabytes"])
        largest = max(passes, key=lambda size: size.tokens)
        row = [case.name, case.dtype, case.records, str(case.rank), f"{largest.tokens:,}"]
        row += ["yes" if largest.recomputed else "no", f"{found['megabytes']:,.0f}", f"{need:,.0f}"]
        rows.append([*row, f"{ratios[use][-1]:.2f}", usual, use])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print_table(header, rows)
    for use, values in ratios.items():
        low, high = min(values), max(values)
        print(
            f"{use}: {len(values)} cases, computed / measured {low:.2f} to {high:.2f}, {median(values):.2f}"
        )


def print_what_fits(dtype: str, lora: LoraShape) -> None:
    """Print the first table of docs/memory.md: the computed largest passes by model and memory."""
    rows = []
    for name, shape in SHAPES.items():
        play = play_memory(shape, dtype, max_cached_tokens=CACHED_TOKENS)
        cells = [
            " / ".join(largest(shape, dtype, lora, memory, engine) for engine in (None, play))
            for memory in MEMORY_GB
        ]
        rows.append([name, f"{base_bytes(shape, dtype) / GB:.1f}", *cells])
    print_table(["model", "weights, GB", *(f"{memory} GB" for memory in MEMORY_GB)], rows)


def largest(shape: ModelShape, dtype: str, lora: LoraShape, memory_gb: int, engine: PlayMemory | None) -> str:
    """Return a cell: the largest ``learning.max_batch_tokens`` that fits, ``all`` for the largest tried."""
    tokens = largest_pass(
        shape, lora, dtype, memory_gb * GB, usable=USABLE, average=True, play=engine, most=MOST_TOKENS
    )
    if not tokens:
        return "-"
    return "all" if tokens == MOST_TOKENS else f"{tokens:,}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--table", action="store_true", help="print the first table of docs/memory.md and stop"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(Case(**json.loads(arguments.case)))))
    elif arguments.table:
        print_what_fits("bfloat16", LoraShape(32))
    else:
        compare(CASES)


if __name__ == "__main__":
    main()
