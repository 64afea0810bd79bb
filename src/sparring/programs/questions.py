"""Questions: the prompts of proposers and solvers, and the parsing and checking of their answers."""

import re
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TypedDict

from sparring.core import InputError

Turns = list[tuple[str, str]]
"""Example turns of a chat: pairs of a request and its desired answer."""


class Question(TypedDict):
    """A question and its right answer; JSON-able, so that stores and logs can hold it."""

    question: str
    ground_truth: str


class Domain(ABC):
    """A kind of question. Domains hold no state of a run.

    ``proposal_tokens`` and ``answer_tokens`` are enough for a well-formed proposal or answer.
    """

    proposal_tokens: int
    answer_tokens: int

    @abstractmethod
    def seed_questions(self) -> list[Question]:
        """Return the first examples that a proposer sees."""

    def held_out_questions(self, count: int) -> list[Question]:
        """Return up to ``count`` different questions for evaluation, always the same; none by default."""
        return []

    @abstractmethod
    def proposer_turns(self, examples: list[Question]) -> Turns:
        """Return example turns, as if the proposer had written ``examples``."""

    @abstractmethod
    def proposer_prompt(self) -> str:
        """Return the request for one more question."""

    @abstractmethod
    def parse_question(self, text: str) -> Question | None:
        """Return the question in a proposer's answer, or ``None`` if it lacks the exact requested form."""

    @abstractmethod
    def solver_turns(self) -> Turns:
        """Return solved examples, the same for every question, so that prompts share them."""

    @abstractmethod
    def solver_prompt(self, question: Question) -> str:
        """Return the prompt that asks a solver the question."""

    @abstractmethod
    def parse_answer(self, text: str) -> str | None:
        """Return the result that a solver's answer states; ``None`` if it states none."""

    @abstractmethod
    def is_correct(self, result: str, question: Question) -> bool:
        """Return whether a stated result is right."""

    @abstractmethod
    def key(self, question: Question) -> str:
        """Return a key that is the same for different spellings of one question."""


class OpenQuestions(Domain):
    """Questions in words with short answers, which the proposer writes as well.

    An answer is right if it is the same text, ignoring case, spaces and a final full stop, or the same
    number: 0.5, 1/2 and 50%; 1000 and 1,000. Any other answer is wrong; for symbolic equality, override
    :meth:`is_correct`.

    Args:
        questions: the first examples; at least one.

    Raises:
        InputError: there is no question, or one lacks the texts ``question`` and ``ground_truth``.
    """

    proposal_tokens = 128
    answer_tokens = 256

    def __init__(self, questions: list[Question]) -> None:
        self._questions = check_questions(questions)

    def seed_questions(self) -> list[Question]:
        """Return the questions that the constructor was given."""
        return list(self._questions)

    def proposer_turns(self, examples: list[Question]) -> Turns:
        """See Domain."""
        written = [f"Question: {one['question']}\nAnswer: {one['ground_truth']}" for one in examples]
        return [(_PROPOSER_REQUEST, text) for text in written]

    def proposer_prompt(self) -> str:
        """See Domain."""
        return _PROPOSER_REQUEST

    def parse_question(self, text: str) -> Question | None:
        """See Domain. The form is two lines, ``Question: ...`` and ``Answer: ...``, and nothing else."""
        match = _PROPOSAL.fullmatch(text.strip())
        question, answer = (part.strip() for part in match.groups()) if match is not None else ("", "")
        return {"question": question, "ground_truth": answer} if question and answer else None

    def solver_turns(self) -> Turns:
        """Return one example, which shows the form."""
        return [(f"How many legs has a spider?\n\n{_SOLVER_REQUEST}", "The answer is: 8")]

    def solver_prompt(self, question: Question) -> str:
        """Return the question, followed by the form of the answer."""
        return f"{question['question']}\n\n{_SOLVER_REQUEST}"

    def parse_answer(self, text: str) -> str | None:
        """Return the text after ``The answer is:`` in the last line; reasoning may precede that line."""
        lines = text.strip().splitlines()
        match = _STATED.fullmatch(lines[-1].strip()) if lines else None
        return match[1].strip() if match is not None else None

    def is_correct(self, result: str, question: Question) -> bool:
        """See the class."""
        truth = question["ground_truth"]
        if _plain(result) == _plain(truth):
            return True
        number = _number(truth)
        return number is not None and number == _number(result)

    def key(self, question: Question) -> str:
        """Return the question's text in lower case with single spaces."""
        return " ".join(question["question"].lower().split())


def check_questions(given: object) -> list[Question]:
    """Return ``given`` if it is a list of at least one question.

    Raises:
        InputError: ``given`` is not such a list.
    """
    if not isinstance(given, list) or not given:
        raise InputError("questions", f"{given!r} is not a list of questions", _FORM)
    for one in given:
        fields = one if isinstance(one, dict) else {}
        texts = [fields.get("question"), fields.get("ground_truth")]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError("questions", f"{one!r} is not a question", _FORM)
    return given


_FORM = 'Give a list like [{"question": "What is 2+2?", "ground_truth": "4"}]'
_PROPOSER_REQUEST = (
    "Write a new question that has one short, certain answer, and the answer. Use this form:\n"
    "Question: ...\nAnswer: ..."
)
_SOLVER_REQUEST = "End with one line of this form:\nThe answer is: ..."
_PROPOSAL = re.compile(r"Question:([^\n]*)\nAnswer:([^\n]*)")
_STATED = re.compile(r"the answer is:? *(.*\S)", re.IGNORECASE)
_NUMBER = re.compile(
    r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,30})(?:\.[0-9]{1,30})?(?:/[0-9]{1,30})?)(%?)"
)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).removesuffix(".")


def _number(text: str) -> Fraction | None:
    """Return the number that a text spells; ``None`` if it is not a number or a single fraction."""
    match = _NUMBER.fullmatch(_plain(text))
    if match is None:
        return None
    numerator, _, denominator = match[1].replace(",", "").partition("/")
    if denominator and int(denominator) == 0:
        return None
    number = Fraction(numerator) / Fraction(denominator or "1")
    return number / 100 if match[2] else number
