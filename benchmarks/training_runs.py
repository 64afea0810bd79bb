"""Training runs for tables: made if they are missing, continued if they are unfinished, and read."""

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sparring.core.confidence_intervals import interval_over_runs
from sparring.evaluation import NashConvResult
from sparring.evaluation.results import read_evaluation
from sparring.run.run_directory import RunDirectory

SPARRING = (sys.executable, "-c", "from sparring.cli.main import run; run()")


@dataclass(frozen=True)
class Curve:
    """NashConv of a run by update."""

    nash_conv: dict[int, float]

    @classmethod
    def of(cls, run: Path) -> "Curve":
        """Read a run."""
        files = sorted((run / "evaluation").glob("step-*-nash-conv*.json"))
        found = map(read_evaluation, files)
        return cls({step: one.nash_conv for step, one in found if isinstance(one, NashConvResult)})


def add_run_options(parser: ArgumentParser, *, updates: int, games: int, every: int) -> None:
    """Add the options that all tables of runs have."""
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=updates)
    parser.add_argument("--games", type=int, default=games, help="games of an update")
    parser.add_argument("--every", type=int, default=every, help="updates between evaluations")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")


def train(name: str, preset: str, *given: str, seed: int, options: Namespace) -> Curve:
    """Train ``preset`` on one thread, as far as the run is not there already, and read it.

    ``given`` are further arguments of ``sparring train``, and ``options`` those of :func:`add_run_options`. A
    run that is there is known by its name and number of updates; other options need another directory.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    directory = RunDirectory(options.out / f"{name}-seed-{seed}")
    if not directory.is_finished(options.updates):
        print(directory.path.name, file=sys.stderr, flush=True)
        begin = [
            *("train", preset, "--seed", str(seed), "--name", directory.path.name, *given),
            *(f"--run.directory={options.out}", f"--run.save_every={options.every}", "--model.threads=1"),
            *(f"--learning.steps={options.updates}", f"--collection.games_per_step={options.games}"),
            *(f"--evaluation.every={options.every}", "--evaluation.opponents=[]"),
            *(f"--{one}" for one in options.set),
        ]
        begun = (directory.path / "config.toml").exists()
        sparring(*(["train", "--resume", str(directory.path)] if begun else begin))
    return Curve.of(directory.path)


def sparring(*arguments: str) -> None:
    """Run the command in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run([*SPARRING, *arguments], stdout=subprocess.DEVNULL, check=True)


def learned_tokens(lines: Iterable[Mapping[str, float]]) -> float:
    """Return the tokens that were learned in the updates of these metrics."""
    return sum(one["time/trained_tokens_per_second"] * one["time/learn_seconds"] for one in lines)


def main_players(seats: Mapping[str, Sequence[str]]) -> str:
    """Return ``league.players``: a main player of each name, with these seats, or all if there are none."""
    held = {name: f", seats = [{', '.join(map(repr, own))}]" if own else "" for name, own in seats.items()}
    return "{" + ", ".join(f'{name} = {{role = "main"{own}}}' for name, own in held.items()) + "}"


def over_runs(values: Sequence[float]) -> str:
    """Return the mean and, of several values, Student's 95% interval."""
    if len(values) == 1:
        return f"{mean(values):.3f}"
    low, middle, high = interval_over_runs(values)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
