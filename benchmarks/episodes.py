"""The cost of a game without its model: Collector and Arena with a mock model against bare TextArena.

- bare: ``while not done: get_observation, choose, step``, one game after another, nothing kept;
- collector: ``Collector.play_all`` with 1, 64, 1024 and 4096 games in flight: seeds, prompts, token fields,
  rewards, buffer, ratings, tracker (flushed at the end) and accounts as in a run;
- arena: ``Arena.step`` with as many model calls in flight: rollouts, rubric, credit, training records;
- ART 0.5.18: the same game for two seats, written like ART's own self-play example, in a separate process;
  once with its defaults and once with garbage collection off, as our collector has it during play;
- verifiers 0.4.0: the same game for two seats; ``null`` is the harness of its own two-player games, which
  starts a process for every turn; ``in-process`` is the cheapest harness that it allows (see peers/).

Our mock answers without computing anything, but yields to the event loop once per call, so that the games
are really in flight. ART's mock is a stub in its process. verifiers reaches a model only through HTTP, so its
mock is a server in a separate process, whose CPU time is not counted.

All play TicTacToe-v0-train with a random legal move read from the text. First the collector's games, played
again move by move in bare TextArena, must end with the same rewards. Then all run in turn; the fraction is
the median over rounds of the bare loop's seconds per game divided by the other's. Memory per game is the
growth of the process while all games are held after about four moves each.

Command:  python benchmarks/episodes.py [--rounds 5] [--art PYTHON] [--verifiers PYTHON]
Needs:    this package. PYTHON is the interpreter of a separate environment: for ART with
          openpipe-art==0.5.18 and textarena==0.7.4, for verifiers with verifiers==0.4.0, textarena==0.7.4
          and uv (its first run downloads packages).
"""

import argparse
import asyncio
import gc
import json
import random
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import textarena

from measuring import print_table, ratio, resident_mb
from one_process import Play
from sparring.collection.results import EnvSpec, Played
from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeRequest,
    InferenceClient,
    Messages,
    ModelResponse,
    PlaySpec,
    RAECredit,
    Role,
    derive_seed,
)
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template

ENV_ID = "TicTacToe-v0-train"
IN_FLIGHT = (1, 64, 1024, 4096)
_MOVE = re.compile(r"\[\d\]")


def random_legal_move(text: str, number: int) -> str:
    """Choose as all contenders do: one of the moves at the end of the text."""
    moves = _MOVE.findall(text, text.rindex("Available Moves:"))
    move: str = moves[number % len(moves)]
    return move


class MockModel(InferenceClient):
    """Answers after one turn of the event loop. With ``hold_after``, later calls wait for ``release``."""

    def __init__(self, hold_after: int | None = None) -> None:
        self.hold_after = hold_after
        self.calls = 0
        self.held = 0
        self.release = asyncio.Event()

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
        self.calls += 1
        if self.hold_after is not None and self.calls > self.hold_after:
            self.held += 1
            await self.release.wait()
        else:
            await asyncio.sleep(0)
        text = random_legal_move(messages[-1]["content"], seed or 0)
        answer = [{"role": "assistant", "content": text}]
        return ModelResponse(text, answer, [1, 2, 3], [4, 5, 6], [-0.1, -0.2, -0.3])


class Cost(NamedTuple):
    """Seconds per episode: wall time and CPU time."""

    clock: float
    cpu: float


class GameArena(Arena):
    """Return an arena whose step plays ``games`` mirror games."""

    games = 1

    def get_batch(self) -> list[EpisodeRequest]:
        agents = (AgentSpec("policy", max_tokens=8),) * 2
        specs = [PlaySpec(ENV_ID, 2, agents, derive_seed(0, "game", index)) for index in range(self.games)]
        return [EpisodeRequest(ENV_ID, spec) for spec in specs]


def step_of_arena(games: int, in_flight: int) -> None:
    """Play ``games`` games in one step of a fresh arena."""
    arena = GameArena(MockModel(), RAECredit())
    arena.games = games
    add_game(arena)

    async def lost() -> int:  # the batch is not returned, because asyncio.run makes a repr of the result
        batch = await arena.step(concurrency=in_flight)
        return int(batch.meta["failed"]) + int(batch.meta["steps"]) - len(batch.records)

    if asyncio.run(lost()):
        raise SystemExit("the arena lost games or steps")


def add_game(arena: Arena) -> None:
    """Register the game and its seats."""
    arena.add_episode(ENV_ID, GameEpisode(ENV_ID, 2, get_template("fewshot-chat")))
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}"))


def collect(games: int, in_flight: int) -> list[Played]:
    """Play ``games`` games from a fresh collector, and flush the tracker as a run does after an update."""
    return play_of(MockModel(), games, in_flight).run()


def play_of(client: InferenceClient, games: int, in_flight: int) -> Play:
    """Return games with this client."""
    return Play(client, EnvSpec(ENV_ID, ENV_ID, 2), "fewshot-chat", games, in_flight, 8)


def bare_games(games: int) -> None:
    """Play with the bare loop."""
    draw = random.Random(0)
    for seed in range(games):
        env = textarena.make(ENV_ID)
        env.reset(num_players=2, seed=seed)
        done = False
        while not done:
            _, observation = env.get_observation()
            done, _ = env.step(random_legal_move(observation, draw.getrandbits(32)))
        env.close()


def check_games(games: int) -> None:
    """Check that the collector's games are TextArena's games."""
    for played in collect(games, in_flight=64):
        extras = played.rollout.extras
        env = textarena.make(ENV_ID)
        env.reset(num_players=2, seed=0)
        dones = [env.step(move)[0] for move in extras["action_seq"]]
        rewards, _ = env.close()
        if dones != [False] * (len(dones) - 1) + [True] or rewards != extras["final_rewards"]:
            raise SystemExit(f"{played.job.name} does not end as in bare TextArena")
    print(f"{games} of the collector's games end the same in bare TextArena, move by move")


async def memory_of_games(games: int) -> float:
    """Return the KB by which the process grows per game in flight, held after about four moves each."""
    client = MockModel(hold_after=4 * games)
    play = play_of(client, games, games)
    before = resident_mb()
    task = asyncio.create_task(play.play())
    while client.held < games:
        await asyncio.sleep(0)
    grown = resident_mb() - before
    client.release.set()
    await task
    return grown * 1024 / games


def peer(python: str, script: str, episodes: int, in_flight: int, *options: str) -> Cost:
    """Run a peer's script with its own interpreter."""
    path = Path(__file__).parent / "peers" / script
    command = [python, str(path), str(episodes), str(in_flight), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise SystemExit(f"{script} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return Cost(answer["seconds"] / answer["episodes"], answer["cpu_seconds"] / answer["episodes"])


def timed(run: Callable[[], object], episodes: int) -> Cost:
    """Return the cost of an episode of ``run``."""
    gc.collect()
    started, cpu_started = perf_counter(), process_time()
    run()
    clock, cpu = perf_counter() - started, process_time() - cpu_started
    return Cost(clock / episodes, cpu / episodes)


def contenders(arguments: argparse.Namespace) -> dict[str, Callable[[], Cost]]:
    """Return the contenders by name; each call plays one round."""
    games = arguments.games
    chosen: dict[str, Callable[[], Cost]] = {
        "bare TextArena loop": lambda: timed(partial(bare_games, games), games)
    }
    for in_flight in IN_FLIGHT:
        count = max(games, in_flight)
        chosen[f"collector, {in_flight} in flight"] = partial(
            timed, partial(collect, count, in_flight), count
        )
    for in_flight in (64, 1024):
        chosen[f"arena, {in_flight} in flight"] = partial(
            timed, partial(step_of_arena, games, in_flight), games
        )
    if arguments.art:
        for in_flight in (64, 1024):
            run = partial(peer, arguments.art, "art_episodes.py", games, in_flight)
            chosen[f"ART, {in_flight} in flight"] = run
            chosen[f"ART, {in_flight} in flight, no garbage collection"] = partial(run, "no-gc")
    if arguments.verifiers:
        run = partial(peer, arguments.verifiers, "verifiers_episodes.py")
        for in_flight in (4, 64):
            chosen[f"verifiers in-process, {in_flight} in flight"] = partial(
                run, 256, in_flight, "in-process"
            )
        chosen["verifiers null, 4 in flight"] = partial(run, 8, 4, "null")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--games", type=int, default=1024, help="games per round, or as many as are in flight if that is more"
    )
    parser.add_argument("--art", metavar="PYTHON")
    parser.add_argument("--verifiers", metavar="PYTHON")
    arguments = parser.parse_args()
    check_games(200)
    print(f"memory: {asyncio.run(memory_of_games(4096)):.1f} KB per game at 4096 in flight")
    for name in ("art", "verifiers"):
        if not getattr(arguments, name):
            print(f"{name}: left out, because --{name} is not given")
    chosen = contenders(arguments)
    costs: dict[str, list[Cost]] = {name: [] for name in chosen}
    for _ in range(arguments.rounds):
        for name, run in chosen.items():
            costs[name].append(run())
    bare = [cost.clock for cost in next(iter(costs.values()))]
    rows = []
    for name, each in costs.items():
        clock = [cost.clock for cost in each]
        cpu = median(cost.cpu for cost in each)
        rows.append([name, f"{1 / median(clock):,.4g}", f"{1000 * cpu:.4g}", f"{ratio(bare, clock):.3g}"])
    print_table(["", "episodes/s", "CPU ms/episode", "fraction of the bare loop"], rows)


if __name__ == "__main__":
    main()
