"""The small presets of papers, each trained with several seeds: what was measured before and after.

Every figure of an evaluation has a row: means over seeds with Student's 95% intervals, before training and at
the last evaluation; minutes of playing, learning and evaluating, and updates. ``--svg`` draws one curve a
paper, and ``sparring compare`` shows all of them.

Command:  python benchmarks/papers.py OUT [NAME ...] [--seeds 0 1 2] [--set FIELD=VALUE ...]
          [--svg docs/papers.svg]
Needs:    this package, the model of the presets, and matplotlib for the drawing. A run that is finished is
          not made again.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import print_table
from sparring.collection import read_metrics
from sparring.commands.compare import ComparedEntry, read_entries
from sparring.config.loading import load_config, preset_names
from sparring.evaluation.figures import FigureName
from sparring.run.run_directory import RunDirectory
from training_runs import over_runs, sparring

PAPERS, SMALL = "papers/", "-small"
SECONDS = ("time/play_seconds", "time/learn_seconds", "time/evaluation_seconds")
SOLVED = FigureName("solver exact match")
SHOWN = {
    "spiral": FigureName("NashConv", "kuhn_poker"),
    "marshal": FigureName("NashConv", "kuhn_poker"),
    "at-grpo": FigureName("NashConv", "tiny_hanabi"),
    "prover-verifier": FigureName("verifier accuracy"),
    "isolated-or-shared": FigureName("held-out score"),
}
"""The figure that is drawn, where it is not the solver's share of held-out questions."""


def names() -> list[str]:
    """Return the papers that have a small preset."""
    small = (name for name in preset_names() if name.endswith(SMALL))
    return [name.removeprefix(PAPERS).removesuffix(SMALL) for name in small]


def trained(path: Path, paper: str, seed: int, more: Sequence[str] = ()) -> RunDirectory:
    """Train a paper's small preset on one thread into ``path``, as far as the run is not there already.

    ``more`` are further fields, as ``FIELD=VALUE``.
    """
    preset = f"{PAPERS}{paper}{SMALL}"
    run = RunDirectory(path)
    updates = load_config(preset, dict(one.split("=", 1) for one in more)).learning.steps
    if not run.is_finished(updates):
        begin = ["train", preset, "--seed", str(seed), "--name", path.name, "--model.threads=1"]
        begun = (path / "config.toml").exists()
        again = ["train", "--resume", str(path), f"--learning.steps={updates}"]
        given = [f"--run.directory={path.parent}", *(f"--{one}" for one in more)]
        sparring(*(again if begun else [*begin, *given]))
    return run


def minutes(run: RunDirectory) -> float:
    """Return the minutes in which a run played, learned and evaluated."""
    lines = read_metrics(run.metrics_file)
    return sum(float(line.get(name, 0)) for line in lines for name in SECONDS) / 60


def of_seeds(runs: Sequence[RunDirectory]) -> ComparedEntry:
    """Return runs that differ in their seeds alone; exit if they differ in other fields."""
    found = read_entries([str(run.path) for run in runs])
    if len(found) > 1:
        names = ", ".join(str(run.path) for run in runs)
        sys.exit(f"{names} have different configurations: move the older ones away, and run this again")
    return found[0]


def rows(name: str, entry: ComparedEntry) -> list[list[str]]:
    """Return a row for each figure that was measured at the beginning and at the end."""
    found = []
    for figure in entry.runs[0].view.figures:
        curve = entry.curve(figure)
        if len(curve) > 1:
            first, last = min(curve), max(curve)
            cells = [over_runs([one.value for one in curve[step].figures]) for step in (first, last)]
            found.append([name, str(figure), *cells, str(last)])
    return found


def draw(entries: Mapping[str, ComparedEntry], path: Path) -> None:
    """Write a panel a paper: one figure, each seed and the mean."""
    from matplotlib import pyplot  # of the extra dev; the table needs none of it

    pyplot.rcParams["svg.hashsalt"] = "papers"  # the same figures give the same bytes
    figure, panels = pyplot.subplots(-(-len(entries) // 3), 3, figsize=(9, 9), squeeze=False)
    for panel in panels.flat[len(entries) :]:
        panel.axis("off")
    for panel, (paper, entry) in zip(panels.flat, entries.items(), strict=False):
        name = SHOWN.get(paper, SOLVED)
        curve = entry.curve(name)
        for seed in zip(*([one.value for one in summary.figures] for summary in curve.values()), strict=True):
            panel.plot(list(curve), seed, color="#56b4e9", linewidth=1)
        means = [summary.interval.mid for summary in curve.values()]
        panel.plot(list(curve), means, color="#0072b2", linewidth=2, marker="o", markersize=3)
        panel.set_title(paper, fontsize=10)
        panel.set_ylabel(name.measure, fontsize=8)
        panel.tick_params(labelsize=8)
    figure.supxlabel("updates", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train the runs that are missing, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(names())}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--svg", type=Path, help="write the curves to this file")
    options = parser.parse_args()
    table = list[list[str]]()
    entries = dict[str, ComparedEntry]()
    for name in options.names or names():
        runs = [trained(options.out / f"{name}-{seed}", name, seed, options.set) for seed in options.seeds]
        if len(runs) > 1:
            entries[name] = of_seeds(runs)
            table += rows(name, entries[name])
        print(f"{name}: {over_runs([minutes(run) for run in runs])} minutes", flush=True)
    print_table(["paper", "figure", "before", "after", "updates"], table)
    if options.svg:
        draw(entries, options.svg)


if __name__ == "__main__":
    main()
