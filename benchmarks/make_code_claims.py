"""Make code_claims.jsonl: right and wrong Python functions, with labels that were tried and not guessed.

    python benchmarks/make_code_claims.py [FILE]

The functions, their specifications and their tests are in benchmarks/code_functions. Each function is written
in up to four styles that do the same. For each style there is a right claim and a wrong one: a mutant in the
same style that fails a test. Every candidate runs against its tests in another process, with a limit of steps
and of time. Mutants that pass all tests are left out, because their label would be a guess. Without FILE, the
package's data is written.
"""

import ast
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_mutants import mutants, styles

FUNCTIONS = Path(__file__).parent / "code_functions"
DATA = Path(__file__).parents[1] / "src" / "sparring" / "programs" / "proofs" / "code_claims.jsonl"
MAX_STEPS = 100_000
SECONDS = 60

RUNNER = f"""
import json, sys

class TooLong(BaseException):
    pass

def passes(candidate, tests):
    steps = 0
    def count(frame, event, argument):
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += 1
        if steps > {MAX_STEPS}:
            raise TooLong
        return count
    try:
        sys.settrace(count)
        names = {{}}
        exec(candidate, names)
        exec(tests, names)
    except (Exception, TooLong):
        return False
    finally:
        sys.settrace(None)
    return True

given = json.load(sys.stdin)
print(json.dumps([passes(one, given["tests"]) for one in given["candidates"]]))
"""


@dataclass(frozen=True)
class Function:
    """A function with its specification in one line, its source without it, and its tests."""

    name: str
    specification: str
    source: str
    tests: str


def functions() -> list[Function]:
    """Return all functions, in the order of the files."""
    found: list[Function] = []
    for path in sorted(FUNCTIONS.glob("*.py")):
        body = ast.parse(path.read_text()).body
        tests: list[str] = []
        for node in reversed(body):
            if isinstance(node, ast.Assert):
                tests.insert(0, ast.unparse(node))
            elif isinstance(node, ast.FunctionDef):
                found.append(_function(node, tests))
                tests = []
    return sorted(found, key=lambda function: function.name)


def _function(node: ast.FunctionDef, tests: list[str]) -> Function:
    specification = ast.get_docstring(node)
    assert specification is not None
    assert tests
    node.body = node.body[1:]
    return Function(node.name, specification, ast.unparse(node), "\n".join(tests))


def which_pass(candidates: list[str], tests: str) -> list[bool]:
    """Return which candidates pass all tests. One that takes too many steps fails."""
    run = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER],
        input=json.dumps({"candidates": candidates, "tests": tests}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    passed: list[bool] = json.loads(run.stdout)
    return passed


def claims_of(function: Function) -> list[dict[str, Any]]:
    """Return the claims about one function, right and wrong in turn."""
    rng = random.Random(function.name)
    written = styles(function.source)
    changed = {style: list(mutants(source).items()) for style, source in written.items()}
    candidates = [*written.values(), *(source for made in changed.values() for source, _ in made)]
    verdicts = dict(zip(candidates, which_pass(candidates, function.tests), strict=True))
    signature = function.source.splitlines()[0].removeprefix("def ").removesuffix(":")
    question = f"Write a Python function {signature}. {function.specification}"
    claims: list[dict[str, Any]] = []
    used: set[str] = set()
    for style, source in written.items():
        assert verdicts[source], f"{function.name} in style {style} fails its own tests"
        wrong = [(text, kind) for text, kind in changed[style] if not verdicts[text]]
        rng.shuffle(wrong)
        wrong.sort(key=lambda one: one[1] in used)
        if wrong:
            text, kind = wrong[0]
            used.add(kind)
            for y, code, mutant in ((1, source, None), (0, text, kind)):
                name = f"{function.name}, {style}, {'right' if y else 'wrong'}"
                meta = {"function": function.name, "style": style, "mutant": mutant}
                claims.append({"question": question, "claim": code, "y": y, "id": name, "meta": meta})
    return claims


def main() -> None:
    """Write the file."""
    rows = [claim for function in functions() for claim in claims_of(function)]
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = [row["meta"]["mutant"] for row in rows if row["meta"]["mutant"]]
    print(f"{len(rows)} claims on {len({row['question'] for row in rows})} functions")
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))


if __name__ == "__main__":
    main()
