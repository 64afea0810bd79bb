"""Questions about programs: deduction of an output, abduction of an input, induction of a program.

A proposer writes a function ``f`` and inputs for it; what it returns is computed in the sandbox. Of program,
input and output, a solver is shown two and states the third. Its answer is checked by running too: an input
is right if ``f`` returns the output for it, and a program if it returns every output, those of hidden inputs
included (Zhao et al. 2025, arXiv 2505.03335). The sandbox has no clock and no entropy, so a program that ends
with a value ends with the same value again.
"""

import random
import re
from abc import abstractmethod

from sparring.config.programs import CodeKind
from sparring.programs.code.sandbox import Sandbox, shared_sandbox
from sparring.programs.code.tasks import program_in
from sparring.programs.questions import Domain, Question, Turns

INDUCTION_INPUTS = 4
"""Inputs of a question of induction, of which a solver sees the first half."""
_INPUT = re.compile(r"^Input: *(\S.*)$", re.MULTILINE)
_HELD_OUT_SEED = 2025
_ON_NUMBERS = ["x", "x + 1", "x - 1", "x + {a}", "x * 2", "[x]", "[x, x]", "[x, {a}]"]
_ON_LISTS = ["x", "x[0]", "x[-1]", "len(x)", "x[:1]", "x[1:]", "x[::-1]", "x + [{a}]"]


class CodeQuestion(Question):
    """A question about a program. ``question`` is what a solver reads, ``ground_truth`` the proposer's own
    output, input or program, by the kind."""

    program: str
    inputs: list[str]
    outputs: list[str]


class CodeDomain(Domain):
    """What the three kinds have in common: proposals and their check. ``count`` inputs make a question."""

    kind: CodeKind
    truth_is_known = True
    count = 1
    proposal_tokens = 64
    answer_tokens = 32

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox

    @property
    def sandbox(self) -> Sandbox:
        """Where programs run: by default the sandbox of this process, which starts with the first program."""
        return self._sandbox or shared_sandbox()

    @abstractmethod
    def made(self, program: str, inputs: list[str], outputs: list[str]) -> CodeQuestion:
        """Return the question that a program, its inputs and its outputs make."""

    @abstractmethod
    def answer_of(self, question: CodeQuestion) -> str:
        """Return what a solver would write who knows."""

    def seed_questions(self) -> list[Question]:
        """Return twelve short functions of a number or a list."""
        return self._drawn(random.Random(0), 12, set())

    def held_out_questions(self, count: int) -> list[Question]:
        """Return at most ``count`` such questions that are not among the first."""
        taken = {self.key(one) for one in [*self.seed_questions(), *self._solved()]}
        return self._drawn(random.Random(_HELD_OUT_SEED), count, taken)

    def proposer_turns(self, examples: list[Question]) -> Turns:
        return [(self.proposer_prompt(), _proposal(_as_code(one))) for one in examples]

    def proposer_prompt(self) -> str:
        return f"Write a Python function f and {_counted(self.count)} for it."

    def parse_question(self, text: str) -> Question | None:
        """Return the question before it is checked: without outputs."""
        inputs = [one.strip() for one in _INPUT.findall(text)]
        before = text[: _INPUT.search(text).start()] if inputs else ""  # type: ignore[union-attr]
        program = (program_in(before) or before).strip()
        if len(inputs) != self.count or len(set(inputs)) != self.count or not program:
            return None
        return self.made(program, inputs, [""] * self.count)

    async def checked(self, question: Question) -> Question | None:
        """Return the question with the outputs; ``None`` if two inputs are the same, or the program does not
        return a plain value for one. It may change the copy in which it runs, and so what the copy says."""
        one = _as_code(question)
        if self.count > 1:
            values = [await self.sandbox.run("", "lambda *given: given", given) for given in one["inputs"]]
            if len({value.text for value in values}) < self.count:
                return None
        endings = [await self.sandbox.run(one["program"], "f", given) for given in one["inputs"]]
        for ending in endings:
            if ending.kind != "value" or not await self.sandbox.is_plain(ending.text):
                return None
        return self.made(one["program"], one["inputs"], [ending.text for ending in endings])

    def solver_turns(self) -> Turns:
        return [(one["question"], self.answer_of(_as_code(one))) for one in self._solved()]

    def solver_prompt(self, question: Question) -> str:
        return question["question"]

    def is_correct(self, result: str, question: Question) -> bool:
        """Return whether the answer is the expected one, word for word; see :meth:`judge` for others."""
        return result == question["ground_truth"]

    def same(self, one: str, other: str) -> bool:
        """Return whether two answers are one text; spaces count only beside quotes or several lines."""
        spaced = any(quote in one + other for quote in "'\"\n")
        return one == other if spaced else "".join(one.split()) == "".join(other.split())

    def key(self, question: Question) -> str:
        """Return what a solver reads: two questions are the same if it cannot tell them apart."""
        return f"{self.kind}\n{question['question']}"

    def _solved(self) -> list[Question]:
        return self._drawn(random.Random(1), 12, set())

    def _drawn(self, rng: random.Random, count: int, taken: set[str]) -> list[Question]:
        found: list[Question] = []
        for number in range(20 * count):
            on_numbers = number % 2 == 0
            body = rng.choice(_ON_NUMBERS if on_numbers else _ON_LISTS)
            body = body.format(a=rng.randint(1, 9))
            values = [_value(rng, on_numbers) for _ in range(self.count)]
            outputs = [repr(eval(body, {"x": value})) for value in values]  # a text of this file
            one = self.made(f"def f(x):\n    return {body}", [repr(value) for value in values], outputs)
            if self.key(one) not in taken and len(set(one["inputs"])) == self.count:
                taken.add(self.key(one))
                found.append(one)
            if len(found) == count:
                break
        return found


class Deduction(CodeDomain):
    """What does the function return?"""

    kind: CodeKind = "deduction"

    def made(self, program: str, inputs: list[str], outputs: list[str]) -> CodeQuestion:
        question = f"{program}\nComplete: f({inputs[0]}) == ..."
        return _question(self.kind, question, outputs[0], program, inputs, outputs)

    def answer_of(self, question: CodeQuestion) -> str:
        return _stated(question)

    def parse_answer(self, text: str) -> str | None:
        """Return what follows the last ``f(...) ==``."""
        return _parts(text)[1] or None

    async def judge(self, result: str, question: Question) -> bool:
        """Return whether the answer is a literal of the same value."""
        return await self.sandbox.same(result, question["ground_truth"])


class Abduction(CodeDomain):
    """For what does the function return this? Any such input is right."""

    kind: CodeKind = "abduction"

    def made(self, program: str, inputs: list[str], outputs: list[str]) -> CodeQuestion:
        question = f"{program}\nComplete: f(...) == {outputs[0]}"
        return _question(self.kind, question, inputs[0], program, inputs, outputs)

    def answer_of(self, question: CodeQuestion) -> str:
        return _stated(question)

    def parse_answer(self, text: str) -> str | None:
        """Return what stands in the parentheses of the last ``f(...) ==``."""
        return _parts(text)[0] if _parts(text)[1] else None

    async def judge(self, result: str, question: Question) -> bool:
        """Return whether the function returns the output for the answer, which must be literals."""
        one = _as_code(question)
        return await _returns(self.sandbox, one["program"], result, one["outputs"][0])


class Induction(CodeDomain):
    """Which function returns these? It must return the hidden outputs as well."""

    kind: CodeKind = "induction"
    count = INDUCTION_INPUTS
    proposal_tokens = 96

    def made(self, program: str, inputs: list[str], outputs: list[str]) -> CodeQuestion:
        half = len(inputs) // 2
        shown = [f"f({given}) == {value}" for given, value in zip(inputs[:half], outputs[:half], strict=True)]
        question = "\n".join([*shown, "Write the Python function f."])
        return _question(self.kind, question, program, program, inputs, outputs)

    def answer_of(self, question: CodeQuestion) -> str:
        return question["program"]

    def parse_answer(self, text: str) -> str | None:
        """Return the last block of code, or all of a text without one."""
        return program_in(text) or text.strip() or None

    async def judge(self, result: str, question: Question) -> bool:
        """Return whether the program returns every output, the hidden ones included."""
        one = _as_code(question)
        for given, value in zip(one["inputs"], one["outputs"], strict=True):
            if not await _returns(self.sandbox, result, given, value):
                return False
        return True


KINDS: dict[CodeKind, type[CodeDomain]] = {
    "deduction": Deduction,
    "abduction": Abduction,
    "induction": Induction,
}


def _parts(text: str) -> tuple[str, str]:
    """Return what stands in the last line of the form ``f(...) == ...``; two empty texts without one.

    An answer repeats the call: a small model reads the program and the input better while it writes them.
    """
    for line in reversed(text.split("\n")):
        call, _, value = line.rpartition(") == ")
        _, called, given = call.partition("f(")
        if called and value.strip():
            return given.strip(), value.strip()
    return "", ""


async def _returns(sandbox: Sandbox, program: str, arguments: str, value: str) -> bool:
    ending = await sandbox.run(program, "f", arguments)
    return ending.kind == "value" and await sandbox.same(ending.text, value)


def _question(
    kind: str, question: str, truth: str, program: str, inputs: list[str], outputs: list[str]
) -> CodeQuestion:
    return {
        "kind": kind,
        "question": question,
        "ground_truth": truth,
        "program": program,
        "inputs": inputs,
        "outputs": outputs,
    }


def _as_code(question: Question) -> CodeQuestion:
    return question  # type: ignore[return-value]  # a domain is given its own questions only


def _proposal(one: CodeQuestion) -> str:
    return "\n".join([one["program"], *(f"Input: {given}" for given in one["inputs"])])


def _counted(count: int) -> str:
    return "an input" if count == 1 else f"{count} different inputs"


def _stated(one: CodeQuestion) -> str:
    return f"f({one['inputs'][0]}) == {one['outputs'][0]}"


def _value(rng: random.Random, on_numbers: bool) -> int | list[int]:
    if on_numbers:
        return rng.randint(1, 9)
    return [rng.randint(1, 9) for _ in range(rng.randint(2, 3))]
