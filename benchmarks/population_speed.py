"""Populations: games per second against frozen opponents, and the time until a new version answers.

Games: the untrained SmolLM2-135M, with a random adapter, plays a game against itself, and then with every
game's second seat taken by one of the frozen adapters, which differ. The frozen opponents play twice: with
the adapters in shared forward passes, as they are, and with a pass for each adapter. As in a run, the policy
has a new version in every round, and the engine keeps what it knows of the frozen ones; a round before the
first is not timed.

Versions: all adapters answer long requests while the policy makes optimizer steps; the clock runs from the
end of a step to the first token of the new version. Beside it stands the plain forward pass over the same
prompt with the new weights, which no engine can do without, because the new version knows no context.

First, log-probabilities from shared passes must be the learner's up to rounding.

Command:  python benchmarks/population_speed.py [--frozen 20] [--games 128] [--rounds 3] [--resident 8]
Needs:    this package. About ten minutes on one core.
"""

import argparse
import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from time import perf_counter

import numpy as np
import torch

from measuring import interleave, pin_one_thread, print_table, ratio
from record_batches import ENV_IDS, MAX_TOKENS, auto_dtype, load_policy, make_arena
from sparring.core import AgentSpec, ModelResponse, PlaySpec, derive_seed
from sparring.core.messages import said
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.trie import build_plan

SWAPS = 20
LONG = 64
FIRST = [said("user", "Check?")]
"""What a new version is asked first."""
TOLERANCE = 0.5
"""Nats; in bfloat16, rounding alone reaches 0.3."""


def add_frozen(policy: PolicyModel, number: int) -> list[str]:
    """Add frozen adapters whose weights are random, and return their names."""
    generator = torch.Generator().manual_seed(0)
    names = [f"frozen-{index}" for index in range(number)]
    for name in (TRAINED, *names):
        state = policy.adapter_state()
        state = {key: 0.01 * torch.randn(one.shape, generator=generator) for key, one in state.items()}
        policy.load_adapter_state(state, name)
    return names


@contextmanager
def one_at_a_time(engine: EmbeddedEngine) -> Iterator[None]:
    """Run the body with a forward pass for each adapter."""
    policy = engine.model
    policy.mixes_adapters = False
    try:
        yield
    finally:
        policy.mixes_adapters = True


def new_engine(policy: PolicyModel, names: list[str]) -> EmbeddedEngine:
    """Return an engine that serves the policy and frozen adapters."""
    engine = EmbeddedEngine(policy)
    for name in (TRAINED, *names):
        engine.publish(name, name, 0)
    return engine


def play(engine: EmbeddedEngine, env_id: str, names: list[str], games: int, first: int) -> None:
    """Play games at once; with ``names``, the second seat is one of these adapters, by turns."""
    arena = make_arena(engine, env_id)  # publishes a new version of the policy
    learner = AgentSpec("policy", max_tokens=MAX_TOKENS)

    async def play_all() -> None:
        calls = []
        for game in range(first, first + games):
            other = AgentSpec("model", names[game % len(names)], max_tokens=MAX_TOKENS) if names else learner
            seed = derive_seed(0, "population", game)
            calls.append(
                arena.run_episode(env_id, PlaySpec(env_id, 2, (learner, other), seed), {"seed": seed})
            )
        results = await asyncio.gather(*calls)
        if any(result.rollout.error for result in results):
            raise SystemExit("a game failed")

    asyncio.run(play_all())


def check(policy: PolicyModel, names: list[str]) -> None:
    """Check answers from shared passes against the learner."""

    async def answers() -> list[ModelResponse]:
        engine = new_engine(policy, names)
        asked = [said("user", "Do you check or bet?")]
        return await asyncio.gather(
            *(engine.complete(asked, max_tokens=16, model=name, seed=1) for name in names)
        )

    worst = 0.0
    for name, response in zip(names, asyncio.run(answers()), strict=True):
        plan = build_plan([response.prompt_token_ids or []], [response.completion_token_ids or []])
        with torch.no_grad(), policy.adapter(name):
            expected = plan_logprobs(policy, plan)[plan.prediction_S].tolist()
        differences = np.abs(np.array(expected) - np.array(response.completion_logprobs))
        worst = max(worst, float(differences.max()))
    print(f"log-probabilities from shared passes differ from the learner's by at most {worst:.2f} nats")
    if worst > TOLERANCE:
        raise SystemExit("shared passes do not play the adapters' own distributions")


async def swaps(policy: PolicyModel, engine: EmbeddedEngine, names: list[str]) -> list[float]:
    """Return the milliseconds from each optimizer step to the new version's first token.

    The adapters in ``names`` answer long requests meanwhile.
    """
    optimizer = torch.optim.AdamW(policy.adapter_parameters(), lr=1e-6)
    asked = [said("user", "Tell a long story about a card game.")]
    seeds = count()

    async def keep_asking(name: str) -> None:
        while True:
            await engine.complete(asked, max_tokens=LONG, model=name, seed=next(seeds))

    others = [asyncio.create_task(keep_asking(name)) for name in names]
    found = []
    for version in range(1, SWAPS + 1):
        await asyncio.sleep(0.2)
        for parameter in policy.adapter_parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
        started = perf_counter()
        engine.publish(TRAINED, TRAINED, version)
        response = await engine.complete(FIRST, max_tokens=1, seed=version)
        found.append(1000 * (perf_counter() - started))
        assert response.policy_version == version
    for task in others:
        task.cancel()
    engine.close()
    await asyncio.gather(*others, return_exceptions=True)
    return found


def plain_pass(policy: PolicyModel) -> float:
    """Return the median milliseconds of a plain forward pass over the prompt of :func:`swaps`."""
    plan = build_plan([policy.render(FIRST)], [[0]])
    found = []
    for _ in range(SWAPS):
        started = perf_counter()
        with torch.no_grad(), policy.adapter(TRAINED):
            plan_logprobs(policy, plan)
        found.append(1000 * (perf_counter() - started))
    return float(np.median(found))


def row(policy: PolicyModel, game: str, names: list[str], games: int, rounds: int) -> list[str]:
    """Time one game and return its row of the first table."""
    engines = {name: new_engine(policy, names) for name in ("mirror", "shared", "apart")}
    played = dict.fromkeys(engines, 0)

    def play_more(name: str) -> None:
        opponents = [] if name == "mirror" else names
        with one_at_a_time(engines[name]) if name == "apart" else nullcontext():
            play(engines[name], ENV_IDS[game], opponents, games, played[name])
        played[name] += games

    contenders: dict[str, Callable[[], object]] = {name: partial(play_more, name) for name in engines}
    for warm_up in contenders.values():
        warm_up()
    seconds = interleave(contenders, rounds)
    return [
        game,
        *(f"{games / np.median(seconds[name]):.2f}" for name in seconds),
        *(f"{ratio(seconds['mirror'], seconds[name]):.2f}" for name in ("shared", "apart")),
    ]


def main() -> None:
    """Check, measure and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frozen", type=int, default=20)
    parser.add_argument("--resident", type=int, default=8, help="adapters in the second table")
    parser.add_argument("--games", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", nargs="+", choices=list(ENV_IDS), default=list(ENV_IDS))
    options = parser.parse_args()
    pin_one_thread()
    policy = load_policy(auto_dtype())
    names = add_frozen(policy, options.frozen)
    check(policy, names)
    rows = [row(policy, game, names, options.games, options.rounds) for game in options.environments]
    frozen = f"{options.frozen} frozen"
    header = [
        "game",
        "mirror, games/s",
        frozen,
        f"{frozen}, a pass for each",
        "share of mirror",
        "a pass for each",
    ]
    print_table(header, rows)
    few = names[: options.resident - 1]
    table = []
    for label, busy in (("idle", []), ("answer", few)):
        shared = asyncio.run(swaps(policy, new_engine(policy, few), busy))
        engine = new_engine(policy, few)
        with one_at_a_time(engine):
            apart = asyncio.run(swaps(policy, engine, busy))
        cells = (f"{np.percentile(one, 50):.0f}, {np.percentile(one, 95):.0f}" for one in (shared, apart))
        table.append([str(options.resident), label, *cells, f"{plain_pass(policy):.0f}"])
    print()
    heads = ["adapters", "the others", "p50, p95 ms", "a pass for each: p50, p95 ms", "the prompt alone, ms"]
    print_table(heads, table)


if __name__ == "__main__":
    main()
