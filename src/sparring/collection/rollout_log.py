"""What was played, on disk: the rollouts of each update, and the batches that were learned."""

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError, Rollout, SparringError, Step
from sparring.core.files import write_file

ROLLOUT_SCHEMA_VERSION = 1

_FILE_NAME = re.compile(r"step-(\d+)\.jsonl")
# Extras keyed by player id. JSON turns these keys into strings; reading converts them back to numbers.
_EXTRAS_BY_PLAYER = ("final_rewards", "game_info")


class LogLine(msgspec.Struct):
    """One line of a log file: rollout ``line`` (from 1) of the ``lines`` rollouts of step ``step``."""

    schema_version: int
    step: int
    line: int
    lines: int
    rollout: Rollout


class _SchemaVersion(msgspec.Struct):
    schema_version: int


class RolloutLog:
    """Writes and reads ``directory/step-000012.jsonl``, one file per training step, one rollout per line.

    Failed rollouts are kept as well. Floats are restored exactly. A dataclass among the artifacts is read as
    a dictionary, tuples as lists, and keys as strings except those of ``extras["final_rewards"]`` and
    ``extras["game_info"]``, which are player ids.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def write(self, step: int, rollouts: list[Rollout]) -> None:
        """Replace the file of a training step, completely or not at all; without rollouts it has none.

        Raises SparringError for a value that JSON cannot represent (NaN, half a surrogate pair), and OSError.
        """
        path = self.path(step)
        if not rollouts:
            path.unlink(missing_ok=True)
            return
        write_rollouts(path, step, rollouts)

    def read(self, step: int) -> list[Rollout]:
        """Return the rollouts of a training step, in the order they were written.

        Raises InputError if the step has no file, a line is damaged or missing, or its schema is unknown.
        """
        rollouts = []
        for one in self.lines(step):
            if isinstance(one, InputError):
                raise one
            rollouts.append(one)
        return rollouts

    def lines(self, step: int) -> Iterator[Rollout | InputError]:
        """Yield the rollouts of a training step one at a time, and for each damaged line, and for lines that
        are missing at the end, the error that names it.

        Raises InputError if the step has no file.
        """
        path = self.path(step)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise InputError(
                str(path), f"there are no rollouts of step {step}", "Check the run and the step."
            ) from None
        with file:
            number, expected = 0, 1
            for number, line in enumerate(file, 1):
                try:
                    entry = _decode(line, path, number)
                    if (entry.step, entry.line) != (step, number) or number > entry.lines:
                        problem = f"it says step {entry.step}, line {entry.line} of {entry.lines}"
                        raise _damaged(path, number, problem)
                except InputError as error:
                    yield error
                else:
                    expected = entry.lines
                    yield entry.rollout
        if number < expected:
            problem = f"the file ends after {number} of {expected} lines"
            yield _damaged(path, number + 1, problem)

    def steps(self) -> list[int]:
        """Return the training steps that have a file, ascending."""
        if not self.directory.is_dir():
            return []
        matches = (_FILE_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def __iter__(self) -> Iterator[tuple[int, Rollout]]:
        """Yield (training step, rollout) for the whole log."""
        for step in self.steps():
            for rollout in self.read(step):
                yield step, rollout

    def path(self, step: int) -> Path:
        """Return the file of a training step."""
        return self.directory / f"step-{step:06d}.jsonl"


def write_rollouts(path: Path, step: int, rollouts: list[Rollout]) -> None:
    """Write a file in the log's format as :meth:`RolloutLog.write` does; its directory is created."""
    content = b"".join(
        _encode(LogLine(ROLLOUT_SCHEMA_VERSION, step, number, len(rollouts), rollout)) + b"\n"
        for number, rollout in enumerate(rollouts, 1)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)


def _encode(line: LogLine) -> bytes:
    rollout = line.rollout
    for index, step in enumerate(rollout.steps):
        numbers = [step.reward, step.advantage, *(step.completion_logprobs or [])]
        if not all(map(math.isfinite, numbers)):
            raise SparringError(
                f"rollout {rollout.id}, step {index}: a reward or log-probability is not finite"
            )
    try:
        return msgspec.json.encode(line, enc_hook=repr)  # a game library may leave any object in its info
    except (ValueError, RecursionError) as error:  # half a surrogate pair, a list that contains itself
        raise SparringError(f"rollout {rollout.id} cannot be written as JSON: {error}") from error


def _decode(line: bytes, path: Path, number: int) -> LogLine:
    try:
        version = msgspec.json.decode(line, type=_SchemaVersion).schema_version
        if version != ROLLOUT_SCHEMA_VERSION:
            raise InputError(
                f"{path}, line {number}",
                f"schema version {version} is unknown",
                f"This version of sparring reads version {ROLLOUT_SCHEMA_VERSION}.",
            )
        entry = msgspec.json.decode(line, type=LogLine)
        extras = entry.rollout.extras
        for name in _EXTRAS_BY_PLAYER:
            if name in extras:
                extras[name] = {int(pid): value for pid, value in extras[name].items()}
    except (AttributeError, *UNREADABLE) as error:
        raise _damaged(path, number, str(error)) from error
    return entry


def _damaged(path: Path, number: int, problem: str) -> InputError:
    return InputError(
        f"{path}, line {number}",
        f"the line is damaged: {problem}",
        "Restore the file, or resume the run from a checkpoint before this step.",
    )


BATCH_SCHEMA_VERSION = 1


class BatchLine(msgspec.Struct):
    """A step of a batch: whose it was, the last message of its prompt, and its reward at each stage.

    ``explored`` is whether the answer was a random legal one; it is left out where it could not have been.
    """

    role_id: str
    pid: int
    env_id: str
    rollout_id: str
    step_index: int
    policy_version: int
    obs: str
    act: str
    rewards: dict[str, float]
    explored: bool | msgspec.UnsetType = msgspec.UNSET
    schema_version: int = BATCH_SCHEMA_VERSION


class BatchLog:
    """Writes each batch to ``directory/batch-000012.jsonl.gz``, one step per line."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def write(self, number: int, steps: list[Step]) -> None:
        """Write batch ``number``, counted from 1."""
        _write_compressed(self._path(number), map(_line, steps))

    def read(self, number: int) -> list[dict[str, Any]]:
        """Return the lines of batch ``number``; raise InputError if it has no file, or this is damaged."""
        path = self._path(number)
        try:
            content = path.read_bytes()
            if not content:
                raise EOFError("it is empty")
            lines = gzip.decompress(content).splitlines()
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        except FileNotFoundError:
            raise InputError(
                str(path), f"there is no batch {number}", "Check the run and the number."
            ) from None
        except (OSError, EOFError, zlib.error, *UNREADABLE) as error:
            fix = "Restore the file, or resume the run from a checkpoint before this update."
            raise InputError(str(path), f"the file is damaged: {error}", fix) from error

    def _path(self, number: int) -> Path:
        return self.directory / f"batch-{number:06d}.jsonl.gz"


class AdvantageLine(msgspec.Struct):
    """What a critic thought of an answer: the advantage that it was learned with, in the learner's unit.

    ``step_index`` is the place of the answer among those of its role, as in a :class:`BatchLine`.
    """

    rollout_id: str
    role_id: str
    step_index: int
    advantage: float


class AdvantageLog:
    """Writes the advantages that critics give in an update to ``directory/advantages-000012.jsonl.gz``."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def write(self, update: int, lines: Iterable[AdvantageLine]) -> None:
        """Write those of an update, counted from 1; nothing without any."""
        if found := [*lines]:
            _write_compressed(self.directory / f"advantages-{update:06d}.jsonl.gz", found)


def _write_compressed(path: Path, lines: Iterable[BatchLine | AdvantageLine]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    write_file(path, gzip.compress(content, compresslevel=1, mtime=0))


def reward_stages(step: Step) -> dict[str, float]:
    """Return what a drawn step earned at each stage, and its advantage as ``sampled``."""
    return {**step.info.get("reward_stages", {}), "step": step.reward, "sampled": step.advantage}


def _line(step: Step) -> BatchLine:
    explored = step.info.get("explored")
    return BatchLine(
        role_id=step.role_id,
        pid=step.pid,
        env_id=step.env_id,
        rollout_id=step.info.get("rollout_id", ""),
        step_index=step.info.get("step_index", 0),
        policy_version=step.policy_version,
        obs=step.prompt[-1]["content"] if step.prompt else "",
        act=step.completion_text,
        rewards=reward_stages(step),
        explored=explored if isinstance(explored, bool) else msgspec.UNSET,
    )
