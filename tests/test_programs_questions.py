"""Questions that are trained on: their sources, their scores, what is held out, and a whole run."""

import asyncio
import json
from collections import Counter

import pytest
from pydantic import ValidationError

from program_runs import SMALL, logged, run
from sparring.config import load_config
from sparring.config.programs import ProofsSettings, ProposerSolverSettings, QuestionsSettings
from sparring.config.questions import SplitQuestions, TaskSettings
from sparring.core import EpisodeError, InputError, MockInferenceClient
from sparring.evaluation.results import read_evaluation
from sparring.programs.program_arena import QuestionArena
from sparring.programs.proofs.arena import ProofArena
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.programs.task_sources import load_questions, scored

OWN = """
def sums(count, seed):
    return [{"question": f"What is {n} + {seed % 1000}?", "answer": n + seed % 1000} for n in range(count)]

def share_of_digits(said, row):
    return sum(letter.isdigit() for letter in said) / len(said)

def remembers(said, row):
    return float(said == f"{row['problem']} {row['level']}")

def three(said, row):
    return 3

def fails(said, row):
    return row["nothing"]

def nothing(count, seed):
    return []

def endless(count, seed):
    number = 0
    while True:
        number += 1
        yield {"question": f"What is {number} + 0?", "answer": number}

def broken(count, seed):
    raise ValueError("as written")
"""


@pytest.fixture
def own(tmp_path):
    """Return the name of a function in a file of one's own."""
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


def write_problems(directory, count=20):
    rows = [
        {"problem": f"Problem {n}?", "level": n, "solution": f"We see.\n#### {n * 1000:,}"}
        for n in range(count)
    ]
    path = directory / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


PROBLEMS = {"question": "problem", "answer": "solution"}


def arena_of(answer, seed=0, score=None, batch_size=8, answers=4, **questions):
    asked = {"batch_size": batch_size, "answers_per_question": answers}
    settings = QuestionsSettings(questions=SplitQuestions(**questions), score=score, **asked)
    client = MockInferenceClient(lambda messages, seed: answer(messages[-1]["content"], seed))
    return QuestionArena(client, settings, seed=seed)


def play(arena):
    _, results = asyncio.run(arena.play_step())
    return [one.rollout for one in results]


def test_columns_are_those_of_the_configuration_and_solutions_state_their_answers(tmp_path):
    path = write_problems(tmp_path)
    task = load_questions(SplitQuestions(name=path, columns=PROBLEMS), "f")
    assert [(one.text, one.answer) for one in task.questions[:2]] == [
        ("Problem 0?", "0"),
        ("Problem 1?", "1,000"),
    ]
    with pytest.raises(InputError, match=r"has no question\. It has: problem, level, solution"):
        load_questions(SplitQuestions(name=path), "f")


def test_a_directory_is_read_as_its_file_is(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    path = write_problems(tmp_path / "data")
    given = [SplitQuestions(name=name, columns=PROBLEMS) for name in (path, str(tmp_path / "data"))]
    of_file, of_directory = (load_questions(one, "f").questions for one in given)
    assert of_file == of_directory


@pytest.mark.parametrize("split", ["train", "test"])
def test_what_save_to_disk_wrote_is_read_as_its_file_is(tmp_path, split):
    datasets = pytest.importorskip("datasets")
    path = write_problems(tmp_path)
    saved = datasets.Dataset.from_json(path, cache_dir=str(tmp_path / "cache"))
    saved.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({split: saved}).save_to_disk(tmp_path / "splits")
    names = [path, str(tmp_path / "one"), str(tmp_path / "splits")]
    given = [SplitQuestions(name=name, columns=PROBLEMS, split=split) for name in names]
    of_file, of_one, of_splits = (load_questions(one, "f").questions for one in given)
    assert of_file == of_one == of_splits
    with pytest.raises(InputError, match=f"has no split 'dev'. It has: {split}"):
        load_questions(given[2].model_copy(update={"split": "dev"}), "f")


@pytest.mark.parametrize("field", ["test_size", "count", "name"])
def test_a_wrong_field_of_a_table_that_has_the_name_of_its_type_is_named_whole(field, tmp_path):
    (tmp_path / "q.toml").write_text(
        '[program]\ntype = "questions"\n\n[program.questions]\nname = "arithmetic"\n'
    )
    with pytest.raises(InputError) as caught:
        load_config(str(tmp_path / "q.toml"), {f"program.questions.{field}": "-1"})
    assert caught.value.field == f"program.questions.{field}"


def test_an_answer_earns_its_score_against_the_others_to_its_question(tmp_path):
    def answer(prompt, seed):
        number = int(prompt.split()[1].rstrip("?"))
        return f"The answer is: {number * 1000 if seed % 2 else -1}"

    rollouts = play(arena_of(answer, name=write_problems(tmp_path), columns=PROBLEMS))
    assert [*Counter(one.artifact.number for one in rollouts).values()] == [4, 4]
    for one in rollouts:
        assert one.rewards["Solver"] == float(one.extras["read"] != "-1")
    for number in {one.artifact.number for one in rollouts}:
        advantages = [one.advantages["Solver"] for one in rollouts if one.artifact.number == number]
        assert len(advantages) == 4
        assert sum(advantages) == pytest.approx(0)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_question_is_asked_once_before_one_is_asked_again_and_held_out_ones_never(tmp_path, seed):
    arena = arena_of(
        lambda prompt, _: "", seed, batch_size=6, answers=2, name=write_problems(tmp_path), columns=PROBLEMS
    )
    asked = []
    for arena.step_num in range(1, 17):
        asked += [one.artifact.number for one in arena.get_batch()[::2]]
    trained = {*range(20)} - {*arena.held_out}
    assert len(arena.held_out) == 4
    rounds = [asked[place : place + 16] for place in range(0, 48, 16)]
    assert [{*one} for one in rounds] == [trained] * 3
    assert rounds[0] != rounds[1]


def test_a_run_asks_every_question_in_its_first_updates(model, tmp_path, own):
    own("sums")
    (tmp_path / "own.toml").write_text(
        '[program]\ntype = "questions"\nbatch_size = 4\nanswers_per_question = 2\n'
        'questions = {name = "own.py:sums", count = 10}\n'
    )
    fields = SMALL | {"model.name": str(model), "learning.steps": "4", "evaluation.every": "0"}
    run(load_config(str(tmp_path / "own.toml"), fields), tmp_path / "run")
    asked = Counter(one.artifact["question"] for one in logged(tmp_path / "run"))
    assert (len(asked), {*asked.values()}) == (8, {2})


def test_a_score_of_ones_own_reads_whatever_is_said_so_nothing_has_to_be_stated(tmp_path, own):
    def answer(prompt, seed):
        return "so"

    stated = asyncio.run(arena_of(answer, name=write_problems(tmp_path), columns=PROBLEMS).evaluate())
    scored = arena_of(answer, name=write_problems(tmp_path), columns=PROBLEMS, score=own("remembers"))
    said = asyncio.run(scored.evaluate())
    assert set(stated) == {"held-out score", "held-out answer stated"}
    assert set(said) == {"held-out score", "held-out answer not empty"}
    assert sum(stated["held-out answer stated"]) == 0
    assert sum(said["held-out answer not empty"]) == len(scored.held_out)


def test_only_held_out_questions_measure(tmp_path):
    prompts = []

    def answer(prompt, seed):
        prompts.append(prompt.partition("\n")[0])
        return "The answer is: 3000"

    arena = arena_of(answer, name=write_problems(tmp_path), columns=PROBLEMS, test_size=0.5)
    measures = asyncio.run(arena.evaluate())
    assert len(measures["held-out score"]) == 10
    assert sum(measures["held-out score"]) == (3 in arena.held_out)
    held_out = {*prompts}
    prompts.clear()
    for _ in range(10):
        play(arena)
    assert not held_out & {*prompts}


def test_a_score_of_ones_own_sees_what_was_said_and_the_row(tmp_path, own):
    def answer(prompt, seed):
        return f"{prompt} {prompt.split()[1].rstrip('?')}" if seed % 2 else prompt

    path = write_problems(tmp_path)
    rollouts = play(arena_of(answer, name=path, columns=PROBLEMS, score=own("remembers")))
    said = [one.steps[0].completion_text for one in rollouts]
    assert [one.rewards["Solver"] for one in rollouts] == [float(not text.endswith("?")) for text in said]
    assert {one.rewards["Solver"] for one in rollouts} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        ("three", "what three returned is 3, not a number from 0 to 1"),
        ("fails", r"fails failed: KeyError\('nothing'\) in own.py, line"),
    ],
)
def test_a_score_that_is_none_costs_its_episode_and_says_why(own, score, reason):
    arena = arena_of(lambda prompt, _: "so", name=own("sums"), count=10, score=own(score))
    arena.retries = 0
    rollouts = play(arena)
    assert all(one.error is not None for one in rollouts)
    with pytest.raises(EpisodeError, match=reason):
        raise EpisodeError(str(rollouts[0].error))


def test_a_function_makes_questions_by_the_seed_of_the_questions(own):
    given = [SplitQuestions(name=own("sums"), count=5, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (load_questions(one, "f").questions for one in given)
    assert len(first) == 5
    assert first == again
    assert first != other


def test_a_generator_without_an_end_makes_as_many_questions_as_asked(own):
    questions = load_questions(SplitQuestions(name=own("endless"), count=5), "f").questions
    assert [one.answer for one in questions] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "nothing has no question"),
        ("broken", r"broken failed: ValueError\('as written'\)"),
        ("three", "three returned 3, not rows"),
        ("missing", "has no function named 'missing'"),
    ],
)
def test_a_function_that_gives_no_questions_is_refused_in_one_line(own, name, problem):
    with pytest.raises(InputError, match=problem) as refused:
        load_questions(SplitQuestions(name=own(name)), "f")
    assert "\n" not in str(refused.value)


def test_generated_questions_have_the_score_of_their_library_unless_another_is_named():
    pytest.importorskip("reasoning_gym")
    library, exact = (
        scored(load_questions(SplitQuestions(name="reasoning_gym:chain_sum", count=4), "f"), score, "f")
        for score in (None, "exact")
    )
    assert library.questions == exact.questions
    assert "<answer>" in library.prompt(0)
    assert "The answer is:" in exact.prompt(0)
    for task in (library, exact):
        assert task.score(0, task.questions[0].answer) == 1
    other = load_questions(SplitQuestions(name="reasoning_gym:chain_sum", count=4, seed=1), "f")
    assert other.questions != library.questions


def test_a_proposer_sees_no_held_out_question_and_they_measure_its_solver(own):
    given = {"name": own("sums"), "count": 10, "test_size": 0.3}
    client = MockInferenceClient(lambda messages, seed: "The answer is: 1")
    arena = ProposerSolverArena(client, ProposerSolverSettings(questions=given, evaluation_proposals=1))
    seen, held_out = ({one["question"] for one in part} for part in (arena.questions, arena.held_out))
    assert (len(seen), len(held_out), len(seen | held_out)) == (7, 3, 10)
    assert len(asyncio.run(arena.evaluate())["solver exact match"]) == 3


def test_claims_about_questions_are_as_often_wrong_as_right(own):
    given = {"type": "questions", "name": own("sums"), "count": 20}
    arena = ProofArena(MockInferenceClient(lambda messages, seed: ""), ProofsSettings(claims=given))
    claims = [*arena.claims.values(), *arena.held_out]
    assert Counter(one.y for one in claims) == {1: 20, 0: 20}
    truths = {one.question: one.claim for one in claims if one.y}
    assert all((one.claim == truths[one.question]) == bool(one.y) for one in claims)


def test_what_is_trained_on_is_no_task(tmp_path):
    config = tmp_path / "own.toml"

    def load(trained, asked):
        program = f'[program]\ntype = "questions"\nquestions = "{trained}"\n'
        config.write_text(f'{program}[evaluation]\ntasks = ["{asked}"]\n')
        return load_config(str(config), {}).evaluation.tasks

    with pytest.raises(InputError, match="is what the program learns from"):
        load("problems.jsonl", tmp_path / "problems.jsonl")
    with pytest.raises(InputError, match="is what the program learns from"):
        load("arithmetic", "arithmetic")
    assert load("gsm8k", "gsm8k")  # its other split
    assert load("arithmetic", "problems.jsonl")


@pytest.mark.parametrize(
    ("trained", "asked", "are_the_same"),
    [
        ({"name": "openai/gsm8k", "subset": "main", "split": "test"}, {"name": "gsm8k"}, True),
        ({"name": "gsm8k"}, {"name": "openai/gsm8k", "subset": "main", "split": "train"}, True),
        ({"name": "gsm8k", "split": "test"}, {"name": "openai/gsm8k", "subset": "socratic"}, False),
        ({"name": "math500"}, {"name": "math500"}, False),
    ],
)
def test_a_dataset_is_known_by_both_of_its_names(trained, asked, are_the_same):
    assert SplitQuestions(**trained).has_questions_of(TaskSettings(**asked)) == are_the_same


def test_what_claims_are_made_of_is_no_task(tmp_path):
    (tmp_path / "own.toml").write_text(
        '[program]\ntype = "proofs"\nclaims = {type = "questions", name = "arithmetic"}\n'
        '[evaluation]\ntasks = ["arithmetic"]\n'
    )
    with pytest.raises(InputError, match="arithmetic is what the program learns from"):
        load_config(str(tmp_path / "own.toml"), {})


@pytest.mark.parametrize("name", ["gsm", "reasoning_gym:", "my.py", "data"])
def test_a_name_that_can_be_no_source_is_refused(name):
    with pytest.raises(ValidationError, match="there is no task"):
        SplitQuestions(name=name)


def test_a_run_trains_on_questions_and_measures_the_held_out_ones(model, tmp_path, own):
    own("sums")
    (tmp_path / "own.toml").write_text(
        '[program]\ntype = "questions"\nbatch_size = 8\nanswers_per_question = 4\n'
        'questions = {name = "own.py:sums", count = 10}\nscore = "own.py:share_of_digits"\n'
    )
    config = load_config(
        str(tmp_path / "own.toml"), SMALL | {"model.name": str(model), "learning.steps": "2"}
    )
    printed = run(config, tmp_path / "run")
    assert "trained on: 16 answers" in printed
    rollouts = logged(tmp_path / "run")
    assert rollouts
    for one in rollouts:
        text = one.steps[0].completion_text.strip()
        assert one.steps[0].reward == pytest.approx(sum(map(str.isdigit, text)) / len(text) if text else 0)
    step, measured = read_evaluation(
        next((tmp_path / "run" / "evaluation").glob("step-000002-held-out-score*.json"))
    )
    assert (step, len(measured.values)) == (2, 2)
