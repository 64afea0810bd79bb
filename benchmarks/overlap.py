"""Overlap of play and learning: seconds per update on Ray, divided by those of the ideal pipeline.

The actors are those of a run (see simulated_cluster.py). The engine answers each call after a fixed delay and
the learner sleeps for the duration of an update, so neither uses a core that the measured parts need.

An update learns from 64 games of TextArena's Kuhn poker, all 64 in flight at once. The answer is always a
check, so each game has six moves and play takes six delays of 50 to 200 ms. The ideal pipeline needs play +
learning for each update in lockstep (``max_staleness`` 0) and the longer of the two otherwise. The first
updates fill the pipeline and are not counted.

Columns: ``learner idle`` and ``engine idle`` are the shares of the counted time in which the learner did not
learn and in which no call was in flight; ``staleness`` gives the age of the trained steps in versions;
``dropped`` counts the steps that were older than allowed.

Command:  python benchmarks/overlap.py [--updates 20]
Needs:    this package with Ray, and tests/.
"""

import argparse
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import ray

from measuring import print_table
from simulated_cluster import Actors, Play, Update, cluster
from sparring.core import Messages

GAMES = 64
MOVES = 6
NOT_COUNTED = 3
"""Updates at the start that are not counted."""
TIMES = ((0.3, 1.2), (0.3, 0.6), (0.6, 0.6), (0.6, 0.3), (1.2, 0.3))
"""Seconds of play and of learning."""
STALENESS = (0, 1, 2)


def always_check(messages: Messages, seed: int | None) -> str:
    """Return the answer that makes every game six moves long."""
    return r"\boxed{[check]}"


@dataclass(frozen=True)
class Cell:
    """One combination of times and staleness."""

    play: float
    learn: float
    max_staleness: int

    def ideal(self) -> float:
        """Return the seconds per update without any cost of orchestration."""
        return self.play + self.learn if self.max_staleness == 0 else max(self.play, self.learn)


@dataclass(frozen=True)
class Measured:
    """The results of a cell: seconds per update, shares and steps."""

    seconds: float
    learner_idle: float
    engine_idle: float
    staleness: dict[int, float]
    dropped: int


def measure(cell: Cell, updates: int) -> Measured:
    """Make the updates and measure those that count.

    Raises:
        SystemExit: an update had too few records.
    """
    play = Play(
        "KuhnPoker-v0-train",
        "qwen3-zs",
        always_check,
        cell.play / MOVES,
        GAMES,
        games_per_update=GAMES,
        max_staleness=cell.max_staleness,
    )
    with tempfile.TemporaryDirectory() as directory:
        actors = Actors(Path(directory), play)
        actors.add_learner(cell.learn)
        playing = actors.start_play()
        try:
            ray.get(actors.learner.train.remote(NOT_COUNTED + updates))
            ray.get(playing)
            made: list[Update] = ray.get(actors.learner.updates.remote())
            first, last = made[NOT_COUNTED - 1].saved_at, made[-1].saved_at
            idle = ray.get(actors.engines[0].idle_seconds.remote(first, last))
        finally:
            actors.kill()
    counted = made[NOT_COUNTED:]
    if any(update.metrics["records"] < MOVES * GAMES for update in counted):
        raise SystemExit("an update had too few records")
    return Measured(
        (last - first) / len(counted),
        1 - sum(update.metrics["time/learn_seconds"] for update in counted) / (last - first),
        idle / (last - first),
        staleness_of(counted),
        int(sum(update.metrics["overlap/dropped_steps"] for update in counted)),
    )


def staleness_of(updates: list[Update]) -> dict[int, float]:
    """Return the share of the trained steps by their age in versions."""
    shares: defaultdict[int, float] = defaultdict(float)
    for update in updates:
        for name, share in update.metrics.items():
            if name.startswith("overlap/staleness_"):
                shares[int(name.removeprefix("overlap/staleness_"))] += share / len(updates)
    return dict(sorted(shares.items()))


def row(cell: Cell, measured: Measured) -> list[str]:
    """Return a row of the table."""
    return [
        f"{cell.play:g} : {cell.learn:g}",
        str(cell.max_staleness),
        f"{cell.ideal():.2f}",
        f"{measured.seconds:.3f}",
        f"{measured.seconds / cell.ideal():.3f}",
        f"{measured.learner_idle:.1%}",
        f"{measured.engine_idle:.1%}",
        ", ".join(f"{age}: {share:.0%}" for age, share in measured.staleness.items()),
        str(measured.dropped),
    ]


HEADER = [
    "play : learn, s",
    "max_staleness",
    "ideal, s",
    "per update, s",
    "ratio",
    "learner idle",
    "engine idle",
    "staleness",
    "dropped",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--staleness", type=int, nargs="*", default=STALENESS, choices=STALENESS)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all times")
    arguments = parser.parse_args()
    rows = []
    with cluster():
        for play, learn in TIMES:
            for max_staleness in arguments.staleness:
                cell = Cell(play * arguments.scale, learn * arguments.scale, max_staleness)
                rows.append(row(cell, measure(cell, arguments.updates)))
                print(rows[-1], flush=True)
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
