"""Arithmetic: sums, differences and products of two numbers below 100, with an exact checker.

The grammar is ``a + b``, ``a - b`` or ``a * b`` with one space on each side of the sign; differences are not
negative. Evaluation of a parsed question is therefore a single operation on two integers.

A solver answers ``23 + 48 = 71``. Small models need to repeat the question: SmolLM2-135M gets the sum of two
two-digit numbers right in 1% of its bare answers and in 18% of the answers that repeat the question.
"""

import operator
import random
import re

from sparring.programs.questions import Domain, Question, Turns

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_QUESTION = re.compile(r"(0|[1-9][0-9]?) ([+*-]) (0|[1-9][0-9]?)")
_ANSWER = re.compile(r"(?:([0-9]{1,2} [+*-] [0-9]{1,2}) = )?(0|[1-9][0-9]{0,3})")
_PROPOSER_REQUEST = "Write an arithmetic question."
_SOLVER_REQUEST = "Calculate. Write the question and its result."
_SOLVED = ["12 + 7", "45 - 23", "6 * 7", "38 + 25", "90 - 8", "5 + 4"]
_SEEDS = [
    *("46 + 27", "58 + 64", "39 + 85", "15 + 62", "71 + 48", "24 + 38"),
    *("48 - 16", "60 - 31", "82 - 47", "95 - 58", "73 - 29"),
    *("12 * 4", "23 * 6", "35 * 7", "14 * 9", "41 * 3"),
]
_HELD_OUT_SEED = 2024
_HELD_OUT_SIGNS = "+++-*"


class Arithmetic(Domain):
    """The domain of arithmetic questions; see the module."""

    proposal_tokens = 10
    answer_tokens = 16

    def seed_questions(self) -> list[Question]:
        """Return sixteen questions of all kinds, most of them too hard for SmolLM2-135M."""
        return [_question(text) for text in _SEEDS]

    def held_out_questions(self, count: int) -> list[Question]:
        """Return questions not in this file: three fifths sums, one fifth differences, one fifth products.

        Operands are 1 to 40; those of products are 2 to 12 and 2 to 20.
        """
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
        """See Domain."""
        return [(_PROPOSER_REQUEST, example["question"]) for example in examples]

    def proposer_prompt(self) -> str:
        """See Domain."""
        return _PROPOSER_REQUEST

    def parse_question(self, text: str) -> Question | None:
        """See Domain. White space around the question is allowed."""
        match = _QUESTION.fullmatch(text.strip())
        if match is None:
            return None
        result = _OPERATIONS[match[2]](int(match[1]), int(match[3]))
        return {"question": match[0], "ground_truth": str(result)} if result >= 0 else None

    def solver_turns(self) -> Turns:
        """Return six solved examples."""
        solved = map(_question, _SOLVED)
        turns = [(one["question"], f"{one['question']} = {one['ground_truth']}") for one in solved]
        (first, answer), *others = turns
        return [(f"{_SOLVER_REQUEST}\n\n{first}", answer), *others]

    def solver_prompt(self, question: Question) -> str:
        """Return the bare question."""
        return question["question"]

    def parse_answer(self, text: str) -> str | None:
        """Return the result from ``71`` or ``23 + 48 = 71``, if the answer contains nothing else."""
        match = _ANSWER.fullmatch(text.strip())
        return match[2] if match is not None else None

    def is_correct(self, result: str, question: Question) -> bool:
        """Return whether ``result`` is exact."""
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
