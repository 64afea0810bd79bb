"""What values by the tree of games cost beside a model's passes: time for a game, and memory.

The games are Leduc poker, whose histories return, and random ones whose histories never do, of 30 decisions
with 20 legal answers each, until no more rows are remembered. Times are a processor's, medians over batches.

Command:  python benchmarks/tree_values_speed.py
Needs:    this package.
"""

import random
from statistics import median
from time import process_time

import numpy as np

from game_trees import Tree
from magnet_in_tables import KEYS, games_of
from measuring import pin_one_thread, print_table, resident_mb
from sparring.learn.game_tree import HistoryGame, HistoryStep, Policy
from sparring.learn.histories import KEY_BYTES
from sparring.learn.tree_values import TreeValues

BATCHES = 12
LEDUC_GAMES, LONG_GAMES, DECISIONS, ANSWERS = 4096, 512, 30, 20


def leduc() -> list[tuple[list[HistoryGame], Policy]]:
    """Return batches of games of the uniform policy."""
    tree, generator = Tree.of("leduc_poker"), np.random.default_rng(0)
    policy_SA = tree.legal_SA / tree.legal_SA.sum(axis=1, keepdims=True)
    policy = {
        KEYS[state]: dict(zip(KEYS[: len(actions)], policy_SA[state].tolist(), strict=False))
        for state, actions in enumerate(tree.actions)
    }
    samples = [tree.sample_games(policy_SA, LEDUC_GAMES, generator) for _ in range(BATCHES)]
    return [(games_of(tree.name, tree.seats, policy_SA, sample), policy) for sample in samples]


def long() -> list[tuple[list[HistoryGame], Policy]]:
    """Return batches of games that have nothing in common."""
    draw, batches = random.Random(0), []
    for _ in range(BATCHES):
        games, policy = list[HistoryGame](), dict[bytes, dict[bytes, float]]()
        for _ in range(LONG_GAMES):
            decisions = []
            for number in range(DECISIONS):
                asked, answers = (
                    draw.randbytes(KEY_BYTES),
                    [draw.randbytes(KEY_BYTES) for _ in range(ANSWERS)],
                )
                policy[asked] = dict.fromkeys(answers, 1 / ANSWERS)
                decisions.append(HistoryStep(f"player_{number % 2}", asked, answers[0], 1 / ANSWERS))
            games.append(HistoryGame("long", decisions, {"player_0": 1.0, "player_1": -1.0}))
        batches.append((games, policy))
    return batches


def main() -> None:
    """Print a row for each kind of game."""
    pin_one_thread()
    rows = []
    for name, batches in (("Leduc poker", leduc()), ("long games", long())):
        values, seconds, before = TreeValues(), [], resident_mb()
        for games, policy in batches:
            started = process_time()
            values.add(games, policy)
            seconds.append((process_time() - started) / len(games))
        held = resident_mb() - before
        saved = sum(one.numel() * one.element_size() for one in values.state().values()) / 2**20
        rows.append([name, f"{1e6 * median(seconds):.0f}", f"{len(values)}", f"{held:.0f}", f"{saved:.0f}"])
    print_table(["games", "µs a game", "rows", "MB held", "MB saved"], rows)


if __name__ == "__main__":
    main()
