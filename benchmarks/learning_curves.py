"""Print the learning curves of several runs side by side, from their evaluations.

    for seed in 0 1 2; do sparring train quickstart --seed $seed --name seed-$seed; done
    python benchmarks/learning_curves.py runs/seed-0 runs/seed-1 runs/seed-2

It reads evaluation/ and metrics.jsonl of each run and prints a table of NashConv, a table of each match
before and after training, and the seconds per update.
"""

import sys
from pathlib import Path

from sparring.collection import read_metrics
from sparring.evaluation import MatchResult, NashConvResult
from sparring.evaluation.figures import mean_text, share_text
from sparring.evaluation.results import read_evaluation

Results = list[tuple[int, MatchResult | NashConvResult]]


def evaluations(run: Path) -> Results:
    """Return all evaluations of a run, sorted by step."""
    return sorted(
        (read_evaluation(path) for path in (run / "evaluation").glob("step-*.json")), key=lambda one: one[0]
    )


def print_nash_conv(runs: dict[str, Results]) -> None:
    """Print a row for each evaluated update and a column for each run."""
    curves = {
        name: {step: result.nash_conv for step, result in results if isinstance(result, NashConvResult)}
        for name, results in runs.items()
    }
    steps = sorted({step for curve in curves.values() for step in curve})
    if not steps:
        return
    print("| NashConv after update | " + " | ".join(runs) + " |")
    print("|---|" + "---|" * len(runs))
    for step in steps:
        cells = [f"{curve[step]:.3f}" if step in curve else "-" for curve in curves.values()]
        print(f"| {step} | " + " | ".join(cells) + " |")
    print()


def print_matches(runs: dict[str, Results]) -> None:
    """Print the first and last match of every run against every opponent."""
    print("| run | against | when | games | win | draw | invalid moves | mean reward |")
    print("|---|---|---|---|---|---|---|---|")
    for name, results in runs.items():
        matches = [(step, result) for step, result in results if isinstance(result, MatchResult)]
        for opponent in dict.fromkeys(result.opponent for _, result in matches):
            theirs = [(step, result) for step, result in matches if result.opponent == opponent]
            for step, match in (theirs[0], theirs[-1]):
                cells = [
                    name,
                    opponent,
                    f"update {step}",
                    str(match.games),
                    share_text(match.win_rate, match.games),
                    share_text(match.draw_rate, match.games),
                    share_text(match.invalid_move_rate, match.moves),
                    mean_text(match.mean_reward, match.games),
                ]
                print("| " + " | ".join(cells) + " |")
    print()


def print_seconds(runs: dict[str, Path]) -> None:
    """Print how long the updates took."""
    print("| run | updates | games | play, s | learn, s |")
    print("|---|---|---|---|---|")
    for name, path in runs.items():
        metrics = read_metrics(path / "metrics.jsonl")
        play = sum(line["time/play_seconds"] for line in metrics)
        learn = sum(line["time/learn_seconds"] for line in metrics)
        games = metrics[-1]["accounts/finished"]
        print(f"| {name} | {len(metrics)} | {games:.0f} | {play:.0f} | {learn:.0f} |")


def main() -> None:
    """Print the tables of the runs named on the command line."""
    paths = {Path(argument).name: Path(argument) for argument in sys.argv[1:]}
    if not paths:
        sys.exit("name at least one run directory")
    results = {name: evaluations(path) for name, path in paths.items()}
    print_nash_conv(results)
    print_matches(results)
    print_seconds(paths)


if __name__ == "__main__":
    main()
