"""The preset ``league`` with values by the tree, beside its main player alone in games against itself.

Both have the same games and constants. NashConv is that of the main player's average, before training and at
the end; the mean over seeds has Student's 95% interval.

Command:  python benchmarks/league_beside_mirror.py OUT [--updates 60] [--of rps kuhn liars-dice]
          [--seeds 0 1 2] [--set FIELD=VALUE ...]
Needs:    this package and the model of the preset. A run that is finished is not made again.
"""

from argparse import ArgumentParser

from measuring import print_table
from training_runs import add_run_options, over_runs, train

GAMES = {
    "rps": ("turn_based_simultaneous_game(game=matrix_rps())", 4),
    "kuhn": ("kuhn_poker", 4),
    "liars-dice": ("liars_dice(dice_sides=3)", 4),
    "leduc": ("leduc_poker", 4),
}
"""The game and the token limit of an answer, by a name for the runs."""
WAYS = {
    "league": [],
    "mirror": [
        *("--league.players={default = {role = 'main'}}", "--league.self_play=1", "--league.forgotten=0"),
    ],
}


def main() -> None:
    """Train the runs that are missing and print a row for each game and way."""
    parser = ArgumentParser(description=__doc__)
    add_run_options(parser, updates=60, games=512, every=60)
    parser.add_argument("--of", nargs="+", choices=GAMES, default=["rps", "kuhn", "liars-dice"])
    options = parser.parse_args()
    rows = []
    for name in options.of:
        game, limit = GAMES[name]
        for way, settings in WAYS.items():
            given = [f"--envs.0.id={game}", f"--inference.max_tokens={limit}", "--evaluation.games=2"]
            given += ["--learning.algorithm.values=tree", *settings]
            named = f"{name}-{way}"
            runs = [train(named, "league", *given, seed=seed, options=options) for seed in options.seeds]
            before, after = ([one.nash_conv[step] for one in runs] for step in (0, options.updates))
            by_seed = ", ".join(f"{one:.3f}" for one in after)
            rows.append([game, way, over_runs(before), over_runs(after), by_seed])
    print_table(["game", "way", "NashConv before", f"after {options.updates} updates", "by seed"], rows)


if __name__ == "__main__":
    main()
