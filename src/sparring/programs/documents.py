"""Documents: what a corpus consists of, from a file or from this package."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from sparring.config.adversarial_programs import BUNDLED_CORPUS
from sparring.config.questions import FILE_END
from sparring.core import InputError
from sparring.core.errors import shown
from sparring.core.rows import rows_of_file, text_of_file, words_of
from sparring.programs.questions import Question

_FORM = 'Write {"text": "A week has 7 days.", "question": "How many days has a week?", "answer": "7"}'


@dataclass(frozen=True)
class Document:
    """A text, and the questions on it whose answers are known."""

    text: str
    questions: tuple[Question, ...] = ()


def load_documents(path: str, field: str) -> list[Document]:
    """Return the documents of the package, a JSON Lines file, or a text file, each text once, with all
    questions on it.

    In a text file, empty lines stand between documents. Raises an InputError for ``field`` if the file cannot
    be read, or has fewer than two documents.
    """
    if path == BUNDLED_CORPUS:
        path = str(files("sparring.programs").joinpath("everyday.jsonl"))
    found = _of_rows(path, field) if path.endswith(FILE_END) else _of_text(path, field)
    questions: dict[str, tuple[Question, ...]] = {}
    for one in found:
        questions[one.text] = (*questions.get(one.text, ()), *one.questions)
    distinct = [Document(*one) for one in questions.items()]
    if len(distinct) < 2:
        raise InputError(field, f"{path} has no two documents, so none can be held out", "Give more")
    return distinct


def _of_rows(path: str, field: str) -> list[Document]:
    documents = []
    for place, row in rows_of_file(path, field):
        where = f"{place} of {path}"
        if not isinstance(row, dict):
            raise InputError(field, f"{where} is not an object", _FORM)
        text = _text(row, "text", where, field)
        if row.get("question") is None and row.get("answer") is None:
            documents.append(Document(text))
            continue
        asked, answer = (_text(row, name, where, field) for name in ("question", "answer"))
        documents.append(Document(text, ({"question": asked, "ground_truth": answer},)))
    return documents


def _text(row: dict[str, Any], name: str, where: str, field: str) -> str:
    text = words_of(row.get(name), or_number=name == "answer")
    if not text:
        raise InputError(field, f"{name} of {where} is {shown(row.get(name))}, not words", _FORM)
    return text


def _of_text(path: str, field: str) -> list[Document]:
    paragraphs: list[list[str]] = [[]]
    for line in text_of_file(path, field, "Give plain text").splitlines():
        if line.strip():
            paragraphs[-1].append(line.rstrip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return [Document("\n".join(lines).strip()) for lines in paragraphs if lines]
