"""Where questions come from: this package, a file, the Hugging Face Hub, reasoning-gym, functions."""

import inspect
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from itertools import islice
from typing import Any

from sparring.config.questions import (
    BUNDLED_TASKS,
    EXACT,
    FILE_END,
    GENERATED,
    TASK_SPLIT,
    TESTS,
    TRAINED_SPLIT,
    QuestionColumns,
    QuestionSource,
    SplitQuestions,
    TaskSettings,
)
from sparring.core import InputError, derive_seed
from sparring.core.answers import last_number, number_of, stated_answer, stated_number
from sparring.core.errors import check_installed, first_line, imported, shown
from sparring.core.own_code import is_class_path, name_of, own_code, own_function
from sparring.core.rows import Rows, rows_of_dataset, rows_of_file, words_of
from sparring.programs.code.tasks import ProgramTask, tests_of
from sparring.programs.tasks import OwnScores, ShortAnswers, Task, TaskQuestion, hold_out

SEED = 0
"""Decides which questions are asked. The run's seed does not, so that runs can be compared."""
GENERATED_COUNT = 1000
"""How many questions are generated where the settings do not say."""
COLUMNS = QuestionColumns()
_FORM = 'Write {"question": "What is 2 + 2?", "answer": "4"}'


HUB_COLUMNS = {"gsm8k": COLUMNS, "math500": QuestionColumns(question="problem")}
"""The columns of grade-school problems (Cobbe et al., 2021), and of 500 of the problems of MATH (Hendrycks et
al., 2021; Lightman et al., 2023)."""


def load_task(settings: TaskSettings, field: str) -> Task:
    """Return a task with its questions; ``field`` is its name in errors.

    Raises InputError: a package is missing, or the questions cannot be read.
    """
    seed = derive_seed(SEED, "task", settings.name.removeprefix(GENERATED).rpartition("/")[2])
    by_tests = settings.score == TESTS
    task = _task_of(settings, settings.questions, seed, TASK_SPLIT, field, by_tests=by_tests)
    return scored(task, settings.score, field)


def load_questions(settings: SplitQuestions, field: str, *, by_tests: bool = False) -> Task:
    """Return the questions of a program, the held-out ones included; see :func:`load_task`."""
    seed = derive_seed(settings.seed, "questions")
    return _task_of(settings, settings.count, seed, TRAINED_SPLIT, field, by_tests=by_tests)


def load_split(
    settings: SplitQuestions, field: str, score: str | None = None
) -> tuple[Task, list[int], list[int]]:
    """Return a program's questions with their score, and the numbers of those to train on and held out.

    ``field`` is the source's name in errors, whose field ``name`` is the source itself.
    """
    task = scored(load_questions(settings, f"{field}.name", by_tests=score == TESTS), score, "program.score")
    texts = [question.text for question in task.questions]
    return task, *hold_out(texts, settings.test_size, settings.seed, field)


def check_task(settings: TaskSettings, field: str) -> str:
    """Check a task as far as that needs no network; return a line about it."""
    if settings.is_dataset:
        check_installed(field, "datasets", "datasets")
        return f"task {settings.label} (not looked at: the run finds it in the cache or downloads it)"
    return f"task {settings.label}: {len(load_task(settings, field).questions)} questions"


def _task_of(
    settings: QuestionSource, count: int | None, seed: int, split: str, field: str, *, by_tests: bool
) -> Task:
    """Return ``count`` questions, or all of them, made or drawn by ``seed``.

    ``split`` is the part of a dataset if the settings name none. ``by_tests``, a row needs no answer.
    """
    name, columns = settings.name, settings.columns or COLUMNS
    if name.startswith(GENERATED):
        return GeneratedTask(name.removeprefix(GENERATED), count or GENERATED_COUNT, seed, field)
    if name in BUNDLED_TASKS:
        questions = sums() if name == "sums" else bundled_questions()
    elif is_class_path(name):
        rows = _rows_of_function(name, count or GENERATED_COUNT, seed, field)
        questions = questions_of_rows(rows, name_of(name), field, columns, by_tests=by_tests)
    elif name.endswith(FILE_END):
        questions = questions_of_rows(rows_of_file(name, field), name, field, columns, by_tests=by_tests)
    else:
        dataset, subset = settings.dataset
        rows = rows_of_dataset(dataset, settings.split or split, field, subset)
        columns = settings.columns or HUB_COLUMNS.get(name, COLUMNS)
        questions = questions_of_rows(rows, dataset, field, columns, by_tests=by_tests)
    return ShortAnswers(_chosen(questions, count, seed))


def scored(task: Task, score: str | None, field: str) -> Task:
    """Return a task with the score that its settings name."""
    if score is None:
        return task
    if score == EXACT:
        return ShortAnswers(task.questions)
    if score == TESTS:
        return ProgramTask(task.questions, field)
    return OwnScores(task.questions, _taking(score, field, "said", "row"), name_of(score))


def _taking(path: str, field: str, *names: str) -> Callable[..., object]:
    """Return a function of your own; raise an InputError unless it takes so many arguments."""
    function = own_function(path, field)
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        problem = f"{name_of(path)} does not take ({', '.join(names)})"
        raise InputError(field, problem, "Let it take both") from error
    return function


def _rows_of_function(path: str, count: int, seed: int, field: str) -> Rows:
    """Return what a function of your own returns for a number of questions and a seed."""
    function, name = _taking(path, field, "count", "seed"), name_of(path)
    with own_code(f"{name} failed", field):
        rows = function(count, seed)
        found = list(_at_most(count, rows)) if isinstance(rows, Iterable) else None
    if found is None:
        raise InputError(field, f"{name} returned {shown(rows)}, not rows", "Return a list of dictionaries")
    return [(f"entry {number}", row) for number, row in enumerate(found)]


def _at_most(count: int, rows: Iterable[Any]) -> Iterable[Any]:
    """Return rows that have an end: those of a generator need not have one."""
    return islice(rows, count) if isinstance(rows, Iterator) else rows


def bundled_questions() -> list[TaskQuestion]:
    """Return the 64 questions of ``arithmetic``: half of them calculations, half of them in words."""
    text = files("sparring.programs").joinpath("arithmetic.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [TaskQuestion(row["question"], row["answer"], row) for row in rows]


def sums() -> list[TaskQuestion]:
    """Return the 400 questions of ``sums``."""
    numbers = range(1, 21)
    return [
        TaskQuestion(f"What is {one} + {other}?", str(one + other)) for one in numbers for other in numbers
    ]


def questions_of_rows(
    rows: Rows, source: str, field: str, columns: QuestionColumns = COLUMNS, *, by_tests: bool = False
) -> list[TaskQuestion]:
    """Return the questions of rows.

    An answer is a text or a number. Of a solution that states its answer by a usual mark, that is the answer.
    ``by_tests``, a row has tests and needs no answer.
    """
    found = []
    for place, row in rows:
        where = f"{place} of {source}"
        if not isinstance(row, dict):
            raise InputError(field, f"{where} is not an object", _FORM)
        question = _text(row, columns.question, where, field)
        if by_tests:
            tests_of(row, where, field)
            found.append(TaskQuestion(question, str(row.get(columns.answer) or ""), row))
            continue
        answer = _text(row, columns.answer, where, field, or_number=True)
        found.append(TaskQuestion(question, stated_answer(answer) or answer, row))
    if not found:
        raise InputError(field, f"{source} has no question", _FORM)
    return found


def _text(row: dict[str, Any], name: str, where: str, field: str, *, or_number: bool = False) -> str:
    if name not in row:
        fix = _FORM if not row else f"It has: {', '.join(map(str, row))}; name them in columns"
        raise InputError(field, f"{where} has no {name}", fix)
    text = words_of(row[name], or_number=or_number)
    if not text:
        raise InputError(field, f"{name} in {where} is not text", _FORM)
    return text


def _chosen(questions: list[TaskQuestion], count: int | None, seed: int) -> list[TaskQuestion]:
    """Return ``count`` of the questions, spread over all by a draw that is the same for every run."""
    if count is None or count >= len(questions):
        return questions
    chosen = random.Random(seed).sample(range(len(questions)), count)
    return [questions[place] for place in sorted(chosen)]


READ_BY_TEXT = {
    *("ab", "calendar_arithmetic", "chain_sum", "circuit_logic", "color_cube_rotation", "decimal_arithmetic"),
    *("decimal_chain_sum", "dice", "family_relationships", "gsm_symbolic", "letter_jumble", "mini_sudoku"),
    *("needle_haystack", "number_format", "palindrome_generation", "path_star", "products"),
    *("rectangle_count", "sentence_reordering", "spell_backward", "sudoku", "time_intervals"),
    *("word_sorting", "zebra_puzzles"),
}
"""The datasets of reasoning-gym 0.1.25 with scorers of their own that only compare texts and numbers.

Others run an answer as Python (``eval``, and ``parse_expr`` of SymPy), may compute for hours over a number of
many digits, or take a wrong answer for a right one.
"""
_IN_TAGS = "Give the final answer between <answer> and </answer>."


class GeneratedTask(Task):
    """Questions that reasoning-gym generates, with its own scores.

    An answer is what stands between ``<answer>`` and ``</answer>``, or is stated in another usual way, or
    else all that is said; where the right answer is a number, it is the number in that. Only scorers that do
    not run the model's text are used.
    """

    def __init__(self, name: str, count: int, seed: int, field: str) -> None:
        gym = imported(field, "tasks", "reasoning_gym")
        known = _datasets(gym)
        if name not in known:
            close = get_close_matches(name, known, n=1)
            fix = f"Did you mean {GENERATED}{close[0]}?" if close else f"Use one of {', '.join(known)}"
            reason = "is scored by running the answer" if name in gym.factory.DATASETS else "is not there"
            raise InputError(field, f"the dataset {name} of reasoning-gym {reason}", fix)
        try:
            self.dataset = gym.create_dataset(name, seed=seed % 2**31, size=count)
            self.entries = [self.dataset[place] for place in range(count)]
        except Exception as error:  # a library's own code, which raises any kind
            problem = f"reasoning-gym cannot generate {name}: {first_line(error)}"
            raise InputError(field, problem, "Name another") from error
        self.questions: Sequence[TaskQuestion] = [
            TaskQuestion(str(one["question"]), str(one["answer"]), one) for one in self.entries
        ]

    def prompt(self, number: int) -> str:
        """Return the question and the form of the answer."""
        return f"{self.questions[number].text}\n\n{_IN_TAGS}"

    def read(self, number: int, said: str) -> str | None:
        """Return the answer that is stated, or all that is said, or only the number in these."""
        stated = stated_answer(said)
        if number_of(self.questions[number].answer) is None:
            return stated or said.strip() or None
        return (stated_number(stated) or stated) if stated else last_number(said)

    def score(self, number: int, answer: str) -> float:
        """Return the library's score; 0 if its scorer raises an error on the answer."""
        try:
            score = float(self.dataset.score_answer(answer, self.entries[number]))
        except Exception:  # noqa: BLE001 - a scorer may raise anything on a text that it does not expect
            return 0.0
        return min(1.0, max(0.0, score))


def _datasets(gym: Any) -> list[str]:
    """Return the names of the datasets whose scorers only compare texts."""
    compared = gym.dataset.ProceduralDataset.score_answer
    return sorted(
        name
        for name, (kind, _) in gym.factory.DATASETS.items()
        if kind.score_answer is compared or name in READ_BY_TEXT
    )
