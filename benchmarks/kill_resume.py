"""Kill a lockstep run with SIGKILL at a random moment, resume it, and compare with an uninterrupted one.

    python benchmarks/kill_resume.py [--kills 10] [--seed 0] [TRAIN ARGUMENTS]

The moment is after the run has written its configuration, with which it begins, and before it would end.
The following must be equal: metrics.jsonl apart from wall-clock fields, every logged rollout apart from its
two timestamps, every evaluation file, and the bytes of the final adapters. The accounts must balance in every
run. The arguments after the options go to ``sparring train``; the default is a short Kuhn poker run with
smollm2-135m.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sparring.collection.tracker import is_wall_clock

SHORT_RUN = [
    "quickstart",
    "--model.threads=1",
    "--learning.steps=8",
    "--collection.games_per_step=64",
    "--evaluation.every=3",
    "--evaluation.games=20",
    "--evaluation.games_during=10",
    "--run.save_every=3",
    "--run.keep_checkpoints=2",
]
SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]


def train_command(arguments: list[str], directory: Path, name: str) -> list[str]:
    """Return the command that trains a new run ``directory/name``."""
    return [*SPARRING, "train", *arguments, f"--run.directory={directory}", "--name", name]


def run_to_end(command: list[str], limit: float = 1200) -> None:
    """Run a command; raises with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def timed(arguments: list[str], directory: Path, name: str) -> tuple[float, float]:
    """Train a run, and return the seconds until it has a configuration and until it ends."""
    started, begins = time.perf_counter(), 0.0
    process = subprocess.Popen(
        train_command(arguments, directory, name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        if not begins and (directory / name / "config.toml").exists():
            begins = time.perf_counter() - started
        time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}")
    return begins, time.perf_counter() - started


def kill_and_resume(arguments: list[str], directory: Path, name: str, delay: float) -> str:
    """Start a run, kill it after ``delay`` seconds and resume it; returns where it was killed."""
    process = subprocess.Popen(
        train_command(arguments, directory, name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    run = directory / name
    if not (run / "config.toml").exists():
        run_to_end(train_command(arguments, directory, name))
        return "before it began"
    if (run / "report.html").exists():
        return "after it had ended"
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    lines = len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0
    run_to_end([*SPARRING, "train", "--resume", str(run)])
    return f"at update {lines}, newest checkpoint {saved[-1] if saved else 'none'}"


def fingerprint(run: Path) -> dict[str, Any]:
    """Return everything in a finished run that must be equal."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rollouts = {}
    for path in sorted((run / "rollouts").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            del line["rollout"]["started_at"], line["rollout"]["ended_at"]
        rollouts[path.name] = lines
    last = max((run / "checkpoints").glob("step-*"))
    return {
        "metrics": [{k: v for k, v in line.items() if not is_wall_clock(k)} for line in metrics],
        "rollouts": rollouts,
        "evaluations": {p.name: p.read_text() for p in sorted((run / "evaluation").glob("*.json"))},
        "adapters": {
            path.relative_to(last).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(last.rglob("adapter_model.safetensors"))
        },
    }


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Return the parts in which two fingerprints differ."""
    return [part for part in left if left[part] != right[part]]


def accounts_balance(run: Path) -> bool:
    """Return whether the last metrics line accounts for every game and step."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    counts = {
        name: last.get(f"accounts/{name}", 0.0)
        for name in ("payoff_started", "payoff_finished", "payoff_failed")
    }
    games = last["accounts/started"] == last["accounts/finished"] + last["accounts/failed"]
    games &= counts["payoff_started"] == counts["payoff_finished"] + counts["payoff_failed"]
    parts = ("stored", "evicted", "dropped_stale", "sampled", "cleared")
    steps = {part: last.get(f"accounts/steps {part}", 0.0) for part in ("added", *parts)}
    return games and steps["added"] == sum(steps[part] for part in parts)


def main() -> None:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options, arguments = parser.parse_known_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        begins, seconds = timed(arguments or SHORT_RUN, directory, "whole")
        whole = fingerprint(directory / "whole")
        balanced = accounts_balance(directory / "whole")
        print(f"uninterrupted: {begins:.1f} to {seconds:.1f} s, accounts balance: {balanced}")
        print(f"{'kill':>4} {'after s':>8}  {'differs in':<12} {'accounts':<9} killed")
        failures = 0
        for kill in range(options.kills):
            delay = rng.uniform(begins, seconds)
            where = kill_and_resume(arguments or SHORT_RUN, directory, f"kill-{kill}", delay)
            differs = differences(whole, fingerprint(directory / f"kill-{kill}"))
            balanced = accounts_balance(directory / f"kill-{kill}")
            failures += bool(differs) or not balanced
            print(
                f"{kill:>4} {delay:>8.1f}  {', '.join(differs) or 'nothing':<12} "
                f"{'balance' if balanced else 'DO NOT':<9} {where}",
                flush=True,
            )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
