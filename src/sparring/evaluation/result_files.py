"""The files of a run's evaluations: one JSON file each, which appears complete or not at all."""

import json
import re
from pathlib import Path
from typing import Annotated

import msgspec

from sparring.core import InputError
from sparring.core.files import write_file
from sparring.evaluation.match_result import MatchResult
from sparring.evaluation.measures import MeasureResult
from sparring.evaluation.nash_conv import NashConvResult

EvaluationResult = MatchResult | NashConvResult | MeasureResult

_KINDS: dict[str, type[EvaluationResult]] = {
    "match": MatchResult,
    "nash_conv": NashConvResult,
    "measure": MeasureResult,
}


class _Head(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(ge=0)]
    kind: str


def evaluation_path(directory: Path, step: int, name: str, suffix: str) -> Path:
    """Return ``step-000020-NAME`` with a suffix; characters unsafe in file names become ``-``."""
    return directory / f"step-{step:06d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}{suffix}"


def write_evaluation(directory: Path, step: int, name: str, result: EvaluationResult) -> Path:
    """Write an evaluation to ``step-000020-NAME.json``, replacing an existing file, and return its path.

    The file holds ``step``, ``kind`` (``match``, ``nash_conv`` or ``measure``) and the result's ``to_dict``.

    Args:
        directory: the run's directory of evaluations; created if missing.
        step: the training step after which the evaluation was made.
        name: distinguishes the evaluations of a step; characters unsafe in file names become ``-``.
        result: the result to write.

    Raises:
        OSError: the directory cannot be written.
    """
    kind = next(name for name, cls in _KINDS.items() if isinstance(result, cls))
    content = json.dumps({"step": step, "kind": kind, **result.to_dict()}, indent=1, allow_nan=False)
    directory.mkdir(parents=True, exist_ok=True)
    path = evaluation_path(directory, step, name, ".json")
    write_file(path, f"{content}\n".encode())
    return path


def evaluated_steps(directory: Path) -> list[int]:
    """Return the updates after which evaluations were written, in order; none if there is no directory."""
    found = (re.match(r"step-(\d+)-", path.name) for path in directory.glob("step-*.json"))
    return sorted({int(match[1]) for match in found if match})


def decoded_evaluation(content: bytes) -> tuple[int, EvaluationResult]:
    """Return the step and the result in a file of :func:`write_evaluation`.

    Raises:
        ValueError: it is not an evaluation, or is damaged.
    """
    try:
        head = msgspec.json.decode(content, type=_Head)
        return head.step, msgspec.json.decode(content, type=_KINDS[head.kind])
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from error


def read_evaluation(path: Path) -> tuple[int, EvaluationResult]:
    """Return the step and the result that ``write_evaluation`` wrote.

    Raises:
        InputError: the file is missing or is not an evaluation.
    """
    try:
        return decoded_evaluation(path.read_bytes())
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Evaluate again") from error
    except ValueError as error:
        raise InputError(str(path), "is not an evaluation, or is damaged", "Evaluate again") from error
