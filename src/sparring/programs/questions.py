"""Questions: the prompts of proposers and solvers, and the parsing and checking of their answers; in words,
or arithmetic.

The grammar of arithmetic is ``a + b``, ``a - b`` or ``a * b`` with one space on each side of the sign;
differences are not negative. A solver answers ``23 + 48 = 71``: SmolLM2-135M gets the sum of two two-digit
numbers right in 1% of its bare answers and in 18% of the answers that repeat the question.
"""

import operator
import random
import re
from abc import ABC, abstractmethod
from typing import NotRequired, TypedDict

from sparring.core import InputError
from sparring.core.answers import same_answer
from sparring.programs.tasks import question_key

Turns = list[tuple[str, str]]
"""Example turns of a chat: pairs of a request and its desired answer."""


class Question(TypedDict):
    """A question and its right answer; what its proposer ``stated`` to be right, if that may differ; and its
    ``kind``, if a program has several."""

    question: str
    ground_truth: str
    stated: NotRequired[str]
    kind: NotRequired[str]


class Domain(ABC):
    """A kind of question. Domains hold no state of a run.

    ``proposal_tokens`` and ``answer_tokens`` are enough for a well-formed proposal or answer. If
    ``truth_is_known``, the right answer to a proposed question is computed, and not what its proposer wrote.
    """

    proposal_tokens: int
    answer_tokens: int
    truth_is_known: bool = False

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

    def parse_invalid(self, text: str) -> Question | None:
        """Return the question in a proposer's answer that has no right answer but can be asked, which a data
        gate may let in; ``None`` by default, and for what :meth:`parse_question` takes."""
        return None

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

    def same(self, one: str, other: str) -> bool:
        """Return whether two stated results are the same answer, whatever the question: votes count these."""
        return same_answer(one, other)

    async def checked(self, question: Question) -> Question | None:
        """Return a question with what only a check can tell of it; ``None`` if it cannot be asked."""
        return question

    async def judge(self, result: str, question: Question) -> bool:
        """Return whether a stated result is right, which may take a while."""
        return self.is_correct(result, question)

    def key(self, question: Question) -> str:
        """Return a key that is the same for different spellings of one question: by default it in lower case
        with single spaces."""
        return question_key(question["question"])


class OpenQuestions(Domain):
    """Questions in words with short answers, which the proposer writes as well.

    An answer is right if it is the same text, ignoring case, spaces and a final full stop, or the same
    number: 0.5, 1/2 and 50%; 1000 and 1,000. For symbolic equality, override :meth:`same`.
    """

    proposal_tokens = 128
    answer_tokens = 256

    def __init__(self, questions: list[Question]) -> None:
        self._questions = check_questions(questions)

    def seed_questions(self) -> list[Question]:
        return list(self._questions)

    def proposer_turns(self, examples: list[Question]) -> Turns:
        parts = [[" ".join(one[part].split()) for part in ("question", "ground_truth")] for one in examples]
        written = [f"Question: {question}\nAnswer: {answer}" for question, answer in parts]
        return [(_PROPOSER_REQUEST, text) for text in written]

    def proposer_prompt(self) -> str:
        return _PROPOSER_REQUEST

    def parse_question(self, text: str) -> Question | None:
        match = _PROPOSAL.search(text.strip())
        question, answer = (part.strip() for part in match.groups()) if match is not None else ("", "")
        return {"question": question, "ground_truth": answer} if question and answer else None

    def solver_turns(self) -> Turns:
        return [(f"How many legs has a spider?\n\n{_SOLVER_REQUEST}", "The answer is: 8")]

    def solver_prompt(self, question: Question) -> str:
        return f"{question['question']}\n\n{_SOLVER_REQUEST}"

    def parse_answer(self, text: str) -> str | None:
        """Return the text after ``The answer is:`` in the last line; reasoning may precede that line."""
        lines = text.strip().splitlines()
        match = _STATED.fullmatch(lines[-1].strip()) if lines else None
        return match[1].strip() if match is not None else None

    def is_correct(self, result: str, question: Question) -> bool:
        return self.same(result, question["ground_truth"])


def check_questions(given: object) -> list[Question]:
    """Return ``given``; raise an InputError unless it is a list of at least one question."""
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
_PROPOSAL = re.compile(r"^Question:([^\n]*)\nAnswer:([^\n]*)\Z", re.MULTILINE)
_STATED = re.compile(r"the answer is:? *(.*\S)", re.IGNORECASE)

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_QUESTION = re.compile(r"(0|[1-9][0-9]?) ([+*-]) (0|[1-9][0-9]?)")
_ANSWER = re.compile(r"(?:([0-9]{1,2} [+*-] [0-9]{1,2}) = )?(0|[1-9][0-9]{0,3})")
_CALCULATION_REQUEST = "Write an arithmetic question."
_RESULT_REQUEST = "Calculate. Write the question and its result."
_SOLVED = ["12 + 7", "45 - 23", "6 * 7", "38 + 25", "90 - 8", "5 + 4"]
_SEEDS = [
    *("46 + 27", "58 + 64", "39 + 85", "15 + 62", "71 + 48", "24 + 38"),
    *("48 - 16", "60 - 31", "82 - 47", "95 - 58", "73 - 29"),
    *("12 * 4", "23 * 6", "35 * 7", "14 * 9", "41 * 3"),
]
_HELD_OUT_SEED = 2024
_HELD_OUT_SIGNS = "+++-*"


class Arithmetic(Domain):
    """The domain of arithmetic questions."""

    proposal_tokens = 10
    answer_tokens = 16
    truth_is_known = True

    def seed_questions(self) -> list[Question]:
        """Return sixteen questions of all kinds, most of them too hard for SmolLM2-135M."""
        return [_question(text) for text in _SEEDS]

    def held_out_questions(self, count: int) -> list[Question]:
        """Return questions not in this file: three fifths sums, one fifth differences, one fifth products."""
        rng = random.Random(_HELD_OUT_SEED)
        taken = {self.key(_question(text)) for text in [*_SOLVED, *_SEEDS]}
        questions: list[Question] = []
        while len(questions) < count:
            question = _question(_draw(rng, _HELD_OUT_SIGNS[len(questions) % len(_HELD_OUT_SIGNS)]))
            if self.key(question) not in taken:
                taken.add(self.key(question))
                questions.append(question)
        return questions

    def proposer_turns(self, examples: list[Question]) -> Turns:
        return [(_CALCULATION_REQUEST, example["question"]) for example in examples]

    def proposer_prompt(self) -> str:
        return _CALCULATION_REQUEST

    def parse_question(self, text: str) -> Question | None:
        match = _QUESTION.fullmatch(text.strip())
        if match is None:
            return None
        result = _OPERATIONS[match[2]](int(match[1]), int(match[3]))
        return {"question": match[0], "ground_truth": str(result)} if result >= 0 else None

    def solver_turns(self) -> Turns:
        solved = map(_question, _SOLVED)
        turns = [(one["question"], f"{one['question']} = {one['ground_truth']}") for one in solved]
        (first, answer), *others = turns
        return [(f"{_RESULT_REQUEST}\n\n{first}", answer), *others]

    def solver_prompt(self, question: Question) -> str:
        return question["question"]

    def parse_answer(self, text: str) -> str | None:
        """Return the result from ``71`` or ``23 + 48 = 71``, if the answer contains nothing else."""
        match = _ANSWER.fullmatch(text.strip())
        return match[2] if match is not None else None

    def is_correct(self, result: str, question: Question) -> bool:
        return result == question["ground_truth"]

    def key(self, question: Question) -> str:
        """Return the question, with the smaller operand first where the order does not matter."""
        left, sign, right = question["question"].split(" ")
        if sign != "-" and int(left) > int(right):
            left, right = right, left
        return f"{left} {sign} {right}"


def _question(text: str) -> Question:
    question = Arithmetic().parse_question(text)
    assert question is not None
    return question


def _draw(rng: random.Random, sign: str) -> str:
    if sign == "*":
        return f"{rng.randint(2, 12)} * {rng.randint(2, 20)}"
    left, right = rng.randint(1, 40), rng.randint(1, 40)
    return f"{max(left, right)} - {min(left, right)}" if sign == "-" else f"{left} + {right}"
