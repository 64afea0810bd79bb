"""Run analysers over the rollouts of a run. Answers are kept one by one, so a killed analysis continues."""

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparring.core import (
    EpisodeError,
    InferenceClient,
    InputError,
    Messages,
    MockInferenceClient,
    TransientError,
)
from sparring.core.concurrency import all_results
from sparring.core.confidence_intervals import Interval, wilson_interval
from sparring.core.files import LOCK, write_file
from sparring.core.locks import lock
from sparring.finetune.analysers import (
    REQUEST,
    PureTextRolloutAnalyser,
    SentMessage,
    analyser_named,
    messages_of,
)
from sparring.finetune.run_files import ROLLOUT_FILE, GrowingFile, RunFiles, load_rollouts
from sparring.finetune.statistics import View
from sparring.programs.proofs.protocol import Protocol

TRIES = 4
"""How often a model is asked until it answers Yes or No."""
MAX_TOKENS = 16
_ANSWER = re.compile(r"[\s*_`\"'(]*(yes|no)(?!\w)[\s*_`\"')]*(?:[.,:;!\n-].*)?", re.IGNORECASE | re.DOTALL)
SPLITS = ("train", "test")
OVERWRITTEN_BY = "overwritten_by"
"""The file that names the model whose answers replace earlier ones, until all of them are there."""


class YesOrNo(msgspec.Struct, kw_only=True):
    """The answer about a message, which the first four fields name. ``None``: the model gave none; ``said``
    is what it said last, or why it could not answer. ``model`` is empty if the text decided."""

    rollout: str
    place: str
    agent: str
    channel: str
    answer: bool | None
    by: Literal["text", "model"]
    model: str = ""
    said: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the message in a run."""
        return (self.rollout, self.place, self.agent, self.channel)


async def answer_about(
    analyser: PureTextRolloutAnalyser, message: SentMessage, client: InferenceClient, model: str
) -> YesOrNo:
    """Return the answer about a message, from its text or else from a model. Raises SparringError: it cannot
    be asked."""
    names = dict(zip(("rollout", "place", "agent", "channel"), message.key, strict=True))
    decided = analyser.answer_of_text(message)
    if decided is not None:
        return YesOrNo(**names, answer=decided, by="text")
    answer, said = await ask(analyser.prompt(message), client, model)
    return YesOrNo(**names, answer=answer, by="model", model=model, said=said)


async def ask(prompt: Messages, client: InferenceClient, model: str) -> tuple[bool | None, str]:
    """Return the answer, and what the model said last. A model that says anything but Yes or No is asked
    again, up to ``TRIES`` times. A prompt that the server refuses has no answer. Raises SparringError."""
    said = ""
    messages = list(prompt)
    for _ in range(TRIES):
        try:
            response = await client.complete(
                messages, temperature=0.0, max_tokens=MAX_TOKENS, return_tokens=False, model=model
            )
        except TransientError:
            raise
        except EpisodeError as error:
            return None, str(error)
        said = response.text
        answer = read_answer(said)
        if answer is not None:
            return answer, said
        messages += [
            {"role": "assistant", "content": said or "..."},
            {"role": "user", "content": REQUEST},
        ]
    return None, said


def read_answer(text: str) -> bool | None:
    """Return what a text answers that begins with the word Yes or No; ``None`` if it is neither."""
    match = _ANSWER.fullmatch(text)
    return None if match is None else match[1].lower() == "yes"


def drawing_client() -> InferenceClient:
    """Return a client that draws Yes or No, for a dry run."""
    drawn = random.Random(0)
    return MockInferenceClient(lambda messages, seed: drawn.choice(("Yes", "No")))


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is analysed, by which ``model`` at which ``client``, with at most ``workers`` questions at once. A
    dry run keeps nothing."""

    files: RunFiles
    protocol: Protocol
    iterations: int
    client: InferenceClient
    model: str
    workers: int
    view: View
    overwrite: bool = False
    use_tqdm: bool = True
    dry_run: bool = False

    def run(self, analysers: Sequence[str | type[PureTextRolloutAnalyser]]) -> None:
        """Run analysers over all iterations, training and test, and skip those without rollouts. One that is
        answered, or was begun with another model, is skipped too, unless ``overwrite`` is set. Raises
        InputError.
        """
        kinds = [analyser_named(one) for one in analysers]
        numbers = range(self.iterations)
        found = [(split, n) for split in SPLITS for n in numbers if self.files.sampled(split, n).exists()]
        if not found:
            raise InputError(
                "RUN", f"{self.files.root} has no iteration with all its rollouts", "Let it play one"
            )
        missing = self.iterations - len({number for _, number in found})
        if missing:
            self.view.say(f"skipped: {missing} of {self.iterations} iterations have no rollouts")
        for kind in kinds:
            directory = self.files.analysis / kind.name
            with nullcontext() if self.dry_run else self._answering(directory):
                for split, number in found:
                    asyncio.run(self._run_iteration(kind(), split, number))

    @contextmanager
    def _answering(self, directory: Path) -> Iterator[None]:
        """Write answers alone, over earlier ones if asked to; an overwriting that was cut short goes on."""
        overwritten_by = directory / OVERWRITTEN_BY
        with _alone_in(directory):
            goes_on = overwritten_by.exists() and overwritten_by.read_bytes() == self.model.encode()
            if not goes_on:
                overwritten_by.unlink(missing_ok=True)  # other answers come between
            if self.overwrite and not goes_on:
                for path in directory.iterdir():
                    if ROLLOUT_FILE.fullmatch(path.name):
                        path.unlink()
                write_file(overwritten_by, self.model.encode())
            yield
            overwritten_by.unlink(missing_ok=True)

    async def _run_iteration(self, analyser: PureTextRolloutAnalyser, split: str, number: int) -> None:
        title = f"{analyser.name}, {split} {number}"
        messages = self._messages(analyser, split, number)
        kept = answers_file(self.files, analyser.name, split, number)
        answers = [] if self.dry_run else kept.read()
        done = {one.key for one in answers}
        left = [message for message in messages if message.key not in done]
        others = {one.model for one in answers if one.by == "model"} - {self.model}
        if not messages:
            self.view.say(f"{title}: skipped, it asks about none of the messages")
            return
        if not left or others:
            by = f" by {', '.join(sorted(others))}" if others else ""
            self.view.say(f"{title}: skipped, {len(done)} of {len(messages)} messages are answered{by}")
            return
        slots = asyncio.Semaphore(self.workers)

        async def answer(message: SentMessage) -> YesOrNo:
            async with slots:
                found = await answer_about(analyser, message, self.client, self.model)
            if not self.dry_run:
                kept.append(found)
            advance()
            return found

        bar = title if self.use_tqdm and not self.dry_run else ""
        with self.view.progress(bar, len(left)) as advance:
            found = await all_results(map(answer, left))
        if self.dry_run:
            asked = sum(one.by == "model" for one in found)
            self.view.say(f"{title}: {len(found)} messages, {asked} questions to a model")

    def _messages(self, analyser: PureTextRolloutAnalyser, split: str, number: int) -> list[SentMessage]:
        rollouts = load_rollouts(self.files.sampled(split, number), number)
        found = (message for rollout in rollouts for message in messages_of(self.protocol, rollout))
        return [message for message in found if analyser.is_about(message)]


@dataclass(frozen=True)
class YesShare:
    """The answers of an analyser about one agent's messages in an iteration. ``by_text`` counts those that
    the text gave, ``unanswered`` those of the ``models`` that were neither Yes nor No."""

    analyser: str
    split: str
    iteration: int
    agent: str
    yes: int
    no: int
    by_text: int
    unanswered: int
    models: tuple[str, ...]

    @property
    def interval(self) -> Interval:
        """The share of Yes among the answers, with its Wilson interval."""
        return wilson_interval(self.yes, self.yes + self.no)


def yes_shares(files: RunFiles, analysers: Sequence[str], iterations: int) -> list[YesShare]:
    """Return what analysers found in a run: training before test, by iteration and agent. Raises InputError:
    answers are damaged."""
    found = []
    for name in analysers:
        for split in SPLITS:
            for iteration in range(iterations):
                answers = answers_file(files, name, split, iteration).read()
                for agent in sorted({one.agent for one in answers}):
                    own = [one for one in answers if one.agent == agent]
                    given = [one.answer for one in own]
                    found.append(
                        YesShare(
                            *(name, split, iteration, agent),
                            yes=given.count(True),
                            no=given.count(False),
                            by_text=sum(one.by == "text" for one in own),
                            unanswered=given.count(None),
                            models=tuple(sorted({one.model for one in own} - {""})),
                        )
                    )
    return found


def answers_file(files: RunFiles, analyser: str, split: str, iteration: int) -> GrowingFile[YesOrNo]:
    """Return the file of an analyser's answers about an iteration; it is named like that of the rollouts."""
    return GrowingFile(files.analysis / analyser / files.sampled(split, iteration).name, YesOrNo)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Let only this process write into a directory. Raises InputError: another process does."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as file:
        try:
            lock(file.fileno(), wait=False)
        except BlockingIOError:
            raise InputError("analyser", f"{directory} is in use by another process", "Wait for it") from None
        yield
