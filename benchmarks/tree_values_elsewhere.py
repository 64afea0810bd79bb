"""Values by the tree of games where theory promises less: for three players, and in a game of general sum.

A tiny Llama that answers with the moves of the game learns by ``magnet``, with the values of returns or those
of the tree. NashConv is that of the average, before training and at the end.

Command:  python benchmarks/tree_values_elsewhere.py OUT
Needs:    this package and its tests.
"""

from argparse import ArgumentParser
from pathlib import Path

from measuring import print_table
from playing_model import WORDS, save_playing_model
from training_runs import add_run_options, train

BIDS = [f"Player {seat} bid: {bid}" for seat in range(2) for bid in range(3)]
GAMES = {
    "kuhn_poker(players=3)": (3, 6, ("kuhn_poker", WORDS)),
    "first_sealed_auction(max_value=4)": (2, 20, ("first_sealed_auction(max_value=4)", BIDS)),
}
"""Seats, the token limit of an answer, and what the model is taught."""
MAGNET = '{{type = "magnet", alpha = 0.6, uniform = 0.05, memory = 16, values = "{}"}}'


def main() -> None:
    """Train the runs that are missing and print a row for each game and kind of values."""
    parser = ArgumentParser(description=__doc__)
    add_run_options(parser, updates=60, games=128, every=60)
    parser.set_defaults(seeds=[0, 1])
    options = parser.parse_args()
    rows = []
    for place, (game, (seats, limit, taught)) in enumerate(GAMES.items()):
        model: Path = options.out / f"model-{place}"
        if not model.exists():
            save_playing_model(model.with_suffix(".part"), *taught).rename(model)
        for values in ("returns", "tree"):
            given = [f"--model.name={model}", f"--envs.0.id={game}", f"--envs.0.num_players={seats}"]
            given += [f"--inference.max_tokens={limit}", "--envs.0.explore=0", "--evaluation.games=2"]
            given += [f"--learning.algorithm={MAGNET.format(values)}", "--learning.learning_rate=2e-3"]
            name = f"{place}-{values}"
            curves = [train(name, "kuhn", *given, seed=seed, options=options) for seed in options.seeds]
            found = [[one.nash_conv[step] for one in curves] for step in (0, options.updates)]
            rows.append([game, values, *map(shown, found)])
    print_table(["game", "values", "NashConv before", f"after {options.updates} updates"], rows)


def shown(values: list[float]) -> str:
    """Return the values of the seeds."""
    return ", ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    main()
