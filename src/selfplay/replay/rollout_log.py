"""RolloutLog: every rollout of a run, on disk for good, as schema-versioned JSON lines."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from selfplay.core import InputError, Rollout, SelfplayError

ROLLOUT_SCHEMA_VERSION = 1

_FILE_NAME = re.compile(r"step-(\d+)\.jsonl")
# What core documents as keyed by player id: JSON makes the keys text, and reading makes them numbers again.
_EXTRAS_BY_PLAYER = ("final_rewards", "game_info")


class RolloutLine(msgspec.Struct):
    """One line of a log file: rollout ``line`` (from 1) of the ``lines`` that training step ``step`` has."""

    schema_version: int
    step: int
    line: int
    lines: int
    rollout: Rollout


class _SchemaVersion(msgspec.Struct):
    schema_version: int


class RolloutLog:
    """Writes and reads ``directory/step-000012.jsonl``, one file a training step, one rollout a line.

    Failed rollouts are kept like any other; their reason is in ``rollout.error``. Floats come back bit for
    bit. An artifact that is a dataclass (``PlaySpec``) comes back as a plain dictionary. Apart from
    ``extras["final_rewards"]`` and ``extras["game_info"]``, whose keys are player ids, dictionary keys come
    back as text and tuples as lists.

    Args:
        directory: the ``rollouts`` directory of a run; made with the first file.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def write(self, step: int, rollouts: list[Rollout]) -> None:
        """Write the rollouts of a training step, in place of what was written for it before.

        The file appears whole or not at all. A step without rollouts has no file.

        Raises:
            SelfplayError: a rollout holds what JSON cannot (an unknown object, NaN, infinity).
            OSError: the directory cannot be written.
        """
        path = self._path(step)
        if not rollouts:
            path.unlink(missing_ok=True)
            return
        content = b"".join(
            _encode(RolloutLine(ROLLOUT_SCHEMA_VERSION, step, number, len(rollouts), rollout)) + b"\n"
            for number, rollout in enumerate(rollouts, 1)
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._sync_directory()

    def read(self, step: int) -> list[Rollout]:
        """Return the rollouts of a training step, in the order they were written.

        Raises:
            InputError: the step has no file, a line is damaged or missing, or its schema is unknown.
        """
        path = self._path(step)
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            raise InputError(
                str(path), f"no rollouts of step {step} are here", "Check the run and the step."
            ) from None
        rollouts = []
        expected = 1
        for number, line in enumerate(lines, 1):
            entry = _decode(line, path, number)
            expected = entry.lines
            if (entry.step, entry.line) != (step, number):
                problem = f"it says step {entry.step}, line {entry.line}"
                raise _damaged(path, number, problem)
            rollouts.append(entry.rollout)
        if len(rollouts) != expected:
            raise _damaged(path, len(lines) + 1, f"the file ends after {len(lines)} of {expected} lines")
        return rollouts

    def steps(self) -> list[int]:
        """Return the training steps that have a file, ascending."""
        if not self.directory.is_dir():
            return []
        matches = (_FILE_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def __iter__(self) -> Iterator[tuple[int, Rollout]]:
        """Yield (training step, rollout) over the whole log; errors as in ``read``."""
        for step in self.steps():
            for rollout in self.read(step):
                yield step, rollout

    def truncate_after(self, step: int) -> int:
        """Delete the files of training steps after ``step``, and leftovers of writes that were cut short.

        Returns:
            How many steps were deleted.
        """
        later = [other for other in self.steps() if other > step]
        for other in later:
            self._path(other).unlink()
        if self.directory.is_dir():
            for leftover in self.directory.glob("step-*.tmp"):
                leftover.unlink()
            self._sync_directory()
        return len(later)

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:06d}.jsonl"

    def _sync_directory(self) -> None:
        """Make renames and deletions in the directory durable."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _encode(line: RolloutLine) -> bytes:
    rollout = line.rollout
    for index, step in enumerate(rollout.steps):
        numbers = [step.reward, step.advantage, *(step.completion_logprobs or [])]
        if not all(map(math.isfinite, numbers)):
            raise SelfplayError(
                f"rollout {rollout.id}, step {index}: a reward or log-probability is not finite"
            )
    try:
        return msgspec.json.encode(line, enc_hook=repr)  # a game library may leave any object in its info
    except (TypeError, msgspec.MsgspecError) as error:
        raise SelfplayError(f"rollout {rollout.id} cannot be written as JSON: {error}") from error


def _decode(line: bytes, path: Path, number: int) -> RolloutLine:
    try:
        version = msgspec.json.decode(line, type=_SchemaVersion).schema_version
        if version != ROLLOUT_SCHEMA_VERSION:
            raise InputError(
                f"{path}, line {number}",
                f"schema version {version} is unknown",
                f"This version of selfplay reads version {ROLLOUT_SCHEMA_VERSION}.",
            )
        entry = msgspec.json.decode(line, type=RolloutLine)
        extras = entry.rollout.extras
        for name in _EXTRAS_BY_PLAYER:
            if name in extras:
                extras[name] = {int(pid): value for pid, value in extras[name].items()}
    except (msgspec.MsgspecError, ValueError, AttributeError) as error:
        raise _damaged(path, number, str(error)) from error
    return entry


def _damaged(path: Path, number: int, problem: str) -> InputError:
    return InputError(
        f"{path}, line {number}",
        f"the line is damaged: {problem}",
        "Restore the file, or resume the run from a checkpoint before this step.",
    )
