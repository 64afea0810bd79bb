"""Seconds for each update of whole runs, at two commits, in one process or on Ray.

Each run is ``sparring train`` of a bundled configuration in a process of its own, shortened to a few updates
without evaluations. The commits take turns, and the speed is the median over rounds of the ratio of seconds
within a round: of playing and learning after the first update, or on Ray from the first update's end to the
end of the last but one, whose metrics an evaluation follows. Playing and learning are also compared alone. A
last ratio is of the command's CPU seconds, which other work on the machine disturbs less; on Ray most of the
work is in other processes. The table says whether, in one process, the rewards and losses of every update
agree to six digits; commits that round differently soon play different games.

Command:  python benchmarks/run_speed.py --before COMMIT [--runs quickstart ...] [--runtimes local ray]
          [--rounds 3] [--updates 4] [--set FIELD=VALUE ...]
Needs:    this package with Ray, git. Linux.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cluster_growth import check_out
from measuring import print_table, ratio

SPARRING = "from sparring.cli.main import run; run()"
RUNS = ("quickstart", "tictactoe", "proposer-solver")
LIMIT_SECONDS = 3600.0


@dataclass(frozen=True)
class Measured:
    """A run: seconds of its updates, of playing and learning in them, the command's CPU seconds and peak
    memory, and the metrics.
    """

    seconds: float
    play_seconds: float
    learn_seconds: float
    cpu_seconds: float
    peak_mb: float
    figures: list[dict[str, float]]


def measure(tree: Path, name: str, runtime: str, updates: int, more: list[str]) -> Measured:
    """Train with the package of a tree.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            *(sys.executable, "-c", SPARRING, "train", name, f"--runtime={runtime}", "--model.threads=1"),
            *(f"--run.directory={scratch}", "--name=run", f"--learning.steps={updates}"),
            *("--evaluation.every=0", "--run.save_every=1000", *more),
        ]
        log = Path(scratch) / "log"
        with log.open("w") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, env=os.environ | {"PYTHONPATH": str(tree / "src")}
            )
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
        lines = [
            json.loads(line) for line in (Path(scratch) / "run" / "metrics.jsonl").read_text().splitlines()
        ]
    overlapping = runtime == "ray"
    played = "wait" if "time/wait_seconds" in lines[-1] else "play"  # what learning waits for
    play, learn = (sum(line[f"time/{name}_seconds"] for line in lines[1:]) for name in (played, "learn"))
    seconds = lines[-2]["wall_time"] - lines[0]["wall_time"] if overlapping else play + learn
    return Measured(seconds, play, learn, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, lines)


def same_figures(one: Measured, other: Measured) -> bool:
    """Return whether losses and rewards agree in every update."""
    keys = [key for key in one.figures[0] if key.endswith("/loss") or "reward" in key]
    pairs = zip(one.figures, other.figures, strict=True)
    return all(
        abs(line[key] - there.get(key, float("nan"))) <= 1e-6 * max(1.0, abs(line[key]))
        for line, there in pairs
        for key in keys
        if key in line
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True)
    parser.add_argument("--runs", nargs="+", default=list(RUNS))
    parser.add_argument("--runtimes", nargs="+", choices=("local", "ray"), default=["local", "ray"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    more = [f"--{one}" for one in options.set]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        trees = {
            "before": check_out(options.before, Path(scratch) / "before"),
            "after": Path(__file__).resolve().parent.parent,
        }
        for name in options.runs:
            for runtime in options.runtimes:
                found: dict[str, list[Measured]] = {version: [] for version in trees}
                for _ in range(options.rounds):
                    for version, tree in trees.items():
                        found[version].append(measure(tree, name, runtime, options.updates, more))
                        print(name, runtime, version, found[version][-1].seconds, file=sys.stderr, flush=True)
                rows.append([name, runtime, *_cells(found["before"], found["after"], runtime)])
    header = ["run", "runtime", "s, before", "s, after", "speed", "of playing", "of learning"]
    header += ["speed by CPU", "peak MB", "same figures"]
    print_table(header, rows)


def _cells(before: list[Measured], after: list[Measured], runtime: str) -> list[str]:
    seconds = [[one.seconds for one in runs] for runs in (before, after)]
    cpu = [[one.cpu_seconds for one in runs] for runs in (before, after)]
    peak = [median(one.peak_mb for one in runs) for runs in (before, after)]
    same = all(same_figures(one, other) for one, other in zip(before, after, strict=True))
    if runtime == "local" and not same:
        print("the commits do not compute the same", file=sys.stderr)
    return [
        f"{median(seconds[0]):.1f}",
        f"{median(seconds[1]):.1f}",
        f"{ratio(*seconds):.3f}",
        f"{ratio([one.play_seconds for one in before], [one.play_seconds for one in after]):.3f}",
        f"{ratio([one.learn_seconds for one in before], [one.learn_seconds for one in after]):.3f}",
        f"{ratio(*cpu):.3f}",
        f"{peak[0]:,.0f}, {peak[1]:,.0f}",
        "yes" if same else "no",
    ]


if __name__ == "__main__":
    main()
