"""Time of a forward pass on one and two threads beside a busy process, for each way that OpenMP threads wait.

    python benchmarks/waiting_threads.py [--busy 1] [--rounds 3]

Each contender runs in a separate process, because libgomp reads its environment only once. The model is
SmolLM2-135M in bfloat16, and a pass has 48 tokens. Contenders run in turn; the table has medians over all
passes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from statistics import median
from time import perf_counter

from measuring import print_table

TOKENS, PASSES = 48, 3
CONTENDERS: dict[str, tuple[int, dict[str, str]]] = {
    "1 thread": (1, {}),
    "2 threads, libgomp's default": (2, {}),
    "2 threads, OMP_WAIT_POLICY=passive": (2, {"OMP_WAIT_POLICY": "passive"}),
    "2 threads, GOMP_SPINCOUNT=1000 (the command's)": (2, {"GOMP_SPINCOUNT": "1000"}),
}


def passes(threads: int) -> dict[str, list[float]]:
    """Return the seconds, CPU seconds and voluntary context switches of each pass, in this process."""
    import torch

    from sparring.learn.base_model import hidden_states, load_decoder
    from sparring.learn.model_files import resolve_model
    from sparring.learn.tree_attention import RunAttention
    from sparring.learn.trie import build_plan

    torch.set_num_threads(threads)
    model = load_decoder(resolve_model("smollm2-135m"), torch.bfloat16, torch.device("cpu")).eval()
    plan = build_plan([list(range(100, 100 + TOKENS))], [[1]])
    attend = RunAttention(plan, torch.bfloat16, torch.device("cpu"))
    tokens_T, positions_T = torch.from_numpy(plan.tokens_T), torch.from_numpy(plan.depths_T)
    taken: dict[str, list[float]] = {"seconds": [], "cpu": [], "switches": []}
    with torch.inference_mode():
        for number in range(PASSES + 1):
            before, started = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
            hidden_states(model, tokens_T, positions_T, attend)
            seconds, after = perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
            if number:
                taken["seconds"].append(seconds)
                taken["cpu"].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                taken["switches"].append(after.ru_nvcsw - before.ru_nvcsw)
    return taken


def run_apart(threads: int, settings: dict[str, str]) -> dict[str, list[float]]:
    """Do the same in a fresh process with these environment variables."""
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | settings
    command = [sys.executable, __file__, "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print a row for each contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads is not None:
        print(json.dumps(passes(arguments.threads)))
        return
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)]
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in CONTENDERS}
    try:
        for _ in range(arguments.rounds):
            for name, (threads, settings) in CONTENDERS.items():
                for what, values in run_apart(threads, settings).items():
                    taken[name].setdefault(what, []).extend(values)
    finally:
        for process in busy:
            process.kill()
    rows = [
        [
            name,
            f"{1000 * median(one['seconds']):.0f}",
            f"{median(one['cpu']):.2f}",
            f"{median(one['switches']):.0f}",
        ]
        for name, one in taken.items()
    ]
    print_table(["", "ms per pass", "CPU seconds per pass", "voluntary context switches per pass"], rows)


if __name__ == "__main__":
    main()
