"""Questions whose answers are programs, which tests check in the sandbox."""

import ast
import asyncio
import builtins
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from textwrap import dedent
from typing import Any

from sparring.config.questions import TESTS
from sparring.core import InputError
from sparring.core.errors import shown
from sparring.programs.code.component import check_sandbox
from sparring.programs.code.sandbox import ROOM, Sandbox, shared_sandbox
from sparring.programs.tasks import Task, TaskQuestion

FUNCTION = "function"
"""The field of a row with the name of the function that its inputs are for."""
LONGEST_TEST = 10_000
SAME_NUMBER = 1e-9
"""The relative distance of ``math.isclose``, where a test does not say another."""
_FORM = 'Write "tests": ["assert f(2) == 4"], or "function": "f", "tests": [{"input": [2], "output": 4}]'
_REQUEST = "Write it in Python, as one block:\n```python\n...\n```"
_OPENED = re.compile(
    r"(?:^[ \t>]*|(?<!`)(?=`{3,}py))(`{3,}|~{3,})[ \t]*\{?\.?([\w+#-]*)[^`]*$", re.IGNORECASE
)
"""A line that opens a block: with a fence at its beginning, or with one of Python anywhere."""
_PYTHON = ("python", "python3", "py", "py3")


@dataclass(frozen=True)
class ProgramTest:
    """An expression in the names of a program, and the literal that its value must equal.

    If ``near`` is not ``None``, both are numbers, whose distance may be the first of it times the larger one,
    or the second. ``as_json``, the value is one of JSON, in which a tuple is a list.
    """

    call: str
    value: str
    near: tuple[float, float] | None = None
    as_json: bool = False


class ProgramTask(Task):
    """Questions whose answers are programs. An answer is right if all tests of its question's row pass.

    A program never sees the value that a test expects: the expression is evaluated beside the program, and
    its value, which must be a plain one, is compared elsewhere. So no equality, no output and no change of
    Python by the program makes a wrong value right, and a test may not compare in its expression. Each test
    runs the program anew.

    Raises:
        InputError: the extra ``code`` is not installed, or a row has no such tests.
    """

    def __init__(self, questions: Sequence[TaskQuestion], field: str, sandbox: Sandbox | None = None) -> None:
        check_sandbox(field)
        self.questions = questions
        self.tests = [tests_of(one.row, f"the question {one.text[:40]!r}", field) for one in questions]
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
            if ending.kind != "value" or not await _passes(test, ending.text, sandbox):
                return 0.0
        return 1.0


async def _passes(test: ProgramTest, text: str, sandbox: Sandbox) -> bool:
    if test.near is None:
        return await sandbox.same(text, test.value, as_json=test.as_json)
    try:
        found, expected = float(text), float(test.value)
    except ValueError:  # it is another kind of value
        return False
    relative, absolute = test.near
    return math.isclose(found, expected, rel_tol=relative, abs_tol=absolute)


def program_in(said: str) -> str | None:
    """Return the last block of code that says it is Python, or else the last that does not say what it is;
    ``None`` without one. The last block need not be closed."""
    blocks = [(language.lower(), code) for language, code in _blocks(said) if code]
    for languages in (_PYTHON, ("",)):
        if found := [code for language, code in blocks if language in languages]:
            return found[-1]
    return None


def _blocks(said: str) -> Iterator[tuple[str, str]]:
    """Return the language and the code of each block between fences."""
    fence, language, lines = "", "", list[str]()
    for line in said.replace("\r\n", "\n").split("\n"):
        if not fence:
            if opened := _OPENED.search(line):
                (fence, language), lines = opened.groups(), []
            continue
        before, closed, after = line.partition(fence)
        if closed and not after.strip(f"{fence[0]} \t"):
            yield language, _code([*lines, before])
            fence = ""
        else:
            lines.append(line)
    if fence:
        yield language, _code(lines)


def _code(lines: Sequence[str]) -> str:
    return dedent("\n".join(lines)).strip("\n").rstrip()


def tests_of(row: dict[str, Any], place: str, field: str) -> list[ProgramTest]:
    """Return the tests of a row: asserts, or inputs and outputs of a function.

    Raises:
        InputError: there is none, or one is neither, or no program can pass it.
    """
    given = row.get(TESTS)
    if not isinstance(given, list) or not given:
        raise InputError(field, f"{place} has no {TESTS}", _FORM)
    found = []
    for number, one in enumerate(given):
        try:
            found.append(_assert(one) if isinstance(one, str) else _case(one, row.get(FUNCTION)))
        except _UnusableError as error:
            raise InputError(field, f"test {number + 1} of {place} {error}", _FORM) from error
    return found


class _UnusableError(Exception):
    """Says what is wrong with a test."""


def _assert(text: str) -> ProgramTest:
    """Return the test that ``assert EXPRESSION == LITERAL`` is, or a distance that is small."""
    if len(text) > LONGEST_TEST:
        raise _UnusableError(f"has {len(text)} characters, more than {LONGEST_TEST}")
    try:
        match ast.parse(text.strip()).body:
            case [ast.Assert(test=test)]:
                return _checked(_test_of(test))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _UnusableError("cannot be read as Python") from error
    raise _UnusableError("is not one assert")


def _test_of(test: ast.expr) -> ProgramTest:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return ProgramTest(_expression(left), _literal(right))
        case ast.Compare(
            left=ast.Call(func=ast.Name("abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)]),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[limit],
        ):
            return _near(left, right, (0.0, _number(limit)))
        case ast.Call(
            func=ast.Name("isclose") | ast.Attribute(ast.Name("math"), "isclose"),
            args=[left, right],
            keywords=limits,
        ) if {one.arg for one in limits} <= {"rel_tol", "abs_tol"}:
            given = {one.arg: _number(one.value) for one in limits}
            return _near(left, right, (given.get("rel_tol", SAME_NUMBER), given.get("abs_tol", 0.0)))
    raise _UnusableError("is not EXPRESSION == LITERAL, or abs(EXPRESSION - NUMBER) < NUMBER")


def _near(left: ast.expr, right: ast.expr, near: tuple[float, float]) -> ProgramTest:
    if _is_literal(left):
        left, right = right, left
    _number(right)
    return ProgramTest(_expression(left), _literal(right), near)


def _expression(node: ast.expr) -> str:
    """Return an expression; refuse one that compares what comes from the program, which decides what is
    equal to its own objects. What is made as its input may be compared: ``f([x for x in y if x > 2])``."""
    ours = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    ours |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)} | set(dir(builtins))
    for one in ast.walk(node):
        decides = isinstance(one, ast.Compare | ast.BoolOp | ast.IfExp)
        if decides or (isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not)):
            names = {inner.id for inner in ast.walk(one) if isinstance(inner, ast.Name)}
            if not names <= ours:
                raise _UnusableError("compares on the left of ==, where the program decides what is equal")
    return ast.unparse(node)


def _literal(node: ast.expr) -> str:
    if not _is_literal(node):
        raise _UnusableError(f"has no literal on the right of ==, but {ast.unparse(node)[:60]}")
    return ast.unparse(node)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _number(node: ast.expr) -> float:
    value = ast.literal_eval(node) if _is_literal(node) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnusableError(f"has no number where {ast.unparse(node)[:60]} stands")
    return float(value)


def _case(one: object, function: object) -> ProgramTest:
    """Return the test of a function with a list of arguments; values of JSON are values of Python."""
    arguments = one.get("input") if isinstance(one, dict) else None
    if not isinstance(one, dict) or not isinstance(arguments, list) or "output" not in one:
        raise _UnusableError('is neither a text nor {"input": [...], "output": ...}')
    if not (isinstance(function, str) and function.isidentifier()) or iskeyword(function):
        raise _UnusableError(f"is for {shown(function)}, which is no name of a function")
    try:
        call = f"{function}({', '.join(map(repr, arguments))})"
        return _checked(ProgramTest(call, repr(one["output"]), as_json=True))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise _UnusableError("has a value that cannot be written in Python") from error


def _checked(test: ProgramTest) -> ProgramTest:
    """Return a test that some program can pass: its call is Python, and its value can leave the sandbox."""
    compile(test.call, "test", "eval")
    if not _is_plain(ast.literal_eval(test.value)):
        raise _UnusableError(f"expects {test.value[:60]}, which is no plain value")
    if len(test.value) > ROOM:
        raise _UnusableError(f"expects {len(test.value)} characters, more than {ROOM}")
    return test


def _is_plain(value: object) -> bool:
    match value:
        case None | bool() | int() | str() | bytes():
            return True
        case float():
            return value == value
        case list() | tuple() | set():
            return all(map(_is_plain, value))
        case dict():
            return all(_is_plain(one) for pair in value.items() for one in pair)
    return False
