"""Sampling: the rollouts of an iteration, whose answers and ends are kept one by one. A kill costs only the
calls in flight."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sparring.core import Arena, InferenceClient, Messages, ModelResponse, Rollout, SparringError
from sparring.core.concurrency import all_results
from sparring.core.errors import check_failures
from sparring.finetune.run_files import GrowingFile, RolloutLine
from sparring.finetune.scenario import PureTextEnvironment, Row

MAX_FAILED = 0.5
"""A larger share of failed rollouts means that something is broken."""


async def sample(
    environment: PureTextEnvironment,
    iteration: int,
    play: Callable[[Row], Awaitable[Rollout]],
    kept: GrowingFile[RolloutLine] | None,
    workers: int,
    on_rollout: Callable[[], None],
) -> list[Rollout]:
    """Return the rollouts of an iteration in the order of its rows, at most ``workers`` in flight. Those that
    ``kept`` has are not played again, and each that ends well is added to it; a failed one is returned with
    its error. Raises SparringError: more than half failed.
    """
    rows = environment.rows(iteration)
    done = {line.index: line.rollout for line in kept.read()} if kept is not None else {}
    slots = asyncio.Semaphore(workers)

    async def play_row(row: Row) -> Rollout:
        index, _ = row
        if index not in done:
            async with slots:
                done[index] = await play(row)
            if kept is not None and done[index].error is None:
                kept.append(RolloutLine(done[index], index))
        on_rollout()
        return done[index]

    rollouts = await all_results(map(play_row, rows))
    failed = [one.error for one in rollouts if one.error is not None]
    check_failures(failed, len(rollouts), MAX_FAILED, "rollouts")
    return rollouts


class _Answer(msgspec.Struct):
    key: str
    response: ModelResponse


class KeptAnswers(InferenceClient):
    """Asks another client, and asks no question a second time; answers are kept in the file ``path``.

    A question is a call with all its arguments; one without a seed is always asked. A rollout that was cut
    short is played again from its answers. Raises InputError: a line of the file is damaged.
    """

    def __init__(self, client: InferenceClient, path: Path) -> None:
        self.client = client
        self.problem: SparringError | None = None
        """Why an answer could not be kept. No further question is asked then."""
        self._lines = GrowingFile(path, _Answer)
        self._answers = {line.key: line.response for line in self._lines.read()}

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
        """Return the kept answer, or ask. Raises SparringError: it cannot be kept."""
        question = [messages, temperature, max_tokens, return_tokens, model, seed, stop]
        key = hashlib.sha256(msgspec.json.encode(question)).hexdigest()
        if seed is not None and key in self._answers:
            return self._answers[key]
        if self.problem is not None:
            raise self.problem
        response = await self.client.complete(
            messages,
            temperature,
            max_tokens,
            return_tokens,
            model=model,
            seed=seed,
            **({"stop": stop} if stop else {}),  # a client of one's own may not know it
        )
        if seed is not None:
            self._keep(key, response)
        return response

    def _keep(self, key: str, response: ModelResponse) -> None:
        self._answers[key] = response
        try:
            self._lines.append(_Answer(key, response))
        except OSError as error:
            self.problem = SparringError(f"{self._lines.path} cannot be written ({error})")
            raise self.problem from error

    async def get_policy_version(self) -> int:
        """Return the client's."""
        return await self.client.get_policy_version()


@contextmanager
def answers_kept(arena: Arena, path: Path) -> Iterator[None]:
    """Keep the answers to an arena's calls in a file while the body runs. Raises SparringError: one could not
    be kept."""
    asked = arena.client
    arena.client = keeping = KeptAnswers(asked, path)
    try:
        yield
    finally:
        arena.client = asked
    if keeping.problem is not None:
        raise keeping.problem
