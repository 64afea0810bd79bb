"""Tasks: where their questions come from, how they are asked, and what is counted."""

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.config.questions import TaskSettings
from sparring.core import Arena, CallSettings, ContextError, InputError, MockInferenceClient
from sparring.core.confidence_intervals import paired_interval
from sparring.evaluation.figures import ACCURACY, CHANGE, CUT, SCORE, UNREAD, figures_of
from sparring.evaluation.results import read_evaluation, write_evaluation
from sparring.evaluation.task_result import TaskResult
from sparring.evaluation.tasks import ask_task
from sparring.programs.task_sources import HUB_COLUMNS, READ_BY_TEXT, load_task, questions_of_rows
from sparring.programs.tasks import ShortAnswers, TaskQuestion

CALLS = CallSettings(temperature=0.0, max_tokens=16)


def task_of(name, **settings):
    return load_task(TaskSettings(name=str(name), **settings), "evaluation.tasks.0.name")


def ask(task, answer, *, arena=None, seed=0):
    """Ask a task; ``answer`` answers a prompt."""
    client = MockInferenceClient(lambda messages, seed: answer(messages[-1]["content"]))
    asking = ask_task(arena or Arena(client, retries=0), task, "sums", "m", CALLS, seed)
    return asyncio.run(asking)


def sums(count=6):
    return ShortAnswers([TaskQuestion(f"What is {one} + 1?", str(one + 1)) for one in range(count)])


def test_the_bundled_questions_differ_and_their_own_answers_are_right():
    task = task_of("arithmetic")
    assert len({one.text for one in task.questions}) == 64
    truths = {task.prompt(number): one.answer for number, one in enumerate(task.questions)}
    result, _ = ask(task, lambda prompt: f"Well.\nThe answer is: {truths[prompt]}")
    assert (result.right, result.unread, result.cut) == (64, 0, 0)
    result, _ = ask(task, lambda prompt: f"{truths[prompt]} plus one is {int(truths[prompt]) + 1}.")
    assert (result.right, result.unread) == (0, 0)


@given(st.lists(st.sampled_from(["right", "wrong", "nothing", "failed"]), min_size=1, max_size=12))
def test_every_question_is_counted_once(kinds):
    task = sums(len(kinds))
    said = {"right": "The answer is {}", "wrong": "The answer is {}1", "nothing": "I do not know"}

    def answer(prompt):
        number = int(prompt.split()[2])
        if kinds[number] == "failed":
            raise ContextError("too long")
        return said[kinds[number]].format(number + 1)

    result, rollouts = ask(task, answer)
    assert result.right == kinds.count("right")
    assert result.unread == kinds.count("nothing")
    assert len(result.answered) == len(kinds) - kinds.count("failed")
    assert result.failure_reasons == ({"too long": kinds.count("failed")} if "failed" in kinds else {})
    assert [rollout.artifact.number for rollout in rollouts] == [*range(len(kinds))]
    assert result.accuracy.mid == (result.right / len(result.answered) if result.answered else 0)


def test_only_what_is_said_is_read():
    thought = "<think>The answer is: 3</think>"
    result, _ = ask(sums(1), lambda prompt: f"{thought}The answer is: 1")
    assert result.right == 1
    result, _ = ask(sums(1), lambda prompt: "<think>The answer is: 1</think>no")
    assert (result.right, result.unread) == (0, 1)


def test_answers_that_come_in_any_order_give_the_same_result():
    class Late(MockInferenceClient):
        async def complete(self, messages, *args, seed=None, **options):
            for _ in range(random.Random(seed).randrange(5) if self.latency else 0):
                await asyncio.sleep(0)
            return await super().complete(messages, *args, seed=seed, **options)

    def answer(messages, seed):
        return f"The answer is: {random.Random(seed).randrange(3)}"

    task = ShortAnswers([TaskQuestion(f"Is {one} even?", str(one % 2)) for one in range(20)])
    found = [
        ask(task, None, arena=Arena(Late(answer, latency), max_calls=calls, retries=0))[0]
        for latency, calls in ((0.0, 1), (1e-9, 20))
    ]
    assert found[0] == found[1]
    assert found[0].right


def test_a_file_of_ones_own(tmp_path):
    rows = [{"question": f"How much is {one}?", "answer": one} for one in range(50)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    every, few, again = (task_of(tmp_path / "own.jsonl", questions=count) for count in (200, 10, 10))
    assert [one.answer for one in every.questions] == [str(one) for one in range(50)]
    assert few.questions == again.questions
    assert set(few.questions) < set(every.questions)
    assert few.questions != every.questions[:10]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 1 of .* is not JSON"),
        ("[]", "line 1 of .* is not an object"),
        ('{"question": "Why?"}', "line 1 of .* has no answer"),
        ('{"question": "", "answer": "4"}', "question in line 1 of .* is not text"),
        ('{"question": 4, "answer": "4"}', "question in line 1 of .* is not text"),
        ('{"question": "Why?", "answer": true}', "answer in line 1 of .* is not text"),
        ('{"question": "Why?", "answer": NaN}', "answer in line 1 of .* is not text"),
        ('{"question": "Why?", "answer": -Infinity}', "answer in line 1 of .* is not text"),
        ('{"question": "a\\ud800", "answer": "4"}', "question in line 1 of .* is not text"),
        ("", "own.jsonl has no question"),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_one_line(line, problem, tmp_path):
    (tmp_path / "own.jsonl").write_text(line)
    with pytest.raises(InputError, match=problem) as refused:
        task_of(tmp_path / "own.jsonl")
    assert "\n" not in str(refused.value)


def test_the_answers_of_datasets_are_read_from_their_solutions():
    rows = [("row 0", {"question": "How many?", "answer": "She has 48/2 = <<48/2=24>>24.\n#### 1,024"})]
    assert questions_of_rows(rows, "gsm8k", "f", HUB_COLUMNS["gsm8k"]) == [TaskQuestion("How many?", "1,024")]
    rows = [("row 0", {"problem": "What is $x$?", "answer": "\\frac{1}{2}", "solution": "..."})]
    (question,) = questions_of_rows(rows, "math500", "f", HUB_COLUMNS["math500"])
    result, _ = ask(ShortAnswers([question]), lambda prompt: "Hence $x = \\boxed{\\tfrac12}$.")
    assert result.right == 1


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    result, _ = ask(sums(), lambda prompt: "The answer is: 3")
    path = write_evaluation(tmp_path, 4, "sums", result)
    assert read_evaluation(path) == (4, result)
    assert json.loads(path.read_text())["right"] == 1


def result_of(scores, **more):
    return TaskResult(task="sums", model="m", temperature=0, max_tokens=8, seed=0, scores=scores, **more)


def test_the_change_is_that_of_the_same_questions():
    first = result_of([0.0, 0.0, 1.0, 1.0, None, 0.0])
    last = result_of([1.0, 0.0, 1.0, 0.0, 1.0, 1.0]).beside(first)
    assert (last.compared, last.gained, last.lost) == (5, 2, 1)
    difference, changed = 1 / 7, 5 / 7
    spread = 1.959964 * ((changed - difference**2) / 7) ** 0.5
    assert last.change == pytest.approx((difference - spread, 0.2, difference + spread))
    assert result_of([1.0]).beside(first).compared == 0


def test_a_change_of_nothing_is_not_known_exactly():
    result = result_of([1.0] * 64).beside(result_of([1.0] * 64))
    assert result.change.low < result.change.mid == 0 < result.change.high


@given(gained=st.integers(0, 100), lost=st.integers(0, 100), other=st.integers(0, 100))
def test_the_interval_of_a_change_encloses_it(gained, lost, other):
    low, share, high = paired_interval(gained, lost, gained + lost + other)
    assert -1 <= low <= share <= high <= 1
    assert low < high


def test_a_result_gives_the_figures_that_it_has():
    found = {one.name.measure: one for one in figures_of(result_of([0.0, 1.0, 0.5, None], unread=1, cut=2))}
    assert found.keys() == {ACCURACY, SCORE, UNREAD, CUT}
    assert (found[ACCURACY].value, found[ACCURACY].count) == (pytest.approx(1 / 3), 3)
    assert found[SCORE].value == pytest.approx(0.5)
    assert found[CUT].smaller_is_better
    after = figures_of(result_of([1.0, 1.0]).beside(result_of([0.0, 1.0])))
    assert {one.name.measure: one.value for one in after}[CHANGE] == 0.5


@pytest.fixture(scope="module")
def gym():
    return pytest.importorskip("reasoning_gym")


RUNS = "__import__('pathlib').Path('was-run').touch()"


def test_generated_questions_are_the_same_every_time(gym):
    first, again, fewer = (task_of("reasoning_gym:chain_sum", questions=one) for one in (8, 8, 5))
    assert first.questions == again.questions
    assert first.questions[:5] == fewer.questions
    truths = {first.prompt(number): one.answer for number, one in enumerate(first.questions)}
    result, _ = ask(first, lambda prompt: f"Let me see. <answer>{truths[prompt]}</answer>")
    assert result.right == 8
    result, _ = ask(first, lambda prompt: "<answer>I give up</answer>")
    assert (result.right, len(result.answered)) == (0, 8)


def test_no_answer_is_run_by_a_scorer(gym, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compared = gym.dataset.ProceduralDataset.score_answer
    kinds = gym.factory.DATASETS
    names = {name for name, (kind, _) in kinds.items() if kind.score_answer is compared} | READ_BY_TEXT
    assert names <= kinds.keys()
    for name in sorted(names):
        task = task_of(f"reasoning_gym:{name}", questions=2)
        assert task.score(0, task.questions[0].answer) == 1, name
        for text in (RUNS, f"[{RUNS}]", f"[[{RUNS}]]", f"({RUNS})", "1e999999999", "9" * 10_000, "\x00"):
            assert 0 <= task.score(0, text) < 1, (name, text)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["spiral_matrix", "countdown", "n_queens", "coin_flip"])
def test_a_dataset_whose_scorer_runs_answers_is_refused(name, gym):
    with pytest.raises(InputError, match="is scored by running the answer"):
        task_of(f"reasoning_gym:{name}")


def test_an_unknown_dataset_is_refused_with_a_close_one(gym):
    with pytest.raises(InputError, match="Did you mean reasoning_gym:chain_sum"):
        task_of("reasoning_gym:chain_sums")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (1e-05, "0.00001"),
        (1.5e-7, "0.00000015"),
        (1e16, "10,000,000,000,000,000"),
        (2.0, "2"),
        (-3, "-3"),
        (7, "7.0"),
    ],
)
def test_an_answer_that_is_a_number_is_that_number_however_the_file_writes_it(answer, said, tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "How much?", "answer": answer}))
    task = task_of(tmp_path / "own.jsonl")
    for stated in (f"The answer is: {said}", f"It is {said}"):
        assert task.score(0, task.read(0, stated)) == 1
    assert task.score(0, "8") == 0


def test_an_answer_of_many_digits_is_read(tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "How much?", "answer": 10**400}))
    assert task_of(tmp_path / "own.jsonl").questions[0].answer == str(10**400)


def test_a_score_that_takes_other_arguments_is_refused_at_once(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"question": "Why?", "answer": "4"}')
    (tmp_path / "own.py").write_text("def score(said):\n    return 1\n")
    with pytest.raises(InputError, match=r"score does not take \(said, row\). Let it take both"):
        task_of(tmp_path / "own.jsonl", score=f"{tmp_path / 'own.py'}:score")


def test_a_task_may_have_a_score_and_columns_of_ones_own(tmp_path):
    rows = [{"asked": f"Say {letter}.", "wanted": letter} for letter in "ab"]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.py").write_text("def score(said, row):\n    return said.count(row['wanted']) / 2\n")
    columns = {"question": "asked", "answer": "wanted"}
    task = task_of(tmp_path / "own.jsonl", columns=columns, score=f"{tmp_path / 'own.py'}:score")
    result, _ = ask(task, lambda prompt: "ab" if prompt == "Say a." else "bb")
    assert (result.scores, result.right) == ([0.5, 1.0], 1)
