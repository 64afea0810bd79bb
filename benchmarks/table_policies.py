"""Policy files of algorithms whose policy is a table, for the ladder ``ladders/tables.toml``.

The methods are some of ``magnet_in_tables.py``. A file is written for the uniform policy and for each of ten
evaluations, all at the end; in its name, ``{games}`` is the number of games before.

Command:  python benchmarks/table_policies.py METHOD GAME SEED FILE
Needs:    this package.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from game_trees import FloatArray, Tree
from magnet_in_tables import EVALUATIONS, EXPLORING, GAMES, MAGNET, NEURD, learn
from measuring import pin_one_thread
from sparring.evaluation.policy_file import write_policy

METHODS = {
    "magnet": replace(MAGNET, memory=16.0),
    "neurd": NEURD,
    "magnet-tree": replace(EXPLORING, loss="magnet"),
    "neurd-tree": EXPLORING,
}
"""The methods with the constants of their recipes, by returns and by the tree of games."""


def main() -> None:
    """Learn, and write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("game", choices=GAMES)
    parser.add_argument("seed", type=int)
    parser.add_argument("file", help="with {games} in its name")
    options = parser.parse_args()
    pin_one_thread()
    tree = Tree.of(options.game)
    uniform_SA = tree.legal_SA / tree.legal_SA.sum(axis=1, keepdims=True)
    learned = [found[0] for found in learn(tree, METHODS[options.method], options.seed, EVALUATIONS)]
    updates, games = GAMES[options.game]
    for number, policy_SA in enumerate([uniform_SA, *learned]):
        path = Path(options.file.replace("{games}", str(number * (updates // EVALUATIONS) * games)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_policy(path, table_of(tree, np.asarray(policy_SA)))


def table_of(tree: Tree, policy_SA: FloatArray) -> dict[str, dict[int, float]]:
    """Return the probability of each action, by the names of states and OpenSpiel's numbers of actions."""
    return {
        name: dict(zip(actions, policy_SA[state, : len(actions)].tolist(), strict=True))
        for state, (name, actions) in enumerate(zip(tree.names, tree.actions, strict=True))
    }


if __name__ == "__main__":
    main()
