"""Two claims of papers, tried at the size of a laptop: a row for each setting, means over seeds.

``gate`` (arXiv 2605.22217): a proposer and its solvers learn without the truth, for each strictness of the
gate that lets proposals in. Training may be rewarded for what is wrong before held-out answers become worse.
All runs begin with an adapter that learned with the truth for some updates.

``policies`` (arXiv 2605.24202): three solvers and a chooser, with a policy for each role or one for all. The
first may peak higher and fall, of the second one role may take the gradient.

A figure over updates is that of the last third of them. Intervals are Student's of 95% over seeds.

Command:  python benchmarks/papers_claims.py gate|policies OUT [--seeds 0 1 2] [--set FIELD=VALUE ...]
Needs:    this package and the model of the presets. A run that is finished is not made again.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from measuring import print_table
from papers import of_seeds, trained
from sparring.collection import read_metrics
from sparring.commands.compare import ComparedEntry
from sparring.evaluation.figures import FigureName
from sparring.run.run_directory import RunDirectory
from training_runs import over_runs

LEAKS = ("0", "0.05", "0.1", "0.2", "0.4", "0.7", "1")
WITH_TRUTH = ("program.solver_labels=answer", "program.proposer_labels=answer", "evaluation.every=0")
OF_TRAINING = {
    "invalid let in": "program/metric/propose/leaked/Proposer",
    "valid": "program/metric/propose/valid/Proposer",
    "rewarded": "program/reward/Solver",
    "right": "program/metric/solve/exact_match/Solver",
}
SHARE = "answers/advantage_share/"

Line = Mapping[str, float]


def late(lines: Sequence[Line], name: str) -> float:
    """Return the mean of a metric over the last third of the updates; 0 if none has it."""
    found = [line[name] for line in lines[2 * len(lines) // 3 :] if name in line]
    return fmean(found) if found else 0.0


def largest_share(lines: Sequence[Line]) -> float:
    """Return the largest share of a role in the tokens' advantages, in the last third of the updates."""
    names = {name for line in lines for name in line if name.startswith(SHARE)}
    return max(late(lines, name) for name in names)


def held_out(runs: Sequence[RunDirectory], measure: str) -> list[str]:
    """Return a measure before training, the best of each run, and at the end."""
    entry = of_seeds(runs)
    curves = [_values(entry, place, FigureName(measure)) for place in range(len(runs))]
    return [
        over_runs([of(curve) for curve in curves]) for of in (lambda one: one[0], max, lambda one: one[-1])
    ]


def _values(entry: ComparedEntry, place: int, name: FigureName) -> list[float]:
    series = entry.runs[place].view.figures[name]
    return [series[step].value for step in sorted(series)]


def gate(options: Namespace) -> None:
    """Print a row for each leak of the gate."""
    paper = "survive-or-collapse"
    start = trained(options.out / "start", paper, 0, [*WITH_TRUTH, f"learning.steps={options.start}"])
    begin = f"start.default={start.path}@{options.start}"
    rows = []
    for leak in options.leaks:
        given = [f"program.gate.leak={leak}", begin, *options.set]
        runs = [trained(options.out / f"leak-{leak}-{seed}", paper, seed, given) for seed in options.seeds]
        lines = [read_metrics(run.metrics_file) for run in runs]
        cells = [over_runs([late(one, name) for one in lines]) for name in OF_TRAINING.values()]
        rows.append([leak, *cells, *held_out(runs, "solver exact match")])
    print_table(["leak", *OF_TRAINING, "held out, before", "best", "end"], rows)


def policies(options: Namespace) -> None:
    """Print a row for policies of each role's own, and for one of all roles."""
    rows = []
    for way in ("isolated", "shared"):
        given = [f"program.policies={way}", *options.set]
        paths = {seed: options.out / f"{way}-{seed}" for seed in options.seeds}
        runs = [trained(path, "isolated-or-shared", seed, given) for seed, path in paths.items()]
        share = over_runs([largest_share(read_metrics(run.metrics_file)) for run in runs])
        rows.append([way, *held_out(runs, options.measure), share])
    print_table(["policies", "held out, before", "best", "end", "largest share of a role"], rows)


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("claim", choices=("gate", "policies"))
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--leaks", nargs="+", default=LEAKS)
    parser.add_argument("--start", type=int, default=30, help="updates with the truth before the gate's")
    parser.add_argument("--measure", default="held-out score", help="of the policies' claim")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    {"gate": gate, "policies": policies}[options.claim](options)


if __name__ == "__main__":
    main()
