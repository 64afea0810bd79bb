"""Planning: seconds and memory to pack long conversations into prefix trees, at two commits.

A conversation alternates between what is heard and what is answered, tokens at random. Every answer is a
step whose prompt is the conversation so far. What is timed begins with one record a step; joining the records
of a conversation is part of it, where the commit does that. The commits take turns, each in a process of its
own; a figure is the median over rounds. The gate: both make plans of the same number of tokens and
predictions.

Command:  python benchmarks/planning.py --before COMMIT [--conversations 4 16] [--larger 320] [--turns 40]
          [--tokens 800] [--rounds 3] [--svg docs/planning.svg]
Needs:    this package, git. A few minutes and 4 GB of memory; with --larger 320, 12 GB.
"""

import argparse
import gc
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from cluster_growth import check_out
from line_chart import Line, line_chart
from measuring import print_table, ratio
from sparring.core import TrainingRecord
from sparring.learn.batch import pack

try:
    from sparring.core.records import joined
except ImportError:  # an earlier commit has one record a step
    joined = list

VOCABULARY = 49_152
LIMIT_SECONDS = 1800.0
Found = dict[str, dict[int, list[dict[str, float]]]]
"""Figures of each round, by commit and number of conversations."""


def conversation(number: int, turns: int, tokens: int) -> list[TrainingRecord]:
    """Return a record for each answer of one conversation; half of a turn's tokens are the answer."""
    draw = random.Random(number)
    ids: list[int] = []
    records = []
    for _ in range(turns):
        heard = draw.choices(range(VOCABULARY), k=tokens // 2)
        answer = draw.choices(range(VOCABULARY), k=tokens - tokens // 2)
        prompt = ids + heard
        ids = prompt + answer
        records.append(
            TrainingRecord(
                role_id="player",
                rollout_id=str(number),
                prompt_token_ids=prompt,
                completion_token_ids=answer,
                logprobs=[-1.0] * len(answer),
                reward=1.0,
                advantage=1.0,
            )
        )
    return records


def measure_here(conversations: int, turns: int, tokens: int) -> dict[str, float]:
    """Plan once in this process and return the figures."""
    records = [one for number in range(conversations) for one in conversation(number, turns, tokens)]
    options = {"version": 0, "max_train_len": None, "with_answers": False}
    if "max_batch_tokens" in pack.__annotations__:  # an earlier commit cuts plans here
        options["max_batch_tokens"] = 1 << 40
    gc.freeze()  # as a run does with what was played (core.garbage_collection)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = perf_counter()
    batch = pack(joined(records), **options)  # type: ignore[arg-type]
    seconds = perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "megabytes": (peak - before) / 1024,
        "separate": sum(len(one.prompt_token_ids) + len(one.completion_token_ids) for one in records),
        "packed": batch.packed_tokens,
        "predictions": sum(len(plan.predict_node_C) for plan in batch.plans),
    }


def measure(tree: Path, sizes: list[int]) -> dict[str, float]:
    """Return the figures of the package of a tree."""
    command = [sys.executable, __file__, "--here", *map(str, sizes)]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        command, env=environment, check=True, timeout=LIMIT_SECONDS, stdout=subprocess.PIPE
    ).stdout
    figures: dict[str, float] = json.loads(said)
    return figures


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before")
    parser.add_argument("--conversations", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--larger", nargs="*", type=int, default=[], help="numbers for this commit alone")
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=800, help="tokens of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(*options.here)))
        return
    found: Found = {"before": {}, "after": {}}
    with tempfile.TemporaryDirectory() as scratch:
        trees = {
            "before": check_out(options.before, Path(scratch) / "before"),
            "after": Path(__file__).resolve().parent.parent,
        }
        for conversations in (*options.conversations, *options.larger):
            names = [name for name in trees if name == "after" or conversations not in options.larger]
            for _ in range(options.rounds):
                for name in names:
                    figures = measure(trees[name], [conversations, options.turns, options.tokens])
                    found[name].setdefault(conversations, []).append(figures)
    rows = [
        [str(conversations), *_cells(found["before"].get(conversations), runs)]
        for conversations, runs in found["after"].items()
    ]
    print_table(
        ["conversations", "separate tokens", "packed", "s, before / after", "times as fast", "MB"], rows
    )
    if options.svg:
        options.svg.write_text(chart(found))


def chart(found: Found) -> str:
    """Draw the milliseconds of planning over the thousands of tokens in the plan."""
    lines = []
    for name, sizes in found.items():
        points = [
            (runs[0]["packed"] / 1000, 1000 * median(one["seconds"] for one in runs))
            for runs in sizes.values()
        ]
        lines.append(Line(name, points, dashed=name == "before"))
    return line_chart(lines, "thousands of tokens in the plan", "milliseconds to plan")


def _cells(before: list[dict[str, float]] | None, after: list[dict[str, float]]) -> list[str]:
    seconds, memory = ([median(one[key] for one in after)] for key in ("seconds", "megabytes"))
    sizes = [f"{after[0]['separate']:,.0f}", f"{after[0]['packed']:,.0f}"]
    if before is None:
        return [*sizes, f"- / {seconds[0]:.2f}", "", f"- / {memory[0]:,.0f}"]
    for one, other in zip(before, after, strict=True):
        if one["predictions"] != other["predictions"] or one["packed"] != other["packed"]:
            raise SystemExit("the commits do not make the same plans")
    seconds.insert(0, median(one["seconds"] for one in before))
    memory.insert(0, median(one["megabytes"] for one in before))
    times = ratio(*([one["seconds"] for one in runs] for runs in (before, after)))
    return [
        *sizes,
        f"{seconds[0]:.2f} / {seconds[1]:.2f}",
        f"{times:.1f}",
        f"{memory[0]:,.0f} / {memory[1]:,.0f}",
    ]


if __name__ == "__main__":
    main()
