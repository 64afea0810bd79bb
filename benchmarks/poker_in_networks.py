"""What a small network learns of games with hidden information by losses over legal answers.

As ``magnet_in_tables.py``, but a network of two layers answers all states, from OpenSpiel's tensor of what a
player knows, as a language model does. ``steps`` are Adam's in an update; with two of them its momentum is
0.8, with one there is none, as in the recipes ``magnet`` and ``neurd``, and with a pace (``learn.pace``) it
is 0.5. The table gives NashConv of the average of weights with decay 0.95, and below it of that of power 2:
the mean over the last four of ten evaluations and over seeds, and the largest of these.

Command:  python benchmarks/poker_in_networks.py [--games kuhn_poker leduc_poker ...] [--seeds 0 1 2]
Needs:    this package.
"""

import argparse
import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from game_trees import FloatArray, Tree
from magnet_in_tables import AVERAGES, EVALUATIONS, GAMES, LAST, Method
from measuring import pin_one_thread, print_table
from small_networks import Learner, Played, States, Training

UPDATES = dict(zip(GAMES, ((60, 1024), (120, 4096), (80, 2048), (80, 2048)), strict=True))
"""The number of updates and of games in each."""
MAGNET, NEURD = Method("magnet", alpha=0.6), Method("neurd")
"""Constants without the tree: those that the preset ``kuhn`` had until then, and those of ``neurd``."""
TREE = replace(MAGNET, tree=True, explore=0.2)
NEURD_TREE = replace(NEURD, tree=True, explore=0.2)
ROWS = [
    *(Training(method, rate) for method in (MAGNET, TREE) for rate in (1e-3, 2e-3)),
    Training(replace(TREE, explore=0.0)),
    *(Training(replace(TREE, alpha=0.5, uniform=0.02), rate) for rate in (1e-3, 2e-3)),
    *(Training(replace(TREE, alpha=0.5, uniform=0.02), 1e-2, momentum=0.5, pace=pace) for pace in (0.2, 0.4)),
    Training(TREE, 1e-2, momentum=0.5, pace=0.2),
    *(Training(replace(TREE, alpha=0.5, uniform=0.02), rate, falls=True) for rate in (1e-3, 2e-3)),
    Training(replace(TREE, alpha=0.5, uniform=0.02), 1e-2, momentum=0.5, pace=0.4, falls=True),
    Training(NEURD_TREE, rate=2e-3),
    Training(NEURD, epochs=1, momentum=0.0),
    Training(replace(NEURD_TREE, alpha=0.5, uniform=0.02), epochs=1, momentum=0.0),
]
"""The rows of the table."""


def states_of(tree: Tree) -> States:
    """Return a game's states."""
    output_SA = np.zeros(tree.legal_SA.shape, dtype=np.int64)
    output_SA[tree.legal_SA] = np.concatenate(tree.actions)
    return States(tree.name, tree.seats, tree.features, tree.legal_SA, output_SA)


def curve(tree: Tree, training: Training, seed: int) -> Iterator[list[float]]:
    """Yield NashConv of the averages at each of the last evaluations."""
    updates, games = UPDATES[tree.name]
    generator, learner = np.random.default_rng(seed), Learner(states_of(tree), training, seed, updates)

    def play(drawn_SA: FloatArray) -> Played:
        return tree.sample_games(drawn_SA, games, generator)

    for number in range(1, updates + 1):
        learner.update(play)
        if number % (updates // EVALUATIONS) == 0 and number > updates * (1 - LAST / EVALUATIONS):
            yield [tree.nash_conv(learner.policy(one)) for one in learner.averages.values()]


def main() -> None:
    """Print a row for each way to learn, with a column for each game."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    pin_one_thread()
    gc.disable()  # hundreds of thousands of steps of games, and no cycles
    trees, rows = [Tree.of(name) for name in options.games], []
    for training in ROWS:
        method = training.method
        curves = [[[*curve(tree, training, seed)] for seed in options.seeds] for tree in trees]
        for number, average in enumerate(AVERAGES):
            found = [np.array(one)[:, :, number] for one in curves]
            cells = [f"{one.mean():.3f} ({one.max():.3f})" for one in found]
            constants = [f"{training.rate:g}", str(training.epochs)]
            more = [] if training.pace is None else [f"pace {training.pace:g}"]
            more += ["falling rate"] if training.falls else []
            changes = ", ".join(filter(None, [method.changes, *more]))
            whose = [method.loss, f"{method.alpha:g}", changes, *constants]
            rows.append([*(["", "", average, "", ""] if average else whose), *cells])
    names = [name.split("(game=")[-1].split("(")[0] for name in options.games]
    print_table(["loss", "alpha", "changes", "rate", "steps", *names], rows)


if __name__ == "__main__":
    main()
