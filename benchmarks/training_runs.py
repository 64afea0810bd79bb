"""Training runs for tables: made if they are missing, continued if they are unfinished, and read."""

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean

from sparring.collection import read_metrics
from sparring.core.confidence_intervals import interval_over_runs
from sparring.evaluation import NashConvResult
from sparring.evaluation.psro import read_state
from sparring.evaluation.results import read_evaluation
from sparring.run.run_directory import RunDirectory

SPARRING = (sys.executable, "-c", "from sparring.cli.main import run; run()")


@dataclass(frozen=True)
class Curve:
    """A run: NashConv and invalid share by update, the seconds after each update, from 0, answers and games.

    The invalid share is the probability of illegal answers, as the mean over the game's positions. Answers
    are those that were learned from; games include those that nobody learns from, but for evaluations.
    """

    nash_conv: dict[int, float]
    invalid: dict[int, float]
    seconds: list[float]
    answers: int
    games: int

    @classmethod
    def of(cls, run: Path) -> "Curve":
        """Read a run."""
        files = sorted((run / "evaluation").glob("step-*-nash-conv.json"))
        results = {step: one for step, one in map(read_evaluation, files) if isinstance(one, NashConvResult)}
        lines = read_metrics(run / "metrics.jsonl")
        each = (line["time/play_seconds"] + line["time/learn_seconds"] for line in lines)
        return cls(
            {step: one.nash_conv for step, one in results.items()},
            {step: 1 - one.legal_mass for step, one in results.items()},
            list(accumulate(each, initial=0.0)),
            sum(int(value) for line in lines for key, value in line.items() if _counts_answers(key)),
            sum(int(lines[-1].get(f"accounts/{kind}", 0)) for kind in ("finished", "payoff_finished")),
        )

    @classmethod
    def of_psro(cls, psro: Path) -> "Curve":
        """Read a PSRO: NashConv of its mixtures, by the updates of all best responses so far.

        The seconds are those of the best responses' training, without the payoff games.
        """
        found = read_state(psro)
        assert found is not None, f"{psro} has not begun"
        members = [cls.of(psro / one.member) for one in found.iterations[1:]]
        updates = accumulate(one.updates for one in found.iterations)
        of_iterations = dict(zip(updates, found.iterations, strict=True))
        gone = accumulate((one.seconds[-1] for one in members), initial=0.0)
        return cls(
            {update: one.nash_conv for update, one in of_iterations.items() if one.nash_conv is not None},
            {},
            [before + second for before, one in zip(gone, members, strict=False) for second in one.seconds],
            sum(one.answers for one in members),
            sum(one.games for one in members) + found.iterations[-1].payoff_games,
        )

    def nash_conv_within(self, seconds: float) -> float:
        """Return NashConv of the last evaluation within so many seconds."""
        return self.nash_conv[max(step for step in self.nash_conv if self.seconds[step] <= seconds)]

    def last_third(self) -> list[float]:
        """Return NashConv at the evaluations of the last third."""
        last = max(self.nash_conv)
        return [value for step, value in self.nash_conv.items() if step > last * 2 / 3]


def _counts_answers(metric: str) -> bool:
    """Return whether a metric is the number of answers from which a policy has learned in an update."""
    return metric.startswith("learner/") and metric.endswith("/records")


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


def over_runs(values: Sequence[float]) -> str:
    """Return the mean and, of several values, Student's 95% interval."""
    if len(values) == 1:
        return f"{mean(values):.3f}"
    low, middle, high = interval_over_runs(values)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
