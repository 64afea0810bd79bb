"""One of three engines is lost for good while 1,000 games are in flight: do all of them end, and how late?

The actors are those of a run on Ray, with simulated engines whose calls take two seconds (see
simulated_cluster.py). 1,000 games of Kuhn poker are started and no more; a game has two or three calls. After
the given seconds one engine's process is killed and not restarted. The longest pause is the longest time
without a game that ends, from the first end on. Every game must end, and none fail.

Command:  python benchmarks/lost_engine.py [--rounds 3] [--games 1000]
Needs:    this package with Ray, and tests/. Linux.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

import ray

from measuring import print_table
from orchestration_scale import random_legal
from simulated_cluster import Actors, Play, cluster

DELAY = 2.0
KILLED_AFTER = (1.0, 3.0, 5.0)
LIMIT_SECONDS = 120.0


def measure(games: int, killed_after: float | None) -> dict[str, float]:
    """Play the games; kill an engine after some seconds, or none. Return seconds and the accounts."""
    play = Play("kuhn_poker", "fewshot-chat", random_legal, DELAY, games, 2, 3, games_per_update=games)
    with tempfile.TemporaryDirectory() as directory:
        actors = Actors(Path(directory), play)
        playing = actors.start_play()
        try:
            started, killed = perf_counter(), killed_after is None
            ended, last, longest = 0, 0.0, 0.0
            while ended < games and perf_counter() - started < LIMIT_SECONDS:
                now = perf_counter() - started
                if not killed and now >= killed_after:
                    ray.kill(actors.engines[1], no_restart=True)
                    killed = True
                count = actors.finished()
                if count > ended:
                    longest = max(longest, now - last) if ended else longest
                    ended, last = count, now
                sleep(0.02)
            accounts = ray.get(actors.pool.accounts.remote())
            actors.stop_play(playing)
        finally:
            actors.kill()
    return {"seconds": last, "pause": longest, "ended": accounts["finished"], "failed": accounts["failed"]}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--games", type=int, default=1000)
    options = parser.parse_args()
    rows, lost = [], False
    with cluster():
        for _ in range(options.rounds):
            for killed_after in (None, *KILLED_AFTER):
                found = measure(options.games, killed_after)
                lost |= found["ended"] != options.games or found["failed"] > 0
                rows.append(
                    [
                        "-" if killed_after is None else f"{killed_after:g}",
                        f"{found['ended']:,} of {options.games:,}",
                        f"{found['failed']}",
                        f"{found['pause']:.1f}",
                        f"{found['seconds']:.1f}",
                    ]
                )
    print_table(["killed after, s", "ended", "failed", "longest pause, s", "last end, s"], rows)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
