"""CPU seconds of leagues with more and more players, at equal games, and memory for each player.

The players of a league share a base model. With ``league.at_once = 1`` they take turns, one in an update; by
default, which the table has as well, all learn in every update. Each run is ``sparring train`` in a process
of its own, and the contenders take turns. What a run costs before and in its first update is taken off, by a
run that ends there. As players learn in one seat or in several, the seconds are also divided by the tokens
that were learned. Ratios are within a round, medians over rounds.

Command:  python benchmarks/policies_cost.py [--players 1 2 4 8] [--updates 9] [--rounds 3] [--games 256]
Needs:    this package and the model of the presets, or --set model.name=DIRECTORY. Linux.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measuring import print_table, ratio
from run_speed import measure
from training_runs import learned_tokens, main_players

TREE = Path(__file__).resolve().parent.parent
ROLES = ("Proposer", "Solver")


@dataclass(frozen=True)
class Cost:
    """CPU seconds and learned tokens of the updates after the first, and the peak memory of the run."""

    seconds: float
    tokens: float
    peak_mb: float

    @property
    def per_token(self) -> float:
        """CPU seconds for each learned token."""
        return self.seconds / self.tokens


def kuhn(players: int, games: int) -> dict[str, str]:
    """Return the settings of a league of Kuhn poker."""
    names = ["default", *(f"p{number}" for number in range(1, players))]
    players_of = main_players(dict.fromkeys(names, ()))
    return {"collection.games_per_step": str(games), "league.players": players_of}


def proposer_solver(players: int, games: int) -> dict[str, str]:
    """Return the settings of a league over a program's two roles; a single player has both."""
    if players == 1:
        shared = {f"roles.{role}.policy": "both" for role in ROLES}
        return {**shared, "league.players": main_players({"both": ()}), "learning.policies": "{}"}
    seats = {role.lower() + "-another" * number: [role] for number in range(players // 2) for role in ROLES}
    return {"league.players": main_players(seats)}


def cost(preset: str, settings: dict[str, str], updates: int, more: list[str]) -> Cost:
    """Train with these settings, once for an update and once for all of them."""
    given = [f"--{field}={value}" for field, value in settings.items()] + more
    first, whole = (measure(TREE, preset, "local", steps, given) for steps in (1, updates))
    tokens = learned_tokens(whole.figures) - learned_tokens(first.figures)
    return Cost(whole.cpu_seconds - first.cpu_seconds, tokens, whole.peak_mb)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--players", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--updates", type=int, default=9)
    parser.add_argument("--games", type=int, default=256, help="games of an update, of Kuhn poker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    more = [f"--{one}" for one in options.set]
    rows = []
    for preset, of_players in (("kuhn", kuhn), ("proposer-solver", proposer_solver)):
        found: dict[tuple[int, str], list[Cost]] = {}
        for _ in range(options.rounds):
            for players in options.players:
                for learning in ["all"] if players == 1 else ["one", "all"]:
                    turns = {"league.at_once": "1"} if learning == "one" else {}
                    settings = of_players(players, options.games) | turns
                    one = cost(preset, settings, options.updates, more)
                    found.setdefault((players, learning), []).append(one)
                    print(preset, players, learning, one, file=sys.stderr, flush=True)
        rows += [[preset, *row] for row in _rows(found)]
    header = ["league", "players", "learn in an update", "CPU s", "of one", "of one, by token", "MB a player"]
    print_table(header, rows)


def _rows(found: dict[tuple[int, str], list[Cost]]) -> list[list[str]]:
    single = found[next(iter(found))]
    rows = []
    for (players, learning), runs in found.items():
        seconds, by_token = (
            ratio(*([getattr(one, name) for one in some] for some in (runs, single)))
            for name in ("seconds", "per_token")
        )
        more = median(one.peak_mb for one in runs) - median(one.peak_mb for one in single)
        memory = f"{more / (players - 1):.1f}" if players > 1 else ""
        cpu = f"{median(one.seconds for one in runs):.1f}"
        rows.append([str(players), learning, cpu, f"{seconds:.2f}", f"{by_token:.2f}", memory])
    return rows


if __name__ == "__main__":
    main()
