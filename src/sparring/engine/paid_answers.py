"""Answers of models behind an API, which cost money: counted, kept in a file, and never paid for twice."""

import asyncio
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from sparring.collection.serialization import UNREADABLE, CheckedLine
from sparring.core import (
    InferenceClient,
    InputError,
    Messages,
    ModelResponse,
    SparringError,
    derive_seed,
)
from sparring.core.concurrency import CallSlots
from sparring.core.files import append_at
from sparring.core.messages import as_text, said
from sparring.core.reasoning import Parts, Reasoning
from sparring.core.sampling import Sampling
from sparring.core.text import encodable
from sparring.engine.api_models import CALLS_AT_ONCE, MembersClient, openai_client, slot_of

ANSWERS_FILE = "answers.jsonl"
LAST_SECONDS = 60.0
ENOUGH = 16
"""Answers to a prompt after which training draws from those that were paid for."""
MOST_FAILURES = 16
"""Calls in a row without an answer after which no more are made."""


class CallsSpent(InputError):
    """The calls that may be made are used up."""

    @classmethod
    def after(cls, calls: int, *, kept: bool = True) -> Self:
        """Return the error of so many calls, whose answers may be ``kept``."""
        problem = f"all {calls:,} calls to models behind an API are made"
        return cls("collection.api_calls", problem, f"Allow more{': what they answered is kept' * kept}")


class PaidLine(CheckedLine, omit_defaults=True):
    """A line of the file: a call that begins, without ``text``, or its answer.

    Attributes:
        call: the number of the call.
        key: a fingerprint of what was asked: the model, the prompt, and how the answer is drawn.
        seed: the seed of the call.
        measured: whether the answer was for games that measure, from which training never draws.
        prompt: what was asked, for people.
        thought: what the model thought before, and whether it ``ended``, if it did.
    """

    call: int
    key: str = ""
    seed: int | None = None
    measured: bool = False
    text: str | None = None
    finish_reason: str = "stop"
    thought: str | None = None
    ended: bool = True
    prompt: list[dict[str, str]] = msgspec.field(default_factory=list)

    def response(self) -> ModelResponse:
        """Return the answer."""
        text = self.text or ""
        found = ModelResponse(text, [said("assistant", text)], finish_reason=self.finish_reason)
        if self.thought is None:
            return found
        return found.in_parts(Parts(text, Reasoning(self.thought, self.ended)), None)


class PaidFile:
    """The file of the answers of a directory; without a path, they are in memory alone.

    The next line replaces a half-written last one, which a kill left; a damaged line costs its own answer
    alone.

    At most ``limit`` calls are made in all, those of earlier processes included, and those that failed: they
    may have been paid for.
    """

    def __init__(self, path: Path | None, limit: int | None) -> None:
        self.path = path
        self.limit = limit
        self.calls = 0
        self.kept: dict[tuple[str, bool], list[PaidLine]] = defaultdict(list)
        self.by_seed: dict[tuple[str, int, bool], PaidLine] = {}
        content = path.read_bytes() if path is not None and path.is_file() else b""
        self._end = content.rfind(b"\n") + 1
        for line in content[: self._end].split(b"\n"):
            with suppress(*UNREADABLE):
                if (found := msgspec.json.decode(line, type=PaidLine)).is_whole:
                    self._take(found)

    def begin(self) -> int:
        """Count another call and return its number; raise CallsSpent if no more may be made."""
        if self.limit is not None and self.calls >= self.limit:
            raise CallsSpent.after(self.limit, kept=self.path is not None)
        self._write(PaidLine(self.calls))
        return self.calls - 1

    def keep(self, line: PaidLine) -> None:
        """Keep an answer: it is on the disk when this returns."""
        self._write(line, sync=True)

    def _write(self, line: PaidLine, *, sync: bool = False) -> None:
        if self.path is None:
            self._take(line)
            return
        content = line.line()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            append_at(file, self._end, content)
            if sync:
                os.fsync(file.fileno())
        self._end += len(content)
        self._take(line)

    def _take(self, line: PaidLine) -> None:
        self.calls = max(self.calls, line.call + 1)
        if line.text is not None:
            self.kept[line.key, line.measured].append(line)
            if line.seed is not None:
                self.by_seed.setdefault((line.key, line.seed, line.measured), line)


class PaidAnswers(InferenceClient):
    """A model of this name behind an API, which the ``client`` asks, and whose answers are kept.

    A call with the seed of an earlier one gets its answer, also if that has yet to come. Otherwise, for
    training, a prompt is asked ``ENOUGH`` times; then its answers are drawn from those that came first. Where
    ``measured``, each call is new. ``max_tokens`` limits an answer if a call does not.

    Waiting for answers to the same prompt ends when they come or fail. After ``MOST_FAILURES`` failures in a
    row, each is an InputError. A call that is cancelled is paid for, so it ends when its answer is kept, or
    after ``LAST_SECONDS``.
    """

    def __init__(
        self,
        name: str,
        client: InferenceClient,
        file: PaidFile,
        max_tokens: int | None,
        *,
        measured: bool = False,
    ) -> None:
        self.name = name
        self._client = client
        self.file = file
        self.max_tokens = max_tokens
        self.measured = measured
        self._slots = CallSlots(CALLS_AT_ONCE)
        self._pending = Counter[str]()
        self._asked: set[tuple[str, int | None]] = set()
        self._arrived: dict[str, asyncio.Event] = {}
        self._failures = 0

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        seed: int | None = None,
        sampling: Sampling | None = None,
        **options: Any,
    ) -> ModelResponse:
        """Answer as the API does or did, without token ids; raise CallsSpent if it may not be asked."""
        max_tokens = self.max_tokens if max_tokens is None else max_tokens
        prompt = [{"role": one["role"], "content": encodable(one["content"])} for one in as_text(messages)]
        drawn = {"temperature": temperature, "max_tokens": max_tokens, **options}
        drawn["sampling"] = None if sampling is None else asdict(sampling)
        key = _key(self.name, prompt, drawn)
        if (known := await self._known(key, seed)) is not None:
            return known.response()
        self._pending[key] += 1
        self._asked.add((key, seed))
        try:
            async with slot_of(self._slots):
                call = self.file.begin()
                asked = self._client.complete(
                    messages, temperature, max_tokens, False, seed=seed, sampling=sampling, **options
                )
                keep = partial(_line_of, call, key, seed, self.measured, prompt)
                return await self._to_its_end(asyncio.create_task(self._kept(asked, keep)))
        finally:
            self._pending[key] -= 1
            self._asked.discard((key, seed))
            if (event := self._arrived.pop(key, None)) is not None:
                event.set()

    async def _kept(
        self, asked: Awaitable[ModelResponse], line_of: Callable[[ModelResponse], PaidLine]
    ) -> ModelResponse:
        try:
            response = await asked
        except SparringError as error:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                problem = f"failed {self._failures} times in a row: {error}"
                raise InputError(
                    self.name, problem, "See that it answers, and give the command again"
                ) from error
            raise
        self._failures = 0
        response.text = encodable(response.text)
        self.file.keep(line_of(response))
        return response

    async def _to_its_end(self, answer: asyncio.Task[ModelResponse]) -> ModelResponse:
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait({answer}, timeout=LAST_SECONDS)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # which nobody else asks for
            raise

    async def _known(self, key: str, seed: int | None) -> PaidLine | None:
        """Return an answer that was paid for; ``None`` if the API is to be asked."""
        while True:
            if seed is not None and (same := self.file.by_seed.get((key, seed, self.measured))):
                return same
            kept = self.file.kept[key, False]
            if seed is None or (key, seed) not in self._asked:
                if self.measured or len(kept) + self._pending[key] < ENOUGH:
                    return None
                if len(kept) >= ENOUGH:
                    return kept[derive_seed(seed or 0, "paid answer", key) % ENOUGH]
            await self._arrived.setdefault(key, asyncio.Event()).wait()


def paying_client(
    local: InferenceClient | None,
    apis: Mapping[str, str],
    file: PaidFile,
    max_tokens: int | None = None,
    *,
    measured: bool = False,
) -> MembersClient:
    """Return what asks the models behind these addresses, by name, and ``local`` for all others; see
    :class:`PaidAnswers`."""
    return MembersClient(
        local,
        {
            name: PaidAnswers(one, openai_client(one), file, max_tokens, measured=measured)
            for name, one in apis.items()
        },
    )


def _key(name: str, prompt: list[dict[str, str]], drawn: Mapping[str, Any]) -> str:
    asked = msgspec.json.encode([name, prompt, dict(sorted(drawn.items()))])
    return hashlib.sha256(asked).hexdigest()[:32]


def _line_of(
    call: int,
    key: str,
    seed: int | None,
    measured: bool,
    prompt: list[dict[str, str]],
    response: ModelResponse,
) -> PaidLine:
    thought = response.reasoning
    return PaidLine(
        call,
        key,
        seed,
        measured,
        response.text,
        response.finish_reason,
        None if thought is None else encodable(thought.text),
        thought is None or thought.ended,
        prompt,
    )
