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
    ],
)
def test_an_answer_is_the_last_block(said, read, task):
    assert task.read(0, said) == read


WRONG = [
    [],
    "assert f(2) == 4",
    ["f(2) == 4"],
    ["assert f(2)"],
    ["assert f(2) == g(2)"],
    ["assert f(2) < 4"],
    ["assert f(2) == 4; x = 1"],
    ["assert ("],
    [{"input": [2], "output": 4}],
    [{"input": 2}],
    [4],
]


@pytest.mark.parametrize("tests", WRONG)
def test_tests_that_could_be_cheated_or_read_in_two_ways_are_refused(tests, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "q", "answer": "a", "tests": tests}))
    settings = TaskSettings(name=str(tmp_path / "rows.jsonl"), score="tests")
    with pytest.raises(InputError, match=r'Write "tests": \["assert f\(2\) == 4"\]'):
        load_task(settings, "evaluation.tasks.0")


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
