"""Run analysers over the rollouts of a run. Answers are kept one by one, so a killed analysis continues."""

import asyncio
import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from selfplay.core import InferenceClient, InputError
from selfplay.core.files import LOCK, write_file
from selfplay.core.gather import all_results
from selfplay.finetune.analysers.analyser import PureTextRolloutAnalyser
from selfplay.finetune.analysers.asking import Answer, answer_about
from selfplay.finetune.analysers.conduct import FollowUp, ProverRoleConformance
from selfplay.finetune.analysers.messages import SentMessage, messages_of
from selfplay.finetune.analysers.quotation import ProverAccurateQuotation, ProverDirectQuotation
from selfplay.finetune.growing_file import GrowingFile
from selfplay.finetune.run_files import ROLLOUT_FILE, RunFiles
from selfplay.finetune.saving import load_rollouts
from selfplay.finetune.view import View
from selfplay.programs.proofs.protocol import Protocol

ANALYSERS: tuple[type[PureTextRolloutAnalyser], ...] = (
    ProverRoleConformance,
    ProverDirectQuotation,
    ProverAccurateQuotation,
    FollowUp,
)
SPLITS = ("train", "test")
OVERWRITTEN_BY = "overwritten_by"
"""The file that names the model whose answers replace earlier ones, until all of them are there."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is analysed, and how.

    Args:
        files: the run.
        protocol: who speaks when in its proofs.
        iterations: how many iterations it may have.
        client: asks the model; for a dry run, :func:`drawing_client`.
        model: the model that answers.
        workers: maximum number of calls at a time.
        view: shows progress.
        overwrite: replace earlier answers.
        use_tqdm: show a bar.
        dry_run: keep no answers, and replace none.
    """

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
        """Run analysers one after the other over all iterations, training and test.

        An iteration without rollouts is skipped, and so is one that is answered completely, unless
        ``overwrite`` is set. One that is answered in part is continued if the same model answered.

        Raises:
            InputError: there is no analyser of a name, or no iteration has rollouts, or another process
                writes these answers.
            SelfplayError: the model cannot be asked; the answers so far are kept.
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
            with nullcontext() if self.dry_run else _alone_in(directory):
                if self.overwrite and not self.dry_run:
                    self._begin_anew(directory)
                elif not self.dry_run and _overwriting_model(directory) != self.model:
                    (directory / OVERWRITTEN_BY).unlink(missing_ok=True)  # its answers are mixed with these
                for split, number in found:
                    asyncio.run(self._run_iteration(kind(), split, number))
                if not self.dry_run and _overwriting_model(directory) == self.model:
                    (directory / OVERWRITTEN_BY).unlink()

    def _begin_anew(self, directory: Path) -> None:
        """Remove the answers in a directory, unless they are those of an overwriting that was cut short."""
        if _overwriting_model(directory) != self.model:
            for path in directory.iterdir():
                if ROLLOUT_FILE.fullmatch(path.name):
                    path.unlink()
            write_file(directory / OVERWRITTEN_BY, self.model.encode())

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

        async def answer(message: SentMessage) -> Answer:
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


def analyser_named(name: str | type[PureTextRolloutAnalyser]) -> type[PureTextRolloutAnalyser]:
    """Return an analyser: a class itself, or the built-in one of this name.

    Raises:
        InputError: there is none.
    """
    if not isinstance(name, str):
        return name
    for kind in ANALYSERS:
        if kind.name == name:
            return kind
    names = ", ".join(kind.name for kind in ANALYSERS)
    raise InputError("analyser", f"there is no analyser {name}", f"Use one of {names}")


def answers_file(files: RunFiles, analyser: str, split: str, iteration: int) -> GrowingFile[Answer]:
    """Return the file of an analyser's answers about an iteration; it is named like that of the rollouts."""
    return GrowingFile(files.analysis / analyser / files.sampled(split, iteration).name, Answer)


def _overwriting_model(directory: Path) -> str | None:
    """Return the model whose overwriting has begun and not ended."""
    path = directory / OVERWRITTEN_BY
    return path.read_text() if path.exists() else None


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Let only this process write into a directory.

    Raises:
        InputError: another process does.
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("analyser", f"{directory} is in use by another process", "Wait for it") from None
        yield
