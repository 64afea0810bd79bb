"""NashConv of published algorithms on Kuhn poker, after equal games and after equal minutes.

Each run is ``sparring train quickstart --recipe NAME``, in a process of its own and on one thread, with
equally many games. Only the recipes differ, so the learning rate is the preset's, tuned for none of them.
``preset`` is the preset without a recipe: reinforce with a regulariser over legal answers. The recipes that
correct for differences between engine and learner are left out, because here these differ by rounding only.

Minutes are those of playing and learning, without evaluations. If not given, they are those that the fastest
algorithm needs for all its games, with its slowest seed; the figure is that of the last evaluation within
them. The table gives the mean and the deviation over seeds. The invalid share is that after all games. Runs
that are in the directory are not repeated, and unfinished ones are continued.

Runs that shared their core with others, or were stopped for a while, have no minutes of their own. With
``--clock DIR``, an update takes as long as on average in the short runs there, which are made too if they are
missing: of each algorithm the first seed and ten updates, one run after the other on an idle machine.

Command:  python benchmarks/algorithms_table.py OUT [--recipes preset grpo ...] [--seeds 0 1 2] [--updates 40]
          [--games 256] [--every 10] [--minutes M] [--clock DIR] [--set FIELD=VALUE ...]
Needs:    this package and the model of the preset. Linux.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from measuring import print_table
from sparring.config import recipe_names
from training_runs import Curve, add_run_options, train

PRESET = "preset"
CLOCK_UPDATES = 10
CORRECTIONS = ("tis", "mis", "icepop", "kpop")


def with_deviation(values: Sequence[float]) -> str:
    """Return the mean and, of several values, the deviation."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def print_algorithms(curves: dict[str, list[Curve]], options: argparse.Namespace) -> None:
    """Print a row for each algorithm, the best after equal games first."""
    fastest = min(max(one.seconds[options.updates] for one in of_name) for of_name in curves.values())
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
                    f"{mean(one.seconds[options.updates] / options.updates for one in of_name):.2f}",
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
    add_run_options(parser, updates=40, games=256, every=10)
    named = [name for name in recipe_names() if name not in CORRECTIONS]
    parser.add_argument("--recipes", nargs="+", default=[PRESET, *named])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--clock", type=Path)
    options = parser.parse_args()
    curves = {name: [curve_of(name, seed, options) for seed in options.seeds] for name in options.recipes}
    if options.clock is not None:
        curves = {name: timed_by_clock(name, of_name, options) for name, of_name in curves.items()}
    print_algorithms(curves, options)


def curve_of(name: str, seed: int, options: argparse.Namespace) -> Curve:
    """Return the curve of one algorithm with one seed."""
    recipe = [] if name == PRESET else ["--recipe", name]
    return train(name, "quickstart", *recipe, seed=seed, options=options)


def timed_by_clock(name: str, of_name: list[Curve], options: argparse.Namespace) -> list[Curve]:
    """Return the curves of one algorithm with the seconds of its short run."""
    short = argparse.Namespace(
        **vars(options) | {"out": options.clock, "updates": CLOCK_UPDATES, "every": CLOCK_UPDATES}
    )
    update = curve_of(name, options.seeds[0], short).seconds[CLOCK_UPDATES] / CLOCK_UPDATES
    return [replace(one, seconds=[update * n for n in range(len(one.seconds))]) for one in of_name]


if __name__ == "__main__":
    main()
