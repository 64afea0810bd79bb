"""The sandbox: what programs can run, how they end, and that none of them gets out or stays."""

import ast
import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparring
from hostile_programs import WAYS
from sparring.core import InputError, TransientError
from sparring.programs.code import component
from sparring.programs.code import sandbox as module
from sparring.programs.code.sandbox import Sandbox

pytest.importorskip("wasmtime", reason="needs the extra code")
pytest.importorskip("componentize_py", reason="needs the extra code")
SOURCE = Path(sparring.__file__).parents[1]
GOOD = "def f(text):\n    return sorted(set(text)), len(text)"
HOSTILE = [(way, name) for way, (programs, _) in WAYS.items() for name in programs]


@pytest.fixture(scope="module")
def sandbox():
    one = Sandbox(2, instructions=1_000_000_000)
    yield one
    one.close()


@pytest.mark.parametrize(("way", "name"), HOSTILE)
async def test_a_hostile_program_ends_as_it_must_and_leaves_nothing_behind(way, name, sandbox):
    programs, kinds = WAYS[way]
    ending = await sandbox.run(programs[name], "globals().get('answer')")
    assert ending.kind in kinds, ending
    assert "root:" not in ending.printed + ending.text
    after = await sandbox.run(GOOD, "f", "'hello'")
    assert (after.kind, after.text) == ("value", "(['e', 'h', 'l', 'o'], 5)")


ORDINARY = {
    "1 + 1": "2",
    "[x * y for x in range(3) for y in range(2) if x != y]": "[0, 0, 0, 2]",
    "(lambda *a, k=1, **b: (a, k, b))(1, 2, k=3, z=4)": "((1, 2), 3, {'z': 4})",
    "__import__('math').gcd(12, 18)": "6",
    "__import__('collections').Counter('abca').most_common(1)": "[('a', 2)]",
    "list(__import__('itertools').permutations('ab'))": "[('a', 'b'), ('b', 'a')]",
    r"__import__('re').findall(r'\d+', 'a1b22')": "['1', '22']",
    "__import__('json').loads('{\"a\": [1, null]}')": "{'a': [1, None]}",
    "__import__('string').ascii_lowercase[:3]": "'abc'",
    "__import__('functools').reduce(lambda a, b: a * b, [1, 2, 3, 4])": "24",
    "__import__('heapq').nsmallest(2, [3, 1, 2])": "[1, 2]",
    "__import__('bisect').bisect([1, 2, 3], 2)": "2",
    "str(__import__('fractions').Fraction(1, 3) + 1)": "'4/3'",
    "str(__import__('datetime').date(2024, 2, 28) + __import__('datetime').timedelta(2))": "'2024-03-01'",
    "{3, 1, 2}, frozenset({2, 1}), set()": "({1, 2, 3}, {1, 2}, set())",
    "{'b': 1, 'a': 2}": "{'a': 2, 'b': 1}",
    "float('inf'), -float('inf'), 0.1 + 0.2": "(1e999, -1e999, 0.30000000000000004)",
    "b'\\xff', 'ä', '\\ud800', True, None": "(b'\\xff', 'ä', '\\ud800', True, None)",
    "2**100": "1267650600228229401496703205376",
}


@pytest.mark.parametrize("expression", ORDINARY)
async def test_ordinary_python_runs(expression, sandbox):
    ending = await sandbox.run("", expression)
    assert (ending.kind, ending.text) == ("value", ORDINARY[expression])


MODULES = (
    *(
        "__future__",
        "abc",
        "array",
        "base64",
        "bisect",
        "calendar",
        "cmath",
        "collections",
        "collections.abc",
    ),
    *("contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions"),
    *("functools", "graphlib", "hashlib", "heapq", "html", "inspect", "io", "itertools", "json", "logging"),
    *("math", "numbers", "operator", "os", "pprint", "queue", "random", "re", "statistics", "string"),
    *("struct", "sys", "textwrap", "threading", "time", "timeit", "traceback", "types", "typing", "unittest"),
    *("urllib.parse", "warnings", "weakref"),
)


async def test_modules_of_the_standard_library_that_answers_import_are_there(sandbox):
    source = "".join(f"import {name}\n" for name in MODULES)
    ending = await sandbox.run(f"from __future__ import annotations\n{source}", "1")
    assert ending.text == "1"


USES = {
    "__import__('datetime').datetime.strptime('2024-01-02', '%Y-%m-%d').day": "2",
    "len(str(3**30000 // 3**20000))": "4772",
    "'ab'.encode('utf-16-le')": r"b'a\x00b\x00'",
    "'ab'.encode('utf-8-sig').decode('utf-8-sig')": "'ab'",
    r"b'a\\n'.decode('unicode_escape')": r"'a\n'",
    "__import__('codecs').encode('abc', 'rot13')": "'nop'",
}


@pytest.mark.parametrize("expression", USES)
async def test_what_python_loads_when_it_is_used_is_there(expression, sandbox):
    ending = await sandbox.run("import sys\nsys.set_int_max_str_digits(0)", expression)
    assert (ending.kind, ending.text) == ("value", USES[expression])


EQUAL = {
    "Counter([1, 1, 2])": "{1: 2, 2: 1}",
    "defaultdict(int, a=1)": "{'a': 1}",
    "OrderedDict(b=1, a=2)": "{'a': 2, 'b': 1}",
    "{'b': 1, 'a': 2}.keys()": "{'a', 'b'}",
    "{'b': 1}.items()": "{('b', 1)}",
    "namedtuple('P', 'x y')(1, 2)": "(1, 2)",
    "IntEnum('E', 'A B').B": "2",
    "type('S', (str,), {'__repr__': lambda self: '4', '__eq__': lambda *a: True})('x')": "'x'",
    "type('D', (dict,), {'items': lambda self: [(1, 2)]})()": "{}",
    "type('L', (list,), {'__iter__': lambda self: iter([1])})()": "[]",
    "type('I', (int,), {'__repr__': lambda self: '4'})(5)": "5",
    "[Fraction(1, 2), Fraction(4), Decimal('0.5'), Decimal(4)]": "[0.5, 4, 0.5, 4]",
}


@pytest.mark.parametrize("expression", EQUAL)
async def test_a_value_of_a_subclass_is_the_plain_value_that_its_base_has(expression, sandbox):
    source = "from collections import *\nfrom decimal import *\nfrom enum import *\nfrom fractions import *"
    ending = await sandbox.run(source, expression)
    assert (ending.kind, ending.text) == ("value", EQUAL[expression])


@pytest.mark.parametrize("number", ["Fraction(1, 3)", "Decimal('0.1')", "Decimal('nan')", "Decimal('inf')"])
async def test_a_number_that_no_plain_one_is_equal_to_does_not_leave(number, sandbox):
    source = "from decimal import *\nfrom fractions import *"
    assert (await sandbox.run(source, number)).kind == "error"


DEEP = {
    "functools.cache": "import functools\n@functools.cache\ndef f(n): return n and f(n - 1) + 1",
    "sorted": "def f(n): return n and sorted([n - 1], key=f)[0] + 2",
    "sum": "def f(n): return n and sum(f(one) for one in [n - 1]) + 1",
    "a call": "class F:\n def __call__(self, n): return n and self(n - 1) + 1\nf = F()",
}


@pytest.mark.parametrize("way", DEEP)
async def test_recursion_through_c_is_as_deep_as_in_other_pythons(way, sandbox):
    ending = await sandbox.run(f"import sys\nsys.setrecursionlimit(10**6)\n{DEEP[way]}", "f", "450")
    assert ending.kind == "value"


async def test_what_stands_under_main_is_not_for_who_calls_a_program(sandbox):
    source = "def f():\n    return 4\nif __name__ == '__main__':\n    print(f())\n    raise SystemExit"
    assert (await sandbox.run(source, "f()")).text == "4"
    assert (await sandbox.run(source)).printed == "4\n"


async def test_a_long_call_does_not_use_up_what_a_program_may_take():
    one = Sandbox(1, instructions=10**8)
    assert (await one.run("f = len", f"f({[*range(60_000)]})")).text == "60000"
    assert (await one.run("f = len", "f", str([*range(60_000)]))).text == "60000"
    one.close()


async def test_classes_generators_and_patterns_run(sandbox):
    source = """
from dataclasses import dataclass
from typing import Iterator

@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0

class Walk:
    def __init__(self, steps: str) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[Point]:
        here = Point(0)
        for step in self.steps:
            match step:
                case "r":
                    here = Point(here.x + 1, here.y)
                case "u":
                    here = Point(here.x, here.y + 1)
                case _:
                    raise ValueError(f"no step {step!r}")
            yield here

def f(steps):
    try:
        return [(point.x, point.y) for point in Walk(steps)]
    except ValueError as error:
        return str(error)
    finally:
        print("walked")
"""
    assert (await sandbox.run(source, "f", "'rur'")).text == "[(1, 0), (1, 1), (2, 1)]"
    ending = await sandbox.run(source, "f", "'x'")
    assert (ending.text, ending.printed) == ("\"no step 'x'\"", "walked\n")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(PLAIN)
async def test_a_plain_value_comes_back_as_it_went_in(sandbox, value):
    ending = await sandbox.run("def f(value):\n    return value", "f", f"{value!r},")
    assert ending.kind == "value"
    assert ast.literal_eval(ending.text) == value
    assert await sandbox.same(ending.text, repr(value))


@settings(max_examples=40, deadline=None)
@given(source=st.text(max_size=60), call=st.text(max_size=20), arguments=st.none() | st.text(max_size=20))
async def test_any_texts_end_the_same_way_twice(sandbox, source, call, arguments):
    first = await sandbox.run(source, call, arguments)
    assert first == await sandbox.run(source, call, arguments)


@pytest.mark.parametrize(
    "source", ["print(hash('a'), id(object()), {'a', 'b', 'c', 'd'})", "while True: pass"]
)
async def test_a_program_gives_the_same_bytes_twice_and_in_another_sandbox(source, sandbox):
    first = await sandbox.run(f"import random\nprint(random.random())\n{source}")
    other = Sandbox(1, instructions=sandbox.instructions)
    assert first == await sandbox.run(f"import random\nprint(random.random())\n{source}")
    assert first == await other.run(f"import random\nprint(random.random())\n{source}")
    other.close()


@pytest.mark.parametrize(
    "arguments", ["f()", "globals()", "(lambda: 4)()", "1) or f(2", "*[1]", "[x for x in '12']", "x=1", "("]
)
async def test_arguments_are_literals(arguments, sandbox):
    ending = await sandbox.run("def f(*values):\n    return 4", "f", arguments)
    assert ending.kind == "error"


async def test_arguments_are_read_before_the_program_runs(sandbox):
    source = "import ast\nast.literal_eval = lambda text: (4,)\ndef f(value):\n    return value"
    assert (await sandbox.run(source, "f", "5")).text == "5"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2", "2.0", True),
        ("{1, 2}", "{2, 1}", True),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True),
        ("[1]", "(1,)", False),
        ("'a'", "a", False),
        (r"'\d'", r"'\\d'", True),
        ("f()", "f()", False),
        ("[" * 10000, "1", False),
        ("\x00", "\ud800", False),
    ],
)
async def test_values_are_compared_as_python_compares_them(first, second, same, sandbox):
    assert await sandbox.same(first, second) is same


async def test_limits_are_those_given():
    small = Sandbox(1, instructions=10_000_000, memory=2**24, room=20)
    assert (await small.run("for i in range(10**6): pass")).kind == "time"
    assert (await small.run("x = bytearray(2**23)")).kind == "memory"
    assert (await small.run("print('a' * 21)")).kind == "output"
    assert (await small.run("", "'a' * 18")).text == repr("a" * 18)
    small.close()


async def test_many_programs_at_once_each_get_their_own_answer(sandbox):
    endings = await asyncio.gather(*(sandbox.run(GOOD, "f", f"'{'a' * n}'") for n in range(100)))
    assert [one.text for one in endings] == [f"({['a'] if n else []}, {n})" for n in range(100)]


def test_a_sandbox_serves_one_event_loop_after_another(sandbox):
    assert [asyncio.run(sandbox.run("", str(n))).text for n in range(3)] == ["0", "1", "2"]


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    processes = []
    popen = module.subprocess.Popen

    def remembered(*args, **kwargs):
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(module.subprocess, "Popen", remembered)
    return processes


async def test_processes_that_die_are_replaced_and_no_program_is_wrong_for_it(started):
    one = Sandbox(2)
    await asyncio.gather(one.run("", "1"), one.run("", "1"))
    assert len(started) == 2
    for process in started:
        os.kill(process.pid, signal.SIGKILL)
    assert (await one.run("", "1 + 1")).text == "2"
    one.close()
    assert [process.poll() is not None for process in started] == [True] * 3


async def test_a_process_that_does_not_answer_is_ended_and_the_program_not_judged(monkeypatch, started):
    one = Sandbox(1, instructions=10**15)
    await one.run("", "1")
    ask = module._Worker.ask

    def impatient(worker, request):
        with monkeypatch.context() as patch:
            patch.setattr(module, "HANG_SECONDS", 0.0)
            return ask(worker, request)

    monkeypatch.setattr(module._Worker, "ask", impatient)
    with pytest.raises(TransientError, match="ended twice"):
        await one.run("while True: pass")
    one.close()
    assert [process.poll() is not None for process in started] == [True, True]


INTERRUPTED = """
import asyncio, os, signal
import psutil
from sparring.programs.code.sandbox import Sandbox

sandbox = Sandbox(1)
asyncio.run(sandbox.run("", "1"))
workers = psutil.Process().children()
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
print([asyncio.run(sandbox.run("", "1 + 1")).text for _ in range(2)], psutil.Process().children() == workers)
"""


def test_ctrl_c_in_the_terminal_is_for_the_run_alone():
    run = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(run, capture_output=True, text=True, start_new_session=True)
    assert done.stdout == "['2', '2'] True\n", done.stderr


RUN = """
import asyncio
from sparring.programs.code.sandbox import Sandbox

print(asyncio.run(Sandbox(1).run("", "1 + 1")).text, flush=True)
input()
"""


FORKED = """
import asyncio, os, signal
import psutil
from sparring.programs.code.sandbox import shared_sandbox

def answer():
    return asyncio.run(shared_sandbox().run("", "1 + 1")).text

answer()
workers = psutil.Process().children()
if child := os.fork():
    os.waitpid(child, 0)
    print("parent", answer(), psutil.Process().children() == workers)
else:
    signal.alarm(100)
    print("child", answer())
"""


def test_a_fork_has_a_sandbox_of_its_own_and_leaves_the_other_alone():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert done.stdout == "child 2\nparent 2 True\n", done.stderr


@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda run: run.communicate("")], ids=["kill", "end"])
def test_its_processes_end_with_the_run_however_that_ends(end):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout.readline() == "2\n"
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 1
    end(run)
    _, alive = psutil.wait_procs(workers, timeout=60)
    run.communicate()
    assert alive == []


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The directory of the component in a cache of the test's own."""
    made = component.compiled_component(print).parent
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    return shutil.copytree(made, tmp_path / made.name)


def test_a_finished_component_is_used_where_nothing_can_be_written(cache):
    (cache / ".lock").unlink()
    (cache / ".lock").mkdir()  # so that it cannot be opened, by the administrator either
    assert component.compiled_component(print).parent == cache


def test_its_processes_find_the_libraries_where_the_run_found_them(tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    libraries = Path(importlib.util.find_spec("wasmtime").origin).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(libraries)])}
    run = [tmp_path / "bare" / "bin" / "python", "-c", RUN]
    done = subprocess.run(run, env=environment, input="\n", capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


async def test_a_process_that_cannot_start_says_why(monkeypatch, tmp_path):
    damaged = tmp_path / "sandbox.cwasm"
    damaged.write_bytes(b"damaged")
    monkeypatch.setattr(module, "compiled_component", lambda say, unusable=None: damaged)
    with pytest.raises(InputError, match=r"did not start with .*Invalid ELF header"):
        await Sandbox(1).run("", "1")


@pytest.mark.slow
async def test_a_component_that_cannot_be_loaded_is_compiled_again_once(cache, started):
    (cache / "sandbox.cwasm").write_bytes(b"damaged")
    one = Sandbox(2)
    endings = await asyncio.gather(one.run("", "1 + 1"), one.run("", "1 + 1"))
    one.close()
    assert [ending.text for ending in endings] == ["2", "2"]
    assert sum(str(cache / "sandbox.wasm") in process.args for process in started) == 1


def test_another_kind_of_processor_has_another_component(cache, monkeypatch):
    class Made(Exception):
        pass

    def say(text):
        raise Made

    assert component.compiled_component(say).parent == cache
    monkeypatch.setattr("platform.machine", lambda: "another")
    with pytest.raises(Made):
        component.compiled_component(say)


def test_without_the_libraries_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sparring\[code\]'"):
        Sandbox()
