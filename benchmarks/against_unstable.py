"""Games per second and memory on Ray: our collector and unstable-rl's, with the same answers.

Both play TextArena's KuhnPoker-v0-train in mirror mode on a Ray cluster of this machine, with the prompt
template ``qwen3-zs``, no error allowance and free answers from peers/mock_answers.py. The tracker, the
ratings and the step buffer with the same reward transformations receive every game, and there is no learner.
Our side consists of the actors of a run (see simulated_cluster.py), with one engine and one collector, or
with ``--collectors`` if each of them has at least MANY games to play. peers/unstable_games.py describes the
peer's side.

They run in turn; the ratio is the median over rounds. The gate, in every round: both finish games, and the
average number of turns differs by less than 5 percent. Memory is the maximum in the window, for workers as
PSS. The peer plays at most ``--peer-most`` games at once, even where ours plays more, because its processes
do not fit into memory here. The ratio then compares what each achieves on this machine.

Command:  python benchmarks/against_unstable.py --unstable PYTHON [--collectors 1] [--rounds 3] [--seconds 30]
Needs:    this package with Ray, and tests/. Linux. PYTHON is the interpreter of a separate environment, which
          the peer's script describes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import ray

from measuring import print_table
from ray_processes import cpu_seconds, memory_mb
from simulated_cluster import HERE, Actors, Play, cluster
from sparring.collection.transforms import (
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageByEnvFormatter,
)
from sparring.core import Messages

IN_FLIGHT = (4, 16, 32, 1024, 2048)
MANY = 256
"""Each further collector needs this many games."""
MOST_DIFFERENCE = 0.05


@dataclass(frozen=True)
class Measured:
    """The results of a window."""

    episodes_per_second: float
    turns_per_episode: float
    workers_mb: float
    daemons_mb: float
    cpu_ms: float


class MockAnswer:
    """The peers' mock as a function of messages. Each engine makes its own, in its process."""

    def __call__(self, messages: Messages, seed: int | None) -> str:
        if not hasattr(self, "_answers"):
            from mock_answers import MockAnswers

            self._answers = MockAnswers()
        answer: str = self._answers.answer(messages[-1]["content"])
        return answer


def ours(in_flight: int, seconds: float, collectors: int = 1) -> Measured:
    """Measure our actors on the connected cluster."""
    answer = MockAnswer()
    play = Play("KuhnPoker-v0-train", "qwen3-zs", answer, 0.0, in_flight, collectors=collectors)
    transforms = (
        ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter()]),
        ComposeStepRewardTransforms([RewardForFormat(1.5), PenaltyForInvalidMove(1.0, -1.0)]),
        ComposeSamplingRewardTransforms([NormalizeRewardsByEnv(True)]),
    )
    with tempfile.TemporaryDirectory() as directory:
        actors = Actors(Path(directory), play, transforms)
        playing = actors.start_play()
        try:
            actors.wait_for_games(playing, 2 * in_flight)
            measured = watch(actors, seconds)
            actors.stop_play(playing)
        finally:
            actors.kill()
    return measured


def watch(actors: Actors, seconds: float) -> Measured:
    """Count games and their cost for this many seconds."""
    memory = [memory_mb()]
    started, cpu = perf_counter(), sum(cpu_seconds().values())
    games, turns = actors.finished(), added_steps(actors)
    while (left := started + seconds - perf_counter()) > 0:
        sleep(min(left, seconds / 4))
        memory.append(memory_mb())
    games, elapsed = actors.finished() - games, perf_counter() - started
    turns, cpu = added_steps(actors) - turns, sum(cpu_seconds().values()) - cpu
    most = max(memory, key=lambda sample: sample["workers"])
    return Measured(games / elapsed, turns / games, most["workers"], most["daemons"], 1000 * cpu / games)


def added_steps(actors: Actors) -> int:
    """Turns that have reached the buffer."""
    return int(ray.get(actors.buffer.counts.remote())["added"])


def peer(python: str, in_flight: int, seconds: float) -> Measured | str:
    """Measure the peer; returns the reason in words if it played no games."""
    command = [python, str(HERE / "peers" / "unstable_games.py")]
    command += ["--games", str(in_flight), "--seconds", str(seconds)]
    own_cluster = os.environ | {"RAY_ADDRESS": "local"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=own_cluster)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(
        found["episodes_per_second"],
        found["turns_per_episode"],
        found["workers_mb"],
        found["daemons_mb"],
        1000 * found["cpu_seconds_per_episode"],
    )


def too_large(in_flight: int) -> str:
    """Return why the peer cannot play this many games here, or an empty text if it can.

    The peer itself would find out only after minutes.
    """
    needed = PEER_MB + PEER_MB_A_GAME * in_flight
    words = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()
    free = int(words[0]) / 1024
    return f"it needs about {needed / 1024:.0f} GB, {free / 1024:.0f} are free" if needed > free else ""


def check(ours: Measured, peers: Measured) -> None:
    """Check that both play the same games.

    Raises:
        SystemExit: they do not play the same games.
    """
    difference = abs(ours.turns_per_episode / peers.turns_per_episode - 1)
    if min(ours.episodes_per_second, peers.episodes_per_second) <= 0 or difference > MOST_DIFFERENCE:
        raise SystemExit(
            f"not the same games: {ours.turns_per_episode:.2f} turns here and "
            f"{peers.turns_per_episode:.2f} there"
        )


def speed(rounds: list[Measured]) -> float:
    """Episodes per second, the median over rounds."""
    return median(one.episodes_per_second for one in rounds)


def row(name: str, in_flight: int, collectors: int, rounds: list[Measured], ratio: str) -> list[str]:
    """A row of the table: medians over rounds."""
    return [
        name,
        str(in_flight),
        str(collectors),
        f"{speed(rounds):,.0f}" if speed(rounds) >= 1000 else f"{speed(rounds):.3g}",
        f"{median(one.turns_per_episode for one in rounds):.2f}",
        f"{median(one.workers_mb for one in rounds):,.0f}",
        f"{median(one.daemons_mb for one in rounds):,.0f}",
        f"{median(one.cpu_ms for one in rounds):.3g}",
        ratio,
    ]


PEER_MB, PEER_MB_A_GAME = 2500, 325
"""Memory of the peer's actors, and of each process that plays a game; measured with 16 and 32 games."""

HEADER = [
    "",
    "in flight",
    "collectors",
    "episodes/s",
    "turns",
    "workers, MB",
    "daemons, MB",
    "CPU ms/episode",
    "ratio",
]


def compare(
    arguments: argparse.Namespace, in_flight: int, collectors: int
) -> tuple[list[Measured], list[Measured]]:
    """Play rounds of ours and of the peer in turn; the peer has none if there is too little memory."""
    us: list[Measured] = []
    them: list[Measured] = []
    peers = min(in_flight, arguments.peer_most)
    reason = too_large(peers)
    for _ in range(arguments.rounds):
        with cluster():
            us.append(ours(in_flight, arguments.seconds, collectors))
        if not reason:
            found = peer(arguments.unstable, peers, arguments.seconds)
            if isinstance(found, str):
                reason = found
            else:
                check(us[-1], found)
                them.append(found)
    if not them:
        print(f"unstable-rl with {peers} games in flight: {reason}", file=sys.stderr)
    return us, them


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unstable", metavar="PYTHON", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each window")
    parser.add_argument("--in-flight", type=int, nargs="*", default=IN_FLIGHT)
    parser.add_argument("--collectors", type=int, default=1, help=f"each with {MANY} games at least")
    parser.add_argument("--peer-most", type=int, default=32, help="most games in flight of the peer")
    arguments = parser.parse_args()
    rows = []
    for in_flight in arguments.in_flight:
        collectors = min(arguments.collectors, max(1, in_flight // MANY))
        us, them = compare(arguments, in_flight, collectors)
        ratio = ""
        if them:
            pairs = zip(us, them, strict=False)
            ratio = (
                f"{median(one.episodes_per_second / other.episodes_per_second for one, other in pairs):.1f}"
            )
            rows.append(row("unstable-rl", min(in_flight, arguments.peer_most), 1, them, "1"))
        rows.append(row("sparring", in_flight, collectors, us, ratio))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
