"""NashConv of published algorithms on Kuhn poker, after equal games and after equal minutes.

Each run is ``selfplay train quickstart --recipe NAME``, in a process of its own and on one thread, with
equally many games. Only the recipes differ, so the learning rate is the preset's, tuned for none of them.
``preset`` is the preset without a recipe: reinforce with a regulariser over legal answers. The recipes that
correct for differences between engine and learner are left out, because here these differ by rounding only.

Minutes are those of playing and learning, without evaluations. If not given, they are those that the fastest
algorithm needs for all its games; the figure is that of the last evaluation within them. The table gives the
mean and the deviation over seeds. The invalid share is the probability of illegal answers after all games, as
the mean over the game's positions. Runs that are in the directory are not repeated, and unfinished ones are
continued.

Command:  python benchmarks/algorithms_table.py OUT [--recipes preset grpo ...] [--seeds 0 1 2] [--updates 40]
          [--games 256] [--every 10] [--minutes M] [--set FIELD=VALUE ...]
Needs:    this package and the model of the preset. Linux.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev

from measuring import print_table
from selfplay.config import recipe_names
from selfplay.evaluation import NashConvResult
from selfplay.evaluation.result_files import read_evaluation
from selfplay.record import read_metrics
from selfplay.training.run_directory import RunDirectory

PRESET = "preset"
CORRECTIONS = ("tis", "mis", "icepop", "kpop")
SELFPLAY = (sys.executable, "-c", "from selfplay.cli.main import run; run()")


@dataclass(frozen=True)
class Curve:
    """A run: NashConv and invalid share by update, and the seconds after each update, from 0."""

    nash_conv: dict[int, float]
    invalid: dict[int, float]
    seconds: list[float]

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
        )

    def nash_conv_within(self, seconds: float) -> float:
        """Return NashConv of the last evaluation within so many seconds."""
        return self.nash_conv[max(step for step in self.nash_conv if self.seconds[step] <= seconds)]


def command_of(name: str, seed: int, options: argparse.Namespace) -> list[str]:
    """Return the arguments of ``selfplay`` that train or, if the run has begun, continue it."""
    directory = options.out / f"{name}-seed-{seed}"
    if (directory / "config.toml").exists():
        return ["train", "--resume", str(directory)]
    return [
        *("train", "quickstart", "--seed", str(seed), "--name", directory.name),
        *([] if name == PRESET else ["--recipe", name]),
        *(f"--run.directory={options.out}", f"--run.save_every={options.every}", "--model.threads=1"),
        *(f"--learning.steps={options.updates}", f"--collection.games_per_step={options.games}"),
        *(f"--evaluation.every={options.every}", "--evaluation.opponents=[]"),
        *(f"--{one}" for one in options.set),
    ]


def train(name: str, seed: int, options: argparse.Namespace) -> Curve:
    """Make a run as far as it is not there already, and read it.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    directory = RunDirectory(options.out / f"{name}-seed-{seed}")
    if not directory.is_finished(options.updates):
        print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        subprocess.run([*SELFPLAY, *command_of(name, seed, options)], stdout=subprocess.DEVNULL, check=True)
    return Curve.of(directory.path)


def with_deviation(values: Sequence[float]) -> str:
    """Return the mean and, of several values, the deviation."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def print_algorithms(curves: dict[str, list[Curve]], options: argparse.Namespace) -> None:
    """Print a row for each algorithm, the best after equal games first."""
    fastest = min(mean(one.seconds[-1] for one in of_name) for of_name in curves.values())
    seconds = fastest if options.minutes is None else 60 * options.minutes
    rows = []
    for name, of_name in curves.items():
        last = [one.nash_conv[options.updates] for one in of_name]
        rows.append(
            (
                mean(last),
                [
                    name,
                    with_deviation(last),
                    with_deviation([one.nash_conv_within(seconds) for one in of_name]),
                    f"{mean(one.seconds[-1] / options.updates for one in of_name):.2f}",
                    f"{mean(one.invalid[options.updates] for one in of_name):.1%}",
                ],
            )
        )
    first = mean(one.nash_conv[0] for of_name in curves.values() for one in of_name)
    print(f"NashConv of the untrained model: {first:.3f}; seeds: {', '.join(map(str, options.seeds))}\n")
    games = f"{options.updates * options.games:,} games"
    header = ["algorithm", f"NashConv after {games}", f"after {seconds / 60:.1f} minutes", "s per update"]
    print_table([*header, "invalid share"], [row for _, row in sorted(rows)])


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    named = [name for name in recipe_names() if name not in CORRECTIONS]
    parser.add_argument("--recipes", nargs="+", default=[PRESET, *named])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--games", type=int, default=256)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    curves = {name: [train(name, seed, options) for seed in options.seeds] for name in options.recipes}
    print_algorithms(curves, options)


if __name__ == "__main__":
    main()
