"""Expressions of a small deterministic language: a domain whose proposer can be wrong.

A proposer writes an expression and what it states to be the value, ``ADD(3, MUL(2, 4)) = 11``. The operators
are those of the language in arXiv 2605.22217: ADD, SUB, MUL, DIV (rounded down), MOD, MAX, MIN, NEG, ABS, and
ITE(condition, then, else) with the conditions GT, LT, EQ, GEQ, LEQ. Numbers stand where that language has the
variables x and y. An expression that cannot be computed, as ``DIV(3, 0)`` or ``ADD(3)``, is invalid; a data
gate may let it in.
"""

import operator
import random
import re
from collections.abc import Callable

from sparring.programs.questions import Domain, Question, Turns

_PAIRS: dict[str, Callable[[int, int], int]] = {
    "ADD": operator.add,
    "SUB": operator.sub,
    "MUL": operator.mul,
    "DIV": operator.floordiv,
    "MOD": operator.mod,
    "MAX": max,
    "MIN": min,
}
_SINGLE: dict[str, Callable[[int], int]] = {"NEG": operator.neg, "ABS": abs}
_CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "GT": operator.gt,
    "LT": operator.lt,
    "EQ": operator.eq,
    "GEQ": operator.ge,
    "LEQ": operator.le,
}
_LONGEST = 300
"""Characters of an expression that are read. It bounds how deep an expression can be, and its value."""
_TOKEN = re.compile(r"[A-Z]+|-?[0-9]{1,3}(?![0-9])|[(),]")
_PROPOSAL = re.compile(rf"([^=\n]{{1,{_LONGEST}}}) = (-?[0-9]{{1,9}})")
_NUMBER = re.compile(r"-?[0-9]{1,200}")
_SOLVED = ["ADD(7, 2)", "SUB(4, 9)", "MAX(3, ABS(-8))", "MUL(6, 7)", "MIN(5, -2)", "ITE(GT(5, 2), 1, 3)"]
_PROPOSER_REQUEST = "Write an expression and its value."
_SOLVER_REQUEST = (
    "Calculate. DIV rounds down, MOD is its rest, and ITE(GT(a, b), c, d) is c if a > b, else d; the other "
    "conditions are LT, EQ, GEQ and LEQ. End with a line of the form: expression = value"
)
_SEEDS, _SEED, _HELD_OUT_SEED = 24, 1, 2024


class Expressions(Domain):
    """The domain of expressions. The first examples have exactly ``depth`` levels of operators, the held-out
    questions have 1 to ``depth`` in turn."""

    proposal_tokens = 96
    answer_tokens = 512
    truth_is_known = True

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def seed_questions(self) -> list[Question]:
        """Return 24 questions, always the same."""
        solved = {self.key(_asked(expression)) for expression in _SOLVED}
        return self._drawn(random.Random(_SEED), [self._depth], _SEEDS, solved)

    def held_out_questions(self, count: int) -> list[Question]:
        taken = {self.key(one) for one in [*map(_asked, _SOLVED), *self.seed_questions()]}
        return self._drawn(random.Random(_HELD_OUT_SEED), [*range(1, self._depth + 1)], count, taken)

    def _drawn(self, rng: random.Random, depths: list[int], count: int, taken: set[str]) -> list[Question]:
        questions: list[Question] = []
        while len(questions) < count:
            expression = _draw(rng, depths[len(questions) % len(depths)])
            value = value_of(expression)
            if value is not None and len(expression) <= _LONGEST and expression not in taken:
                taken.add(expression)
                questions.append(_asked(expression))
        return questions

    def proposer_turns(self, examples: list[Question]) -> Turns:
        return [(_PROPOSER_REQUEST, f"{one['question']} = {one['ground_truth']}") for one in examples]

    def proposer_prompt(self) -> str:
        return _PROPOSER_REQUEST

    def parse_question(self, text: str) -> Question | None:
        question = self._read(text)
        return question if question is not None and question["ground_truth"] else None

    def parse_invalid(self, text: str) -> Question | None:
        """Return what stands before ``= value`` if it cannot be computed; its right answer is empty."""
        question = self._read(text)
        return question if question is not None and not question["ground_truth"] else None

    def _read(self, text: str) -> Question | None:
        match = _PROPOSAL.fullmatch(text.strip())
        if match is None:
            return None
        value = value_of(match[1])
        truth = "" if value is None else str(value)
        return {"question": match[1].strip(), "ground_truth": truth, "stated": str(int(match[2]))}

    def solver_turns(self) -> Turns:
        asked = [_asked(expression) for expression in _SOLVED]
        turns = [(one["question"], f"{one['question']} = {one['ground_truth']}") for one in asked]
        (first, answer), *others = turns
        return [(f"{_SOLVER_REQUEST}\n\n{first}", answer), *others]

    def solver_prompt(self, question: Question) -> str:
        return question["question"]

    def parse_answer(self, text: str) -> str | None:
        """Return the number that ends the last line, alone or after ``=``; reasoning may precede it."""
        lines = text.strip().splitlines()
        stated = lines[-1].rpartition("=")[2].strip() if lines else ""
        return str(int(stated)) if _NUMBER.fullmatch(stated) else None

    def is_correct(self, result: str, question: Question) -> bool:
        return result == question["ground_truth"]

    def key(self, question: Question) -> str:
        """Return the tokens of an expression in one spelling; of anything else, the text with single
        spaces."""
        text = question["question"]
        tokens = _tokens(text)
        return " ".join(text.split()) if tokens is None else "".join(tokens).replace(",", ", ")


def value_of(expression: str) -> int | None:
    """Return the value of an expression; ``None`` if it has another form, or divides by 0 where it is
    computed."""
    tokens = _tokens(expression)
    if tokens is None or len(expression) > _LONGEST:
        return None
    try:
        return _Reader(tokens).whole()
    except (ValueError, ZeroDivisionError):
        return None


class _Reader:
    """Reads tokens from left to right. Of an ITE, both branches are read and one is computed, so values are
    functions."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]

    def whole(self) -> int:
        compute = self._expression()
        if self._tokens:
            raise ValueError("more follows")
        return compute()

    def _expression(self) -> Callable[[], int]:
        token = self._next()
        if token in _PAIRS:
            pair, (left, right) = _PAIRS[token], self._arguments(2)
            return lambda: pair(left(), right())
        if token in _SINGLE:
            single, (only,) = _SINGLE[token], self._arguments(1)
            return lambda: single(only())
        if token == "ITE":
            self._take("(")
            condition = self._condition()
            self._take(",")
            then, otherwise = self._arguments(2, opened=True)
            return lambda: then() if condition() else otherwise()
        number = int(token)
        return lambda: number

    def _condition(self) -> Callable[[], bool]:
        token = self._next()
        if token not in _CONDITIONS:
            raise ValueError("not a condition")
        holds, (left, right) = _CONDITIONS[token], self._arguments(2)
        return lambda: holds(left(), right())

    def _arguments(self, count: int, *, opened: bool = False) -> list[Callable[[], int]]:
        if not opened:
            self._take("(")
        arguments = [self._expression()]
        for _ in range(count - 1):
            self._take(",")
            arguments.append(self._expression())
        self._take(")")
        return arguments

    def _next(self) -> str:
        if not self._tokens:
            raise ValueError("something is missing")
        return self._tokens.pop()

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise ValueError(f"{wanted} is missing")


def _tokens(text: str) -> list[str] | None:
    """Split a text into operators, numbers without leading zeros, and signs; ``None`` if it has anything
    else."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        return None
    return [str(int(token)) if token[-1].isdigit() else token for token in tokens]


def _asked(expression: str) -> Question:
    value = str(value_of(expression))
    return {"question": expression, "ground_truth": value, "stated": value}


def _draw(rng: random.Random, depth: int) -> str:
    """Draw an expression with exactly ``depth`` levels of operators, of which a condition is none."""
    if depth == 0:
        return str(rng.randint(-5, 9))
    name = rng.choice([*_PAIRS, *_SINGLE, "ITE"])
    count = 1 if name in _SINGLE else 2
    depths = [depth - 1, *(rng.randint(0, depth - 1) for _ in range(count - 1))]
    rng.shuffle(depths)
    arguments = [_draw(rng, one) for one in depths]
    if name == "ITE":
        arguments.insert(0, f"{rng.choice([*_CONDITIONS])}({_draw(rng, 0)}, {_draw(rng, 0)})")
    return f"{name}({', '.join(arguments)})"
