"""A league of four main players with evolution and without, over two games and some seeds.

After training, every player is measured by what a best response gains against it (NashConv), and by its mean
reward against a random player on deals that evolution did not see. The table has means over seeds with
Student's 95% intervals: of the best player, of all, and of the weakest.

Command:  python benchmarks/league_evolution.py OUT [--model DIRECTORY] [--updates 30] [--games 256]
Needs:    this package, and a model that answers in these games; by default OUT/player, which
          benchmarks/tiny_player.py makes. A run that is finished is not made again.
"""

import argparse
from pathlib import Path
from statistics import fmean

from rich.console import Console

from measuring import pin_one_thread
from sparring.collection import read_metrics
from sparring.commands.evaluate import evaluate
from sparring.config import load_config
from sparring.population.evolution import replaced
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import train
from training_runs import main_players, over_runs

GAMES = {"kuhn": "kuhn_poker", "liars-dice": "liars_dice(dice_sides=3)"}
PLAYERS = ("default", "second", "third", "fourth")
MEASURED_GAMES = 400
SETTINGS = {
    "model.threads": "1",
    "learning.learning_rate": "2e-3",
    "evaluation.every": "0",
    "evaluation.games": "2",
    "evaluation.nash_conv": "false",
    "evaluation.opponents": "['random', 'base']",
    "population.add_every": "5",
    "league.players": main_players(dict.fromkeys(PLAYERS, ())),
}


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--games", type=int, default=256, help="games of an update")
    parser.add_argument("--every", type=int, default=7, help="updates between two comparisons")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    pin_one_thread()
    print("| game | evolution | measure | best player | all | weakest | replaced |")
    print(f"|{'---|' * 7}")
    for game in GAMES:
        for evolves in (False, True):
            runs = [trained(options, game, evolves=evolves, seed=seed) for seed in options.seeds]
            children = sum(len(replaced(line)) for run in runs for line in read_metrics(run.metrics_file))
            measured = [measures(run, GAMES[game], options.updates) for run in runs]
            for place, (name, best, worst) in enumerate((("NashConv", min, max), ("reward", max, min))):
                of_runs = [[one[place] for one in by_player] for by_player in measured]
                cells = [over_runs([of(values) for values in of_runs]) for of in (best, fmean, worst)]
                row = [game, "yes" if evolves else "no", name, *cells, str(children)]
                print(f"| {' | '.join(row)} |", flush=True)


def trained(options: argparse.Namespace, game: str, *, evolves: bool, seed: int) -> RunDirectory:
    """Train a league, as far as it is not there already."""
    run = RunDirectory(options.out / f"{game}-{'evolution' if evolves else 'alone'}-{seed}")
    changes = SETTINGS | {
        "seed": str(seed),
        "model.name": str(options.model or options.out / "player"),
        "envs.0.id": GAMES[game],
        "learning.steps": str(options.updates),
        "collection.games_per_step": str(options.games),
        "run.save_every": str(options.updates),
    }
    if evolves:
        changes["league.evolution.every"] = str(options.every)
    if not run.is_finished(options.updates):
        train(load_config("kuhn", changes), run.path, Console(quiet=True))
    return run


def measures(run: RunDirectory, env_id: str, updates: int) -> list[tuple[float, float]]:
    """Return NashConv and the mean reward against a random player, of each player."""
    found = []
    for player in PLAYERS:
        place = str(run.checkpoint(updates) / player)
        match = evaluate(place, env_id, "random", MEASURED_GAMES, seed=1, nash_conv=True)
        assert match.exact is not None
        found.append((match.exact.nash_conv, match.result.mean_reward.mid))
    return found


if __name__ == "__main__":
    main()
