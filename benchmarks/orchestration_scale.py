"""Scale of orchestration on Ray: episodes per second, memory and CPU time by games in flight, simulated
engines.

The actors are those of a run without its learner (see simulated_cluster.py): tracker, buffer and model pool
with their journals, collectors with their engine clients, and engines. Without a learner, games are started
without bound, and a full buffer drops steps. The engines answer at once or after 50 ms; the game is
OpenSpiel's Kuhn poker with random legal actions.

The window opens when ``2 * in_flight`` games are finished; at least ``4 * in_flight`` more end in it. Memory
is the maximum in the window: of Ray's workers as PSS, of its daemons (raylet, GCS, agents) as RSS. CPU time
is that of all processes that Ray has started.

First the same number of games in flight is played in one process, with the collector of a run without Ray and
the same simulated engine. The difference in CPU time is the cost of Ray per game.

Command:  python benchmarks/orchestration_scale.py [--seconds 10] [--svg docs/orchestration.svg]
Needs:    this package with Ray, and tests/. Linux.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, sleep

from line_chart import Line, line_chart
from measuring import print_table
from one_process import Play as OneProcess
from ray_processes import cpu_seconds, memory_mb
from simulated_cluster import MAX_TOKENS, Actors, Host, Play, cluster
from sparring.core import InferenceClient, Messages, ModelResponse
from sparring.core.adapters import AdapterRef
from sparring.engine.answering import EngineCall
from sparring.engine.hosts import EngineRequest

IN_FLIGHT = (16, 64, 256, 1024, 4096)
COLLECTORS = (1, 2, 4)
DELAYS = (0.0, 0.05)
MOST_ENGINES = 2
BURSTS = 4
"""At least this many times the number of games in flight end in a window."""
POLICY = AdapterRef("default", 0, None)


def random_legal(messages: Messages, seed: int | None) -> str:
    """Return one of the legal moves that the prompt ends with."""
    legal = messages[-1]["content"].rpartition("Legal moves: ")[2].partition(".")[0].split(", ")
    return legal[(seed or 0) % len(legal)]


@dataclass(frozen=True)
class Measured:
    """The results of a window."""

    episodes_per_second: float
    cpu_ms: float
    cpu_of: dict[str, float]
    """CPU milliseconds per episode, by process."""
    workers_mb: float = 0.0
    daemons_mb: float = 0.0


class HostClient(InferenceClient):
    """The simulated engine in this process."""

    def __init__(self, delay: float) -> None:
        self.host = Host(delay, random_legal)

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
    ) -> ModelResponse:
        """Answer ``messages``."""
        return await self.host.complete(EngineRequest(0, POLICY, EngineCall(messages, seed=seed)))


def play_of(in_flight: int, collectors: int, delay: float) -> Play:
    """Return a contender's settings."""
    engines = min(collectors, MOST_ENGINES)
    return Play("kuhn_poker", "fewshot-chat", random_legal, delay, in_flight, collectors, engines)


def measure_one_process(play: Play, games: int) -> Measured:
    """Play the games without Ray."""
    playing = OneProcess(HostClient(play.delay), play.env(), play.template, games, play.in_flight, MAX_TOKENS)
    started, cpu = perf_counter(), process_time()
    asyncio.run(playing.play())
    seconds, cpu = perf_counter() - started, process_time() - cpu
    if playing.pool.ledger.accounts["finished"] != games:
        raise SystemExit("games failed")
    return Measured(games / seconds, 1000 * cpu / games, {})


def measure(play: Play, seconds: float) -> Measured:
    """Play the games on the connected cluster."""
    with tempfile.TemporaryDirectory() as directory:
        actors = Actors(Path(directory), play)
        playing = actors.start_play()
        try:
            actors.wait_for_games(playing, 2 * play.in_flight)
            measured = watch(actors, seconds)
            actors.stop_play(playing)
        finally:
            actors.kill()
    return measured


def watch(actors: Actors, seconds: float) -> Measured:
    """Count games and their cost for this many seconds, or longer, until enough have finished.

    Games end in bursts.
    """
    enough = BURSTS * actors.play.in_flight
    memory = [memory_mb()]
    started, cpu, before = perf_counter(), cpu_seconds(), actors.finished()
    episodes, elapsed = 0, 0.0
    while elapsed < seconds or episodes < enough:
        sleep(seconds / 10)
        memory.append(memory_mb())
        episodes, elapsed = actors.finished() - before, perf_counter() - started
    cpu_of = {name: 1000 * (used - cpu.get(name, 0.0)) / episodes for name, used in cpu_seconds().items()}
    most = max(memory, key=lambda sample: sample["workers"])
    return Measured(episodes / elapsed, sum(cpu_of.values()), cpu_of, most["workers"], most["daemons"])


def row(play: Play, measured: Measured, alone: Measured) -> list[str]:
    """Return a row of the table."""
    shares = sorted(measured.cpu_of.items(), key=lambda item: -item[1])
    return [
        f"{1000 * play.delay:g}",
        str(play.collectors),
        str(play.in_flight),
        f"{measured.episodes_per_second:,.0f}",
        f"{measured.workers_mb:,.0f}",
        f"{measured.daemons_mb:,.0f}",
        f"{measured.cpu_ms:.2f}",
        f"{alone.episodes_per_second:,.0f}",
        f"{alone.cpu_ms:.2f}",
        f"{measured.cpu_ms - alone.cpu_ms:.2f}",
        ", ".join(f"{name} {ms:.2f}" for name, ms in shares if ms >= 0.01),
    ]


HEADER = [
    "delay, ms",
    "collectors",
    "in flight",
    "episodes/s",
    "workers, MB",
    "daemons, MB",
    "CPU ms/episode",
    "one process, episodes/s",
    "its CPU ms/episode",
    "difference",
    "CPU ms/episode by process",
]


def chart(found: dict[Play, Measured]) -> str:
    """Draw episodes per second over games in flight, with a line for each delay and number of collectors."""
    lines = []
    for delay in sorted({play.delay for play in found}):
        for collectors in sorted({play.collectors for play in found}):
            points = [
                (play.in_flight, measured.episodes_per_second)
                for play, measured in found.items()
                if (play.delay, play.collectors) == (delay, collectors)
            ]
            name = f"{collectors} collector{'s' * (collectors > 1)}, {1000 * delay:g} ms per call"
            lines.append(Line(name, points, dashed=delay > 0))
    return line_chart(lines, "games in flight", "episodes per second")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each window")
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    parser.add_argument("--in-flight", type=int, nargs="*", default=IN_FLIGHT)
    parser.add_argument("--collectors", type=int, nargs="*", default=COLLECTORS)
    arguments = parser.parse_args()
    with cluster():
        found, rows = sweep(arguments.in_flight, arguments.collectors, arguments.seconds)
    print_table(HEADER, rows)
    if arguments.svg:
        arguments.svg.write_text(chart(found))


def sweep(
    in_flight: Sequence[int], collectors: Sequence[int], seconds: float
) -> tuple[dict[Play, Measured], list[list[str]]]:
    """Measure all combinations."""
    found: dict[Play, Measured] = {}
    rows = []
    for delay in DELAYS:
        for count in in_flight:
            alone = measure_one_process(play_of(count, 1, delay), max(1024, 2 * count))
            for number in collectors:
                play = play_of(count, number, delay)
                found[play] = measure(play, seconds)
                rows.append(row(play, found[play], alone))
                print(rows[-1], flush=True)
    return found, rows


if __name__ == "__main__":
    main()
