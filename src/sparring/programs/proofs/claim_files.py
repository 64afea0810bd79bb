"""Claims of JSON Lines files, of Hugging Face datasets, of questions, and the bundled ones on code."""

import json
import random
from collections.abc import Iterable
from importlib.resources import files
from itertools import islice
from typing import Any

from sparring.config.proofs import (
    ArithmeticClaims,
    Claims,
    CodeClaims,
    ColumnSettings,
    DatasetClaims,
    FileClaims,
    QuestionClaims,
)
from sparring.core import InputError, derive_seed
from sparring.core.rows import rows_of_dataset, rows_of_file
from sparring.programs.proofs.arithmetic_claims import arithmetic_claims
from sparring.programs.proofs.claims import Claim
from sparring.programs.task_sources import load_questions
from sparring.programs.tasks import RIGHT, Task

TRIED_ANSWERS = 10
BUGGY_APPS_NAME = "lrhammond/buggy-apps"


BUGGY_APPS = ColumnSettings(
    right="solutions", wrong="buggy_solutions", where={"difficulty": "interview", "flags": ""}
)
"""The columns of lrhammond/buggy-apps: programming problems with right solutions and ones with subtle bugs.

As in the original, problems of interview difficulty are read and those with a flag are not. The original
counts the buggy solutions by the right ones; here all of both lists are read.
"""


def claims_of(settings: Claims) -> list[Claim]:
    """Return all claims, before they are split; raise an InputError if they cannot be read or made."""
    match settings:
        case ArithmeticClaims():
            return arithmetic_claims(settings.count, settings.difficulty, settings.seed)
        case CodeClaims():
            return code_claims()
        case FileClaims():
            return claims_of_file(settings.path, settings.columns)
        case DatasetClaims():
            return claims_of_dataset(settings.name, settings.split, settings.columns)
        case QuestionClaims():
            return claims_of_task(load_questions(settings, "program.claims.name"), settings.seed)


def claims_of_file(path: str, columns: ColumnSettings | None = None) -> list[Claim]:
    """Return the claims of a JSON Lines file."""
    return claims_of_rows(rows_of_file(path, "claims"), columns or ColumnSettings(), path)


def claims_of_dataset(name: str, split: str = "train", columns: ColumnSettings | None = None) -> list[Claim]:
    """Return the claims of a dataset: one of the Hugging Face Hub, or a directory of files.

    Without ``columns``, those of lrhammond/buggy-apps are known; other datasets have ``question``, ``claim``
    and ``y``.
    """
    rows = rows_of_dataset(name, split, "claims")
    columns = columns or (BUGGY_APPS if name == BUGGY_APPS_NAME else ColumnSettings())
    return claims_of_rows(rows, columns, name)


def claims_of_task(task: Task, seed: int) -> list[Claim]:
    """Return two claims for each question: its right answer, and the answer to another that is wrong here.

    Questions to which no drawn answer is wrong have only the first.
    """
    rng = random.Random(derive_seed(seed, "wrong answers"))
    claims = []
    for number, question in enumerate(task.questions):
        others = [one.answer for one in rng.sample(task.questions, min(TRIED_ANSWERS, len(task.questions)))]
        wrong = islice((other for other in others if task.score(number, other) < RIGHT), 1)
        for y, answer in [(1, question.answer), *[(0, other) for other in wrong]]:
            claims.append(Claim(question.text, f"The answer is: {answer}", y, f"question {number}, {y}"))
    return claims


def code_claims() -> list[Claim]:
    """Return the bundled claims on 72 small Python functions (``benchmarks/make_code_claims.py``), half of
    them mutants that fail a test."""
    data = files("sparring.programs.proofs").joinpath("code_claims.jsonl").read_text(encoding="utf-8")
    return [Claim(**json.loads(line)) for line in data.splitlines()]


def claims_of_rows(rows: Iterable[tuple[str, Any]], columns: ColumnSettings, source: str) -> list[Claim]:
    """Return the claims of rows, each given with its place in the source, which is also the claim's id."""
    claims: list[Claim] = []
    for claim_id, row in rows:
        place = f"{claim_id} of {source}"
        if not isinstance(row, dict):
            raise InputError("claims", f"{place} is not an object", 'Write {"question": ..., ...}')
        if all(_value(row, column, place) == value for column, value in columns.where.items()):
            claims += _claims_of_row(row, columns, claim_id, place)
    if not claims:
        raise InputError("claims", f"{source} has no claim", "Give rows of question, claim and y")
    return claims


def _claims_of_row(row: dict[str, Any], columns: ColumnSettings, claim_id: str, place: str) -> list[Claim]:
    question = _text(_value(row, columns.question, place), columns.question, place)
    if columns.right is None or columns.wrong is None:
        claim = _text(_value(row, columns.claim, place), columns.claim, place)
        return [Claim(question, claim, _truth(_value(row, columns.y, place), columns.y, place), claim_id)]
    found = []
    for y, column in ((1, columns.right), (0, columns.wrong)):
        entries = _value(row, column, place)
        if not isinstance(entries, list):
            raise InputError("claims", f"{column} in {place} is not a list", "Give a list of claims")
        for number, entry in enumerate(entries):
            text = entry.get(columns.entry) if isinstance(entry, dict) else entry
            found.append(Claim(question, _text(text, column, place), y, f"{claim_id}, {column} {number}"))
    return found


def _value(row: dict[str, Any], column: str, place: str) -> Any:
    if column not in row:
        raise InputError("claims", f"{place} has no column {column}", f"It has: {', '.join(map(str, row))}")
    return row[column]


def _text(value: Any, column: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError("claims", f"{column} in {place} is not text", "Give a text that is not empty")
    return value


def _truth(value: Any, column: str, place: str) -> int:
    if isinstance(value, bool | int) and value in (0, 1):
        return int(value)
    raise InputError("claims", f"{column} in {place} is neither 1 nor 0", "Give 1 for a right claim, else 0")
