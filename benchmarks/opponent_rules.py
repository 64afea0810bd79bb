"""NashConv of self-play on Kuhn poker by the rule that chooses opponents, after equal games.

Each run is ``sparring train kuhn`` with another ``population.sample_mode``, in a process of its own and on
one thread, with equally many games of training. The column of games has all of them: ``meta-nash`` plays
games for its payoffs besides. Copies of the policy join the pool every few updates. A rule that draws
opponents trains one seat of a game, ``mirror`` both: the table gives the answers that were trained on.
``historical-mirror`` plays 0.8 of its games as ``mirror`` does, and ``pfsp-hard-mirror`` half of them.
NashConv is that of the running average of the weights, as in any run of this preset.

``league`` has a main player, with half of the games, and an exploiter of each kind; NashConv is the main
player's. ``psro`` is ``sparring psro kuhn`` with ten best responses, which begin as the documentation of PSRO
says for this game; NashConv is the mixture's, at the end of each. Its payoffs have ``PAYOFF_GAMES`` games for
each pair of members, and the best responses have so many updates that it has as many games as the others
altogether. As an opponent that stays the same needs no caution, they have a smaller ``alpha`` and
``average_decay``.

The table gives the mean over the evaluations of the last third and, over seeds, Student's 95% interval; the
plot has a line for each rule, the mean over seeds. Runs that are in the directory are not repeated, and
unfinished ones are continued.

Command:  python benchmarks/opponent_rules.py OUT [--rules mirror pfsp-hard ...] [--seeds 0 1 2]
          [--updates 30] [--games 1024] [--every 5] [--svg FILE] [--set FIELD=VALUE ...]
Needs:    this package with the extra ``populations``, the preset's model. Linux. About six minutes a run, a
          league fifteen.
"""

import argparse
import math
from pathlib import Path
from statistics import mean

from line_chart import COLOURS, Line, line_chart
from measuring import print_table
from training_runs import Curve, add_run_options, over_runs, sparring, train

RULES = {
    "mirror": [],
    "lagged": ["--population.sample_mode=lagged"],
    "random": ["--population.sample_mode=random"],
    "match-quality": ["--population.sample_mode=match-quality"],
    "ts-dist": ["--population.sample_mode=ts-dist"],
    "historical": ["--population.sample_mode=historical"],
    "historical-mirror": ["--population.sample_mode=historical", "--population.mirror_share=0.8"],
    "pfsp-hard": ["--population.sample_mode=pfsp", "--population.pfsp=hard"],
    "pfsp-hard-mirror": [
        "--population.sample_mode=pfsp",
        "--population.pfsp=hard",
        "--population.mirror_share=0.5",
    ],
    "pfsp-variance": ["--population.sample_mode=pfsp", "--population.pfsp=variance"],
    "pfsp-linear": ["--population.sample_mode=pfsp", "--population.pfsp=linear"],
    "meta-nash": ["--population.sample_mode=meta-nash"],
    "league": [
        "--league.snapshot_updates=10",
        "--league.players.default.role=main",
        "--league.players.default.share=2",
        "--league.players.attacker.role=main_exploiter",
        "--league.players.finder.role=league_exploiter",
    ],
    "psro": [],
}
BEST_RESPONSES, PAYOFF_GAMES = 10, 200
"""Best responses of ``psro``, and the games of each pair of its members."""


def curve_of(rule: str, seed: int, options: argparse.Namespace) -> Curve:
    """Return the curve of one rule with one seed."""
    if rule == "psro":
        return psro_curve(seed, options)
    return train(
        rule,
        "kuhn",
        f"--population.add_every={options.every}",
        "--population.max_active_lora=8",
        *RULES[rule],
        seed=seed,
        options=options,
    )


def psro_curve(seed: int, options: argparse.Namespace) -> Curve:
    """Return the curve of PSRO with one seed, after as many games as the others have."""
    payoff_games = PAYOFF_GAMES * math.comb(BEST_RESPONSES + 1, 2)
    updates = round((options.updates * options.games - payoff_games) / (BEST_RESPONSES * options.games))
    name = f"psro-seed-{seed}"
    sparring(
        *("psro", "kuhn", "--seed", str(seed), "--name", name, f"--run.directory={options.out}"),
        *(f"--psro.iterations={BEST_RESPONSES}", f"--psro.payoff_games={PAYOFF_GAMES}"),
        *(f"--learning.steps={updates}", f"--evaluation.every={updates}", "--evaluation.games=100"),
        *("--model.threads=1", f"--collection.games_per_step={options.games}", "--run.keep_checkpoints=1"),
        *("--learning.algorithm.alpha=0.3", "--learning.average_decay=0.8"),
        *(f"--{one}" for one in options.set),
    )
    return Curve.of_psro(options.out / name)


def print_rules(runs: dict[str, list[Curve]], options: argparse.Namespace) -> None:
    """Print a row for each rule, the best first."""
    rows = []
    for rule, of_rule in runs.items():
        thirds = [curve.last_third() for curve in of_rule]
        means = [mean(third) for third in thirds]
        row = [
            rule,
            over_runs(means),
            f"{max(map(max, thirds)):.3f}",
            f"{mean(curve.games for curve in of_rule):,.0f}",
            f"{mean(curve.answers for curve in of_rule):,.0f}",
            f"{mean(curve.seconds[-1] / options.updates for curve in of_rule):.2f}",
        ]
        rows.append((mean(means), row))
    print(f"{options.updates * options.games:,} games; seeds: {', '.join(map(str, options.seeds))}\n")
    header = ["rule", "NashConv, last third", "largest", "games", "answers trained on", "s per update"]
    print_table(header, [row for _, row in sorted(rows)])


def lines_of(runs: dict[str, list[Curve]]) -> list[Line]:
    """Return a line for each rule, from the first evaluation on; after the last colour, dashed."""
    lines = []
    for number, (rule, of_rule) in enumerate(runs.items()):
        steps = sorted(set.intersection(*({*curve.nash_conv} for curve in of_rule)) - {0})
        points = [(float(step), mean(curve.nash_conv[step] for curve in of_rule)) for step in steps]
        lines.append(Line(rule, points, dashed=number >= len(COLOURS)))
    return lines


def main() -> None:
    """Train what is missing, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_run_options(parser, updates=30, games=1024, every=5)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    runs = {rule: [curve_of(rule, seed, options) for seed in options.seeds] for rule in options.rules}
    print_rules(runs, options)
    if options.svg is not None:
        options.svg.write_text(line_chart(lines_of(runs), "update", "NashConv"))


if __name__ == "__main__":
    main()
