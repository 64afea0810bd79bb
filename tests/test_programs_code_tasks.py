"""Questions whose answers are programs: which pass, and that none cheats."""

import json

import pytest

from sparring.config.programs import QuestionsSettings
from sparring.config.questions import TaskSettings
from sparring.core import InputError, MockInferenceClient
from sparring.programs.program_arena import QuestionArena
from sparring.programs.task_sources import load_task

pytest.importorskip("wasmtime", reason="needs the extra code")
pytest.importorskip("componentize_py", reason="needs the extra code")
ROWS = [
    {"question": "Write f(x), which doubles x.", "tests": ["assert f(2) == 4", "assert f('a') == 'aa'"]},
    {
        "question": "Write f(x, y), the sum.",
        "function": "f",
        "tests": [{"input": [1, 2], "output": 3}, {"input": [[1], [2]], "output": [1, 2]}],
    },
    {"question": "Write pair(x).", "answer": "not needed", "tests": ["assert pair(1) == (1, {1: None})"]},
]
RIGHT = ["def f(x):\n    return x * 2", "f = lambda x, y: x + y", "def pair(x):\n    return x, {x: None}"]


@pytest.fixture
def task(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return load_task(TaskSettings(name=str(tmp_path / "rows.jsonl"), score="tests"), "evaluation.tasks.0")


def number_of(task, row):
    return [question.text for question in task.questions].index(ROWS[row]["question"])


@pytest.mark.parametrize("row", range(len(ROWS)))
async def test_a_program_is_right_for_the_tests_of_its_own_row(row, task):
    grades = [await task.grade(number_of(task, row), program) for program in RIGHT]
    assert grades == [float(place == row) for place in range(len(ROWS))]


CHEATS = [
    "class A:\n    __eq__ = lambda a, b: True\nf = lambda *a: A()",
    "class A(int):\n    __eq__ = lambda a, b: True\nf = lambda *a: A(4)",
    "import sys\nsys.exit(0)",
    "import builtins\nbuiltins.AssertionError = None\nf = lambda *a: 5",
    "import sys\nsys.modules['guest']._literal = lambda *a: '(4 == 4)'\nf = lambda *a: 5",
    "import sys\nsys.modules['guest'].WitWorld.same = lambda *a: True\nf = lambda *a: 5",
    "f = lambda *a: 'f(2)'",
    "f = lambda x: x * 2 if x == 2 else None",
    "f = lambda x: x * 2\nwhile True: pass",
    "raise SystemExit",
    "",
]


@pytest.mark.parametrize("program", CHEATS)
async def test_a_program_that_cheats_is_wrong(program, task):
    assert await task.grade(number_of(task, 0), program) == 0


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("first\n```\nx = 1\n```\nthen\n```py\nx = 2\n```", "x = 2"),
        ("```python\nx = 1", "x = 1"),
        ("x = 1", None),
        ("```python\n```", None),
        ("Example:\n```text\nf(2) -> 4\n```\nThe program:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("```bash\nls\n```\n```json\n{}\n```\n```\nx = 1\n```", "x = 1"),
        ("```bash\nls\n```", None),
        ("```python\nx = 1\n```\nIt prints:\n```\n4\n```", "x = 1"),
        ("```python3\nx = 1\n```", "x = 1"),
        ("```Python\nx = 1\n```", "x = 1"),
        ("``` python\nx = 1\n```", "x = 1"),
        ('```python title="a.py"\nx = 1\n```', "x = 1"),
        ("```{.python}\nx = 1\n```", "x = 1"),
        ("~~~python\nx = 1\n~~~", "x = 1"),
        ("````python\nx = 1\n```\n2\n````", "x = 1\n```\n2"),
        ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2"),
        ("1. So:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1"),
        ("Answer: ```python\nx = 1```", "x = 1"),
        ("```python\nx = 'a ```b``` c'\n```", "x = 'a ```b``` c'"),
        ("use ```f(2)``` here\n```python\nx = 1\n```", "x = 1"),
    ],
)
def test_an_answer_is_the_last_block_of_python(said, read, task):
    assert task.read(0, said) == read


MADE = {"question": "q", "function": "f"}
LONG = "f" * 5000
WRONG = {
    "has no tests": [MADE, *(MADE | {"tests": tests} for tests in ([], "assert f(2) == 4", None))],
    "is not one assert": ["f(2) == 4", "assert f(2) == 4; x = 1", ""],
    "is not EXPRESSION == LITERAL": [
        "assert f(2)",
        "assert f(2) < 4",
        "assert f(2) == 4 == 4",
        "assert not f(2)",
    ],
    "has no literal on the right": ["assert f(2) == g(2)", "assert f(2) == -x"],
    "cannot be read as Python": [
        *("assert (", "assert f(\0) == 4", "assert (yield) == 4", "assert await f(1) == 4"),
        *(f"assert f({'1+' * 2000}1) == 4", f"assert f(1){'.a' * 3000} == 4", f"assert f(2) == 0x{LONG}"),
        *(f"assert f({'[' * 500}) == 4", f"assert f(0x{LONG}) == 4"),
    ],
    "has 10017 characters": [f"assert f('{'a' * 10_000}') == 4"],
    "compares on the left": [
        *(
            "assert (f(2) == 4) == True",
            "assert (abs(f(2) - 4) < 1e-6) == True",
            "assert (f(2) in [4, 5]) == 1",
        ),
        *("assert [abs(f(x) - x) < 1 for x in (1, 2)] == [True, True]", "assert (f(2) and True) == True"),
        *("assert (1 if f(2) else 0) == 1", "assert (not f(2)) == False", "assert bool(f(2) == 4) == True"),
        "assert len([x for x in [1] if f(x) == 2]) == 1",
    ],
    "is no plain value": [f"assert f(1) == {value}" for value in ("2j", "[1+2j]", "...", "{1: 2j}")],
    "more than 16384": [{"input": [1], "output": [*range(5000)]}],
    "has no number where": [
        *("assert abs(f(2) - 'a') < 1", "assert abs(f(2) - 4) < x", "assert isclose(f(2), g(2))"),
    ],
    'is neither a text nor {"input"': [{"input": 2}, {"output": 2}, {"input": 2, "output": 2}, 4, None, []],
    "has a value that cannot be written": [{"input": [1], "output": float(text)} for text in ("inf", "nan")],
    "which is no name of a function": [
        {"question": "q", "tests": [{"input": [2], "output": 4}]} | named
        for named in ({}, *({"function": name} for name in ("class", "None", "lambda", "f g", "", 4)))
    ],
}


@pytest.mark.parametrize(("said", "given"), [(said, one) for said, every in WRONG.items() for one in every])
def test_a_test_that_could_be_cheated_or_that_no_program_passes_is_refused_with_its_line(
    said, given, tmp_path
):
    row = given if isinstance(given, dict) and "question" in given else MADE | {"tests": [given]}
    lines = [json.dumps(ROWS[0])] * 300 + ["", json.dumps(row)] + [json.dumps(ROWS[0])] * 300
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        load_task(TaskSettings(name=str(file), score="tests", questions=2), "evaluation.tasks.0")
    assert said in caught.value.problem
    assert f"line 302 of {file}" in caught.value.problem
    assert 'Write "tests": ["assert f(2) == 4"]' in caught.value.fix


ALLOWED = {
    "assert f([x for x in range(9) if x > 2]) == 4": "f = lambda x: 4",
    "assert f(lambda x: x > 2 and x < 5, [1]) == 4": "f = lambda *a: 4",
    "assert f(1 == 1) == True": "f = lambda x: x",
    "assert sorted(f(3))[0] == (1, {2})": "f = lambda x: [(1, {2})]",
    "assert abs(f(2) - 4) < 1e-6": "f = lambda x: 4 + 1e-7",
    "assert abs(f(2) - 4) <= 0.5": "f = lambda x: 4.5",
    "assert abs(0.1 - f(2)) < 1e-6": "f = lambda x: 0.1",
    "assert math.isclose(f(2), 0.3333333333333333)": "f = lambda x: x / 6",
    "assert isclose(f(2), 100, rel_tol=0.01)": "f = lambda x: 101",
    "assert math.isclose(f(2), 0.0, abs_tol=1e-3)": "f = lambda x: -1e-4",
    "assert f(1e400) == 1e400": "f = lambda x: x",
    "assert f() == {'a': (1, [2.0, None]), b'x': {True}}": "f = lambda: {'a': (1, [2, None]), b'x': {True}}",
}
FAR = {
    "assert abs(f(2) - 4) < 1e-6": "f = lambda x: 4.1",
    "assert abs(f(2) - 4) < 10": "class A:\n __sub__ = __abs__ = lambda s, *a: 0\nf = lambda x: A()",
    "assert math.isclose(f(2), 4)": "class math: isclose = lambda *a: True\nf = lambda x: 5",
    "assert math.isclose(f(2), 4, abs_tol=9)": "f = lambda x: float('nan')",
    "assert isclose(f(2), 4, abs_tol=9)": "f = lambda x: '4'",
}
NEAR = [(*one, 1.0) for one in ALLOWED.items()] + [(*one, 0.0) for one in FAR.items()]


@pytest.mark.parametrize(("test", "program", "right"), NEAR)
async def test_what_a_test_may_say_and_that_numbers_may_be_near(test, program, right, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(MADE | {"tests": [test], "answer": None}))
    task = load_task(TaskSettings(name=str(tmp_path / "rows.jsonl"), score="tests"), "evaluation.tasks.0")
    assert await task.grade(0, program) == right


async def test_values_of_json_are_compared_as_json(tmp_path):
    tests = [{"input": [[2, 7], {"k": 9}], "output": [[0, 1], {"1": [2]}]}]
    (tmp_path / "rows.jsonl").write_text(json.dumps(MADE | {"tests": tests}))
    task = load_task(TaskSettings(name=str(tmp_path / "rows.jsonl"), score="tests"), "evaluation.tasks.0")
    assert await task.grade(0, "f = lambda a, b: ((0, 1), {1: (2,)})") == 1
    assert await task.grade(0, "f = lambda a, b: ((0, 1), {1: {2}})") == 0


async def test_a_policy_is_paid_for_programs_that_pass(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    programs = dict(zip((row["question"] for row in ROWS), RIGHT, strict=True))

    def answer(messages, seed):
        question = messages[-1]["content"].partition("\n")[0]
        return f"```python\n{programs[question]}\n```" if "f(x, y)" not in question else "f"

    settings = QuestionsSettings(
        questions=str(tmp_path / "rows.jsonl"), score="tests", batch_size=8, answers_per_question=2
    )
    arena = QuestionArena(MockInferenceClient(answer), settings)
    rollouts = [result.rollout for result in await arena.generate_rollouts(arena.get_batch())]
    assert rollouts
    for rollout in rollouts:
        assert rollout.rewards == {"Solver": float("f(x, y)" not in rollout.artifact.question)}
