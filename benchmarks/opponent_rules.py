"""NashConv of self-play on Kuhn poker by the rule that chooses opponents, after equal games.

Each run is ``selfplay train kuhn`` with another ``population.sample_mode``, in a process of its own and on
one thread, with equally many games. Copies of the policy join the pool every few updates. A rule that draws
opponents trains one seat of a game, ``mirror`` both: the table gives the answers that were trained on.
NashConv is that of the running average of the weights, as in any run of this preset.

The table gives the mean over the evaluations of the last third and, over seeds, the deviation; the plot has a
line for each rule, the mean over seeds. Runs that are in the directory are not repeated, and unfinished ones
are continued.

Command:  python benchmarks/opponent_rules.py OUT [--rules mirror pfsp-hard ...] [--seeds 0 1 2]
          [--updates 60] [--games 1024] [--every 5] [--svg FILE] [--set FIELD=VALUE ...]
Needs:    this package with the extra ``populations``, the preset's model. Linux. About ten minutes a run.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import mean

from algorithms_table import SELFPLAY, Curve, with_deviation
from line_chart import Line, line_chart
from measuring import print_table
from selfplay.record import read_metrics
from selfplay.training.run_directory import RunDirectory

RULES = {
    "mirror": [],
    "lagged": ["--population.sample_mode=lagged"],
    "random": ["--population.sample_mode=random"],
    "match-quality": ["--population.sample_mode=match-quality"],
    "ts-dist": ["--population.sample_mode=ts-dist"],
    "historical": ["--population.sample_mode=historical"],
    "pfsp-hard": ["--population.sample_mode=pfsp", "--population.pfsp=hard"],
    "pfsp-variance": ["--population.sample_mode=pfsp", "--population.pfsp=variance"],
    "pfsp-linear": ["--population.sample_mode=pfsp", "--population.pfsp=linear"],
    "meta-nash": ["--population.sample_mode=meta-nash"],
}


def command_of(rule: str, seed: int, options: argparse.Namespace) -> list[str]:
    """Return the arguments of ``selfplay`` that train or, if the run has begun, continue it."""
    directory = options.out / f"{rule}-seed-{seed}"
    if (directory / "config.toml").exists():
        return ["train", "--resume", str(directory)]
    return [
        *("train", "kuhn", "--seed", str(seed), "--name", directory.name),
        *(f"--run.directory={options.out}", f"--run.save_every={options.every}", "--model.threads=1"),
        *(f"--learning.steps={options.updates}", f"--collection.games_per_step={options.games}"),
        *(f"--evaluation.every={options.every}", "--evaluation.opponents=[]"),
        *(f"--population.add_every={options.every}", "--population.max_active_lora=8"),
        *RULES[rule],
        *(f"--{one}" for one in options.set),
    ]


def train(rule: str, seed: int, options: argparse.Namespace) -> tuple[Curve, int]:
    """Make a run as far as it is not there already; return its curve and the answers trained on.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    directory = RunDirectory(options.out / f"{rule}-seed-{seed}")
    if not directory.is_finished(options.updates):
        print(f"{rule}, seed {seed}", file=sys.stderr, flush=True)
        subprocess.run([*SELFPLAY, *command_of(rule, seed, options)], stdout=subprocess.DEVNULL, check=True)
    lines = read_metrics(directory.path / "metrics.jsonl")
    return Curve.of(directory.path), sum(int(line["learner/records"]) for line in lines)


def last_third(curve: Curve, updates: int) -> list[float]:
    """Return NashConv at the evaluations of the last third."""
    return [value for step, value in curve.nash_conv.items() if step > updates * 2 / 3]


def print_rules(runs: dict[str, list[tuple[Curve, int]]], options: argparse.Namespace) -> None:
    """Print a row for each rule, the best first."""
    rows = []
    for rule, of_rule in runs.items():
        thirds = [last_third(curve, options.updates) for curve, _ in of_rule]
        means = [mean(third) for third in thirds]
        row = [
            rule,
            with_deviation(means),
            f"{max(map(max, thirds)):.3f}",
            f"{mean(answers for _, answers in of_rule):,.0f}",
            f"{mean(curve.seconds[-1] / options.updates for curve, _ in of_rule):.2f}",
        ]
        rows.append((mean(means), row))
    print(f"{options.updates * options.games:,} games; seeds: {', '.join(map(str, options.seeds))}\n")
    header = ["rule", "NashConv, last third", "largest", "answers trained on", "s per update"]
    print_table(header, [row for _, row in sorted(rows)])


def lines_of(runs: dict[str, list[tuple[Curve, int]]]) -> list[Line]:
    """Return a line for each rule, from the first evaluation after an update; every second one is dashed."""
    lines = []
    for number, (rule, of_rule) in enumerate(runs.items()):
        steps = sorted(step for step in of_rule[0][0].nash_conv if step)
        points = [(float(step), mean(curve.nash_conv[step] for curve, _ in of_rule)) for step in steps]
        lines.append(Line(rule, points, dashed=number % 2 == 1))
    return lines


def main() -> None:
    """Train what is missing, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--games", type=int, default=1024)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    runs = {rule: [train(rule, seed, options) for seed in options.seeds] for rule in options.rules}
    print_rules(runs, options)
    if options.svg is not None:
        options.svg.write_text(line_chart(lines_of(runs), "update", "NashConv"))


if __name__ == "__main__":
    main()
