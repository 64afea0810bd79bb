"""Arithmetic: sums, differences and products of two numbers below 100, with an exact checker.

The grammar is ``a + b``, ``a - b`` or ``a * b``, one space on each side of the sign; differences are not
negative. After the grammar nothing is left to evaluate but one operation on two integers.

A solver answers ``23 + 48 = 71``. Small models need to write the question again: SmolLM2-135M gives the right
sum of two two-digit numbers in 1% of its bare answers and in 18% of these.
"""

import operator
import random
import re

from selfplay.core import Messages
from selfplay.programs.questions import Domain, Question

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_QUESTION = re.compile(r"(0|[1-9][0-9]?) ([+*-]) (0|[1-9][0-9]?)")
_ANSWER = re.compile(r"(?:[0-9]{1,2} [+*-] [0-9]{1,2} = )?(0|[1-9][0-9]{0,3})")
_PROPOSER_REQUEST = "Write an arithmetic question."
_SOLVER_REQUEST = "Calculate. Write the question and its result."
_SOLVED = ["12 + 7", "45 - 23", "6 * 7", "38 + 25", "90 - 8", "5 + 4"]
_SEEDS = [
    *("7 + 5", "31 + 6", "24 + 13", "46 + 27", "9 + 18", "15 + 62"),
    *("9 - 4", "27 - 5", "48 - 16", "60 - 31"),
    *("3 * 8", "7 * 9", "12 * 4", "5 * 5"),
]
_HELD_OUT_SEED = 20_240_229


class Arithmetic(Domain):
    """See the module."""

    proposal_tokens = 10
    answer_tokens = 16

    def proposer_messages(self, examples: list[Question]) -> Messages:
        """One chat turn for each example, then the request once more."""
        messages: Messages = []
        for example in examples:
            messages.append({"role": "user", "content": _PROPOSER_REQUEST})
            messages.append({"role": "assistant", "content": example["question"]})
        return [*messages, {"role": "user", "content": _PROPOSER_REQUEST}]

    def parse_question(self, text: str) -> Question | None:
        """See Domain. White space around the question is allowed, anything else is not."""
        match = _QUESTION.fullmatch(text.strip())
        if match is None:
            return None
        result = _OPERATIONS[match[2]](int(match[1]), int(match[3]))
        return {"question": match[0], "ground_truth": str(result)} if result >= 0 else None

    def solver_messages(self, question: Question) -> Messages:
        """Six solved examples as chat turns, the same for every question, then the question."""
        messages: Messages = []
        before = f"{_SOLVER_REQUEST}\n\n"
        for example in map(_question, _SOLVED):
            messages.append({"role": "user", "content": before + example["question"]})
            answer = f"{example['question']} = {example['ground_truth']}"
            messages.append({"role": "assistant", "content": answer})
            before = ""
        return [*messages, {"role": "user", "content": question["question"]}]

    def parse_answer(self, text: str) -> str | None:
        """The number in ``71`` or ``23 + 48 = 71``, with nothing else beside it."""
        match = _ANSWER.fullmatch(text.strip())
        return match[1] if match is not None else None

    def is_correct(self, result: str, question: Question) -> bool:
        """Whether the numbers are equal."""
        return result == question["ground_truth"]

    def key(self, question: Question) -> str:
        """The question with its operands in order of size where their order does not matter."""
        left, sign, right = question["question"].split(" ")
        if sign != "-" and int(left) > int(right):
            left, right = right, left
        return f"{left} {sign} {right}"

    def seed_questions(self) -> list[Question]:
        """Fourteen questions of all kinds."""
        return [_question(text) for text in _SEEDS]

    def held_out_questions(self, count: int) -> list[Question]:
        """A half sums, a quarter differences, a quarter products; none among the examples above."""
        rng = random.Random(_HELD_OUT_SEED)
        taken = {self.key(_question(text)) for text in [*_SOLVED, *_SEEDS]}
        questions: list[Question] = []
        while len(questions) < count:
            question = _question(_draw(rng, "++-*"[len(questions) % 4]))
            if self.key(question) not in taken:
                taken.add(self.key(question))
                questions.append(question)
        return questions


def _question(text: str) -> Question:
    question = Arithmetic().parse_question(text)
    assert question is not None
    return question


def _draw(rng: random.Random, sign: str) -> str:
    if sign == "*":
        return f"{rng.randint(2, 12)} * {rng.randint(2, 30)}"
    low, high = sorted(rng.randint(1, 50) for _ in range(2))
    return f"{high} - {low}" if sign == "-" else f"{low} + {high}"
