"""Sampling: the rollouts of an iteration, kept one by one and handed over in order."""

import asyncio
from collections.abc import Awaitable, Callable

from selfplay.core import Rollout, SelfplayError
from selfplay.core.gather import all_results
from selfplay.finetune.environment import PureTextEnvironment, Row
from selfplay.finetune.rollout_file import RolloutFile

MAX_FAILED = 0.5
"""A larger share of failed rollouts means that something is broken."""

Play = Callable[[Row], Awaitable[Rollout]]


async def sample(
    environment: PureTextEnvironment,
    iteration: int,
    play: Play,
    kept: RolloutFile | None,
    workers: int,
    on_rollout: Callable[[], None],
) -> list[Rollout]:
    """Return the rollouts of an iteration in the order of its rows, whoever finishes first.

    Those that ``kept`` has are not played again; each that ends is added to it, unless it failed. A failed
    one is returned with its error.

    Args:
        environment: what is sampled.
        iteration: which iteration.
        play: plays a row.
        kept: where rollouts are kept; ``None`` keeps none.
        workers: maximum number of rollouts in flight.
        on_rollout: called for each rollout that is there.

    Raises:
        SelfplayError: more than half of them failed; a resumed run plays those again.
    """
    rows = environment.rows(iteration)
    done = kept.read() if kept is not None else {}
    slots = asyncio.Semaphore(workers)

    async def play_row(row: Row) -> Rollout:
        index, _ = row
        if index not in done:
            async with slots:
                done[index] = await play(row)
            if kept is not None and done[index].error is None:
                kept.append(index, done[index])
        on_rollout()
        return done[index]

    rollouts = await all_results(map(play_row, rows))
    failed = [one.error for one in rollouts if one.error is not None]
    if len(failed) > MAX_FAILED * len(rollouts):
        raise SelfplayError(f"{len(failed)} of {len(rollouts)} rollouts failed; the last: {failed[-1]}")
    return rollouts
