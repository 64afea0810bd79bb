"""Questions whose answers are programs, which tests check in the sandbox."""

import ast
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparring.config.questions import TESTS
from sparring.core import InputError
from sparring.programs.code.component import check_sandbox
from sparring.programs.code.sandbox import Sandbox, shared_sandbox
from sparring.programs.tasks import Task, TaskQuestion

FUNCTION = "function"
"""The field of a row with the name of the function that its inputs are for."""
LONGEST_TEST = 10_000
_FORM = 'Write "tests": ["assert f(2) == 4"], or "function": "f", "tests": [{"input": [2], "output": 4}]'
_REQUEST = "Write it in Python, as one block:\n```python\n...\n```"
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ProgramTest:
    """An expression in the names of a program, and the literal that its value must equal."""

    call: str
    value: str


class ProgramTask(Task):
    """Questions whose answers are programs. An answer is right if all tests of its question's row pass.

    A program never sees the value that a test expects: the expression is evaluated beside the program, and
    its value, which must be a plain one, is compared elsewhere. So no equality, no output and no change of
    Python by the program makes a wrong value right. Each test runs the program anew.

    Raises:
        InputError: the extra ``code`` is not installed, or a row has no such tests.
    """

    def __init__(self, questions: Sequence[TaskQuestion], field: str, sandbox: Sandbox | None = None) -> None:
        check_sandbox(field)
        self.questions = questions
        self.tests = [
            tests_of(one.row, f"question {number + 1}", field) for number, one in enumerate(questions)
        ]
        self._sandbox = sandbox

    def prompt(self, number: int) -> str:
        """Return the question and the form of the answer."""
        return f"{self.questions[number].text}\n\n{_REQUEST}"

    def read(self, number: int, said: str) -> str | None:
        """Return the last block of code; ``None`` without one."""
        return program_in(said)

    def score(self, number: int, answer: str) -> float:
        """Return 1 if the program passes all tests, else 0; not for use within an event loop."""
        return asyncio.run(self.grade(number, answer))

    async def grade(self, number: int, answer: str) -> float:
        """Return 1 if the program passes all tests, else 0."""
        sandbox = self._sandbox or shared_sandbox()
        for test in self.tests[number]:
            ending = await sandbox.run(answer, test.call)
            if ending.kind != "value" or not await sandbox.same(ending.text, test.value):
                return 0.0
        return 1.0


def program_in(said: str) -> str | None:
    """Return the last block of code in a text; ``None`` without one."""
    blocks = _BLOCK.findall(said)
    return blocks[-1].strip() or None if blocks else None


def tests_of(row: dict[str, Any], place: str, field: str) -> list[ProgramTest]:
    """Return the tests of a row: asserts, or inputs and outputs of a function.

    Raises:
        InputError: there is none, or one is neither.
    """
    given = row.get(TESTS)
    if not isinstance(given, list) or not given:
        raise InputError(field, f"{place} has no {TESTS}", _FORM)
    found = [_assert(one) if isinstance(one, str) else _case(one, row.get(FUNCTION)) for one in given]
    for number, one in enumerate(found):
        if one is None:
            raise InputError(field, f"test {number + 1} of {place} cannot be used", _FORM)
    return [one for one in found if one is not None]


def _assert(text: str) -> ProgramTest | None:
    """Return the test that ``assert EXPRESSION == LITERAL`` is; other asserts could be cheated."""
    try:
        statements = ast.parse(text.strip()).body if len(text) <= LONGEST_TEST else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match statements:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            return ProgramTest(ast.unparse(left), ast.unparse(right)) if _is_literal(right) else None
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _case(one: object, function: object) -> ProgramTest | None:
    """Return the test of a function with a list of arguments; values of JSON are values of Python."""
    match one:
        case {"input": list(arguments), "output": output} if (
            isinstance(function, str) and function.isidentifier()
        ):
            return ProgramTest(f"{function}({', '.join(map(repr, arguments))})", repr(output))
    return None
