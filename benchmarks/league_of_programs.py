"""A league of eight over a proposer and its solvers, with evolution and without, against a single pair.

Four proposers and four solvers train, all of them main players, beside one pair that plays itself. In a game
of the league one player learns, and in a game of the pair both do, so the league makes MORE times as many
updates: then about as many tokens are learned, which the table has. Every solver is measured on the held-out
questions, every proposer by the distance of its proposals' pass rates from the target, with the run's first
solver. The table has means over seeds with Student's 95% intervals.

Command:  python benchmarks/league_of_programs.py OUT [--updates 32] [--seeds 0 1 2] [--set FIELD=VALUE ...]
Needs:    this package and the model of the preset. A run that is finished is not made again. Linux.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

from sparring.collection import read_metrics
from sparring.commands.programs import evaluate_program
from sparring.evaluation.match import Progress
from sparring.run.run_directory import RunDirectory
from training_runs import learned_tokens, main_players, over_runs, sparring

ROLES = ("Proposer", "Solver")
SOLVED, DISTANCE = "solver exact match", "proposer distance"
MORE = 2
EVERY = 16
COPIES = ("", "-2", "-3", "-4")
PLAYERS = [(f"{role.lower()}{more}", role) for more in COPIES for role in ROLES]
LEAGUE = [f"--league.players={main_players({name: [role] for name, role in PLAYERS})}"]
EVOLUTION = [
    f"--league.evolution.every={EVERY}",
    f"--league.evolution.measures={{Solver = '{SOLVED}', Proposer = 'smallest {DISTANCE}'}}",
]
WAYS = {"pair": [], "league": LEAGUE, "league, evolution": LEAGUE + EVOLUTION}


def trained(out: Path, way: str, seed: int, updates: int, more: list[str]) -> RunDirectory:
    """Train, as far as the run is not there already."""
    run = RunDirectory(out / f"{way.replace(', ', '-')}-{seed}")
    updates *= 1 if way == "pair" else MORE
    begin = [
        *("train", "proposer-solver", *WAYS[way], "--seed", str(seed), "--name", run.path.name),
        *(f"--run.directory={out}", "--model.threads=1", f"--learning.steps={updates}"),
        *(f"--run.save_every={EVERY}", "--evaluation.every=0", *more),
    ]
    if not run.is_finished(updates):
        sparring(*(["train", "--resume", str(run.path)] if (run.path / "config.toml").exists() else begin))
    return run


def measured(run: RunDirectory, way: str) -> dict[str, list[float]]:
    """Return the measures of every player, by the measure."""
    file = run.path / "players.json"
    if not file.exists():
        newest = run.checkpoint(run.saved_steps()[-1])
        found: dict[str, list[float]] = {SOLVED: [], DISTANCE: []}
        for name, role in PLAYERS if way != "pair" else PLAYERS[: len(ROLES)]:
            values = evaluate_program(str(run.path), {role: str(newest / name)}, 0, Progress())
            measure = SOLVED if role == "Solver" else DISTANCE
            found[measure].append(values[measure].interval.mid)
        file.write_text(json.dumps(found))
    return dict(json.loads(file.read_text()))


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--updates", type=int, default=32, help="of the pair")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    more = [f"--{one}" for one in options.set]
    print("| players | tokens | held-out right, best | all | weakest | distance, best | all | weakest |")
    print(f"|{'---|' * 8}")
    for way in WAYS:
        runs = [trained(options.out, way, seed, options.updates, more) for seed in options.seeds]
        found = [measured(run, way) for run in runs]
        cells = [over_runs([of(one[SOLVED]) for one in found]) for of in (max, fmean, min)]
        cells += [over_runs([of(one[DISTANCE]) for one in found]) for of in (min, fmean, max)]
        millions = fmean(learned_tokens(read_metrics(run.metrics_file)) for run in runs) / 1e6
        print(f"| {way} | {millions:.2f} M | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
