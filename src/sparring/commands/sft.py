"""Supervised training of an adapter on a file of conversations, in this process.

It is what a job of ``sparring serve --jobs`` trains, without the server: the same file and numbers, and on a
CPU with the same number of threads and the same seed the same adapter. A kill loses the training.
"""

import shutil
from pathlib import Path

from sparring.config.model import LoraSection, ModelSettings
from sparring.core import InputError
from sparring.core.files import put_in_place, users_scratch_for
from sparring.evaluation.match import Progress
from sparring.finetune.jobs.schema import read_conversations
from sparring.learn.fine_tuning.examples import Conversation, Renderer, WrongLine, families, opening
from sparring.learn.fine_tuning.settings import JobSettings
from sparring.run.assembly import build_policy


def fine_tune(file: Path, out: Path, model: ModelSettings, settings: JobSettings, progress: Progress) -> None:
    """Train a fresh adapter on a file's conversations and write it into a directory, in PEFT's format.

    Raises:
        InputError: the file is missing or has a wrong line, ``out`` exists, or the model cannot be loaded.
        SparringError: a step's loss is not finite.
    """
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a directory that does not")
    talks = _conversations(file)
    with progress.doing("importing torch"):
        from sparring.learn.fine_tuning.job import Data, FineTuningJob
    policy = build_policy(model, LoraSection(), settings.seed, progress.say)
    renderer = Renderer(policy.tokens, policy.context_length)
    try:
        records = [renderer.conversation(one) for one in talks]
    except WrongLine as error:
        raise _wrong(file, error) from error
    data = Data(records, families([opening(one.messages) for one in talks]))
    scratch = users_scratch_for(out)
    try:
        job = FineTuningJob(policy, model.name, scratch, settings, data, save_seconds=float("inf"))
        with progress.doing(f"training on {len(talks):,} conversations", "steps", job.steps) as count:
            outcome = job.run(count)
        made = outcome.checkpoints[-1]
        put_in_place(scratch / made.directory, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    row, place = made.metrics, out if out.is_absolute() else f"./{out}"
    progress.say(f"loss {row['train_loss']:.4f}, accuracy {row['train_accuracy']:.0%}, adapter in {out}")
    progress.say(f"to go on from it: sparring train ... --start.default {place}")


def _conversations(file: Path) -> list[Conversation]:
    if not file.is_file():
        raise InputError("FILE", f"there is no file {file}", "Make one with: sparring examples")
    try:
        return read_conversations(file.read_bytes())
    except WrongLine as error:
        raise _wrong(file, error) from error


def _wrong(file: Path, error: WrongLine) -> InputError:
    return InputError(f"{file}, line {error.line}", error.problem, "Correct the line")
