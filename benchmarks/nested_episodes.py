"""The cost of an arena without its model, with nested episodes: 1,000 episodes with 8 children each.

Every episode makes one call to a mock model that takes 20 ms, and at most 64 calls are in flight, so the
ideal is 9,000 * 20 ms / 64 = 2.8 s. Each round first checks the result: every episode must have the right
record under the right parent, and there must never have been more than 64 calls in flight. The figure is the
wall time of the whole step (play, credit, batch). The bare loop measures the time that an event loop needs
for the calls alone: 64 workers call the same mock and ignore the answers.

Command:  python benchmarks/nested_episodes.py [--rounds 5]
Needs:    this package.
"""

import argparse
import asyncio
from statistics import median
from time import perf_counter, process_time
from typing import Any

from measuring import print_table
from sparring.core import (
    Arena,
    EpisodeRequest,
    EpisodeState,
    MockInferenceClient,
    Role,
    Rubric,
    SingleTurnEpisode,
    TrainingBatch,
)

LATENCY = 0.02
MOST_IN_FLIGHT = 64
PARENTS = 1000
CHILDREN = 8
CALLS = PARENTS * (1 + CHILDREN)
IDEAL = CALLS * LATENCY / MOST_IN_FLIGHT


class Asker(SingleTurnEpisode):
    """One role answers one prompt and is rewarded for the length of the answer."""

    def __init__(self, role_id: str) -> None:
        super().__init__()
        self.role_id = role_id
        self._rubric = Rubric([lambda rollout, arena: {role_id: float(len(rollout.steps[0].act))}])

    @property
    def episode_type(self) -> str:
        return self.role_id

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return self.role_id

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        return f"Question {artifact}"


class Parent(Asker):
    """Plays, then starts its children."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        state = await super().rollout(arena, artifact, state)
        requests = [EpisodeRequest("child", number) for number in range(CHILDREN)]
        state.child_results += await arena.generate_rollouts(requests)
        return state


class NestedArena(Arena):
    """Each step plays ``PARENTS`` parent episodes."""

    def get_batch(self) -> list[EpisodeRequest]:
        return [EpisodeRequest("parent", number) for number in range(PARENTS)]


async def nested_step() -> float:
    """Return the wall seconds of one step, after checking its result."""
    client = MockInferenceClient(["four"], latency=LATENCY)
    arena = NestedArena(client)
    for role_id, episode in (("parent", Parent("parent")), ("child", Asker("child"))):
        arena.add_role(Role(role_id))
        arena.add_episode(role_id, episode)
    started = perf_counter()
    batch = await arena.step(concurrency=MOST_IN_FLIGHT)
    seconds = perf_counter() - started
    check(batch, client)
    return seconds


def check(batch: TrainingBatch, client: MockInferenceClient) -> None:
    """Check that all records are there and that the limit held."""
    made = [(record.role_id, record.rollout_id, record.meta.get("parent_id")) for record in batch.records]
    expected = []
    for parent in range(PARENTS):
        name = f"step-000000-{parent:05d}"
        expected.append(("parent", name, None))
        expected += [("child", f"{name}.{child}", name) for child in range(CHILDREN)]
    if made != expected or batch.meta["failed"] or client.calls != CALLS:
        raise SystemExit(f"{len(made)} records of {len(expected)}, {batch.meta['failed']} failed")
    if client.max_in_flight != MOST_IN_FLIGHT:
        raise SystemExit(f"{client.max_in_flight} calls were in flight, not {MOST_IN_FLIGHT}")


async def bare_calls() -> float:
    """Return the wall seconds of the same number of calls by the same number of workers."""
    client = MockInferenceClient(["four"], latency=LATENCY)
    left = iter(range(CALLS))

    async def work() -> None:
        for number in left:
            await client.complete([{"role": "user", "content": f"Question {number}"}])

    started = perf_counter()
    await asyncio.gather(*(work() for _ in range(MOST_IN_FLIGHT)))
    return perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(nested_step())
    print(f"{CALLS} records of {CALLS} calls; at most {MOST_IN_FLIGHT} calls were in flight")
    wall: dict[str, list[float]] = {"bare loop": [], "arena": []}
    processor: dict[str, list[float]] = {"bare loop": [], "arena": []}
    for _ in range(arguments.rounds):
        for name, run in (("bare loop", bare_calls), ("arena", nested_step)):
            started = process_time()
            wall[name].append(asyncio.run(run()))
            processor[name].append(process_time() - started)
    rows = [
        [name, f"{median(each):.2f}", f"{IDEAL:.2f}", f"{median(each) / IDEAL:.3f}", f"{median(cpu):.2f}"]
        for (name, each), cpu in zip(wall.items(), processor.values(), strict=True)
    ]
    print_table(["", "wall time, s", "ideal, s", "ratio", "processor time, s"], rows)


if __name__ == "__main__":
    main()
