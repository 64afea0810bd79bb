"""Populations on Ray: games per second against twenty frozen adapters, over those of mirror self-play.

An engine of a cluster, as ``sparring psro --runtime ray`` starts it, answers for SmolLM2-135M with random
adapters. One adapter plays Kuhn poker against itself, and then with every game's second seat taken by one of
the frozen adapters, by turns. Rounds are interleaved; a round of each that is not timed comes first.

First, the engine's scores of answers must be those of an engine in this process, up to rounding.

Command:  python benchmarks/population_speed_on_ray.py [--frozen 20] [--games 256] [--rounds 3]
Needs:    this package with the extra ``ray``. A few minutes on two cores.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

import sparring.compat.unstable  # noqa: F401 - first, so that Ray listens to this machine only
from measuring import pin_one_thread, print_table, ratio
from population_speed import FIRST, TOLERANCE, add_frozen, new_engine
from record_batches import ENV_IDS, MAX_TOKENS, auto_dtype, load_policy
from sparring.cluster.served import members_served
from sparring.config import load_config
from sparring.core import AgentSpec, Arena, InferenceClient, PlaySpec, derive_seed
from sparring.core.adapters import BUNDLED_MODEL
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import PolicyModel

ENV_ID = ENV_IDS["kuhn"]
ANSWERS = ["check", "bet"]


async def play(client: InferenceClient, names: Sequence[str], games: int, first: int) -> float:
    """Play games at once between the first adapter and all of them, by turns; return the seconds."""
    arena = Arena(client)
    arena.add_episode(ENV_ID, GameEpisode(ENV_ID, 2, get_template("fewshot-chat")))
    started = perf_counter()
    calls = []
    for game in range(first, first + games):
        seats = (names[0], names[game % len(names)])
        agents = tuple(AgentSpec("model", name, max_tokens=MAX_TOKENS) for name in seats)
        seed = derive_seed(0, "population", game)
        calls.append(arena.run_episode(ENV_ID, PlaySpec(ENV_ID, 2, agents, seed), {"seed": seed}))
    results = await asyncio.gather(*calls)
    if any(result.rollout.error for result in results):
        raise SystemExit("a game failed")
    return perf_counter() - started


async def check(client: InferenceClient, policy: PolicyModel, names: Sequence[str]) -> None:
    """Compare scores with those of an engine in this process."""
    here = new_engine(policy, list(names))
    one_NA, other_NA = [
        np.array([await engine.score(FIRST, ANSWERS, model=name) for name in names])
        for engine in (here, client)
    ]
    here.close()
    worst, spread = float(np.abs(one_NA - other_NA).max()), float(np.ptp(one_NA, axis=0).min())
    print(
        f"scores on the cluster are this process's within {worst:.3f} nats; adapters differ by {spread:.2f}"
    )
    if worst > min(TOLERANCE, spread / 2):
        raise SystemExit("the cluster does not play the adapters")


async def measure(options: argparse.Namespace, directory: Path) -> None:
    """Write the adapters, start the engine, and print the table."""
    policy = load_policy(auto_dtype())
    names = add_frozen(policy, options.frozen)
    adapters = {name: directory / name for name in names}
    for name, path in adapters.items():
        save_adapter(path, policy, BUNDLED_MODEL, name)
    overrides = {
        "run.runtime": "ray",
        "inference.max_adapters": str(options.frozen + 1),
        "model.threads": "1",
    }
    config = load_config("kuhn", overrides | {"model.dtype": str(auto_dtype()).removeprefix("torch.")})
    seconds: dict[str, list[float]] = {"mirror": [], "frozen": []}
    async with members_served(config, adapters, print) as client:
        await check(client, policy, names)
        for number in range(options.rounds + 1):
            for who, opponents in (("mirror", names[:1]), ("frozen", names)):
                took = await play(client, opponents, options.games, number * options.games)
                seconds[who] += [took] if number else []
    rates = [f"{options.games / np.median(seconds[who]):.1f}" for who in seconds]
    header = ["mirror, games/s", f"{options.frozen} frozen adapters", "share of mirror's"]
    print_table(header, [[*rates, f"{ratio(seconds['mirror'], seconds['frozen']):.2f}"]])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frozen", type=int, default=20)
    parser.add_argument("--games", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    pin_one_thread()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(parser.parse_args(), Path(directory)))


if __name__ == "__main__":
    main()
