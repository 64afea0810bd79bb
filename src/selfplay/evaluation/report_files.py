"""Evaluations as files of a run: one JSON file each, whole or not at all."""

import json
import os
import re
from pathlib import Path

from selfplay.core import InputError
from selfplay.evaluation.match_result import MatchResult
from selfplay.evaluation.measures import MeasureResult
from selfplay.evaluation.nash_conv import NashConvResult

EvaluationResult = MatchResult | NashConvResult | MeasureResult

_KINDS: dict[str, type[EvaluationResult]] = {
    "match": MatchResult,
    "nash_conv": NashConvResult,
    "measure": MeasureResult,
}


def write_evaluation(directory: Path, step: int, name: str, result: EvaluationResult) -> Path:
    """Write an evaluation to ``step-000020-NAME.json``, in place of one that is there, and return its path.

    The file holds ``step``, ``kind`` (``match``, ``nash_conv`` or ``measure``) and what the result's
    ``to_dict`` gives.

    Args:
        directory: where the run keeps evaluations; made if missing.
        step: the training step it was made after.
        name: tells the evaluations of a step apart; what a file name cannot hold becomes ``-``.
        result: what to write.

    Raises:
        OSError: the directory cannot be written.
    """
    kind = next(name for name, cls in _KINDS.items() if isinstance(result, cls))
    content = json.dumps({"step": step, "kind": kind, **result.to_dict()}, indent=1, allow_nan=False)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{step:06d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def read_evaluation(path: Path) -> tuple[int, EvaluationResult]:
    """Return the step and the result that ``write_evaluation`` wrote.

    Raises:
        InputError: the file is missing, or is no such file.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return int(values["step"]), _KINDS[values["kind"]].from_dict(values)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Evaluate again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(path), "is no evaluation, or damaged", "Evaluate again") from error
