"""Scale of a cluster without models and without Ray: many engines, many collectors, up to 100,000 games.

Two commits are measured in turn, each case in a process of its own (see cluster_growth_cases.py):

- play: 16 collectors play Kuhn poker with 64 simulated engines on virtual time. Calls last 20 s on average,
  with a long tail. From one mean duration on, for two of them, the calls of each engine are counted.
- pool: the model pool with this many games in flight, its journal included. Games end and others begin, ten
  at a time, until 20,000 have ended. The standstill is the longest time in which its event loop did not run.
- buffer: a replay buffer saves this many stored steps of 460 tokens, and sends as many as a batch.

Command:  python benchmarks/cluster_growth.py --before COMMIT [--in-flight 1024 ...] [--svg docs/growth.svg]
Needs:    this package with Ray, tests/, git. Linux. About 25 KB of memory for each game in flight.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from line_chart import Line, line_chart
from measuring import print_table

HERE = Path(__file__).resolve().parent
IN_FLIGHT = (1024, 4096, 16_384, 100_000)
STEPS = (20_000,)
HEADER = {
    "play": ["games in flight", "calls per engine", "busiest / mean"],
    "pool": ["games in flight", "snapshot, MB", "MB of snapshots per 1,000 games", "longest standstill, ms"],
    "buffer": ["steps", "snapshot, MB", "longest standstill, ms", "us per step sent"],
}
FIGURES = {
    "play": ["calls", "busiest"],
    "pool": ["snapshot_mb", "mb_per_1000_games", "standstill_ms"],
    "buffer": ["snapshot_mb", "standstill_ms", "us_per_step_sent"],
}

Found = dict[tuple[str, int], dict[str, float]]
"""Figures by version and size."""


def check_out(commit: str, directory: Path) -> Path:
    """Write a commit's package and tests to a directory."""
    command = ["git", "-C", str(HERE.parent), "archive", commit, "src", "tests"]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    directory.mkdir()
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory


def measure(tree: Path, case: str, size: int) -> dict[str, float]:
    """Measure a case with the package in a tree."""
    paths = os.pathsep.join([str(tree / "src"), str(tree / "tests")])
    done = subprocess.run(
        [sys.executable, str(HERE / "cluster_growth_cases.py"), case, str(size)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure_all(trees: dict[str, Path], case: str, sizes: list[int]) -> Found:
    """Measure a case at all sizes, the versions in turn; print the table."""
    found: Found = {}
    rows = []
    for size in sizes:
        for version, tree in trees.items():
            found[version, size] = measure(tree, case, size)
            print(case, version, size, found[version, size], file=sys.stderr, flush=True)
        cells = [
            " / ".join(f"{found[version, size][figure]:,.4g}" for version in trees)
            for figure in FIGURES[case]
        ]
        rows.append([f"{size:,}", *cells])
    first, *others = HEADER[case]
    print_table([first, *(f"{name}, {' / '.join(trees)}" for name in others)], rows)
    print()
    return found


def chart(found: Found) -> str:
    """Draw the calls per engine over the games in flight."""
    versions = list(dict.fromkeys(version for version, _ in found))
    lines = [
        Line(
            f"{version}, 64 engines",
            [(size, figures["calls"]) for (of, size), figures in found.items() if of == version],
            dashed=version == versions[0],
        )
        for version in versions
    ]
    return line_chart(lines, "games in flight", "calls in progress per engine")


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="the commit to compare with")
    parser.add_argument("--in-flight", type=int, nargs="*", default=IN_FLIGHT)
    parser.add_argument("--steps", type=int, nargs="*", default=STEPS)
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trees = {"before": check_out(arguments.before, Path(scratch) / "before"), "after": HERE.parent}
        played = measure_all(trees, "play", arguments.in_flight)
        if arguments.svg:
            arguments.svg.write_text(chart(played))
        measure_all(trees, "pool", arguments.in_flight)
        measure_all(trees, "buffer", arguments.steps)


if __name__ == "__main__":
    main()
