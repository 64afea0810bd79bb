"""Questions on documents: the proposer's reward against the paper's formula, who sees and learns what."""

import json
import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring_client import ScoringClient
from sparring.config.programs import CorpusSettings
from sparring.core import InputError
from sparring.programs.corpus import CorpusArena, variance_reward
from sparring.programs.documents import load_documents


@pytest.mark.parametrize(
    ("right", "of", "reward"),
    [
        (4, 8, 1.0),
        (2, 8, math.exp(-((3 / 16 - 0.25) ** 2) / 0.02)),
        (6, 8, math.exp(-((3 / 16 - 0.25) ** 2) / 0.02)),
        (1, 8, math.exp(-((7 / 64 - 0.25) ** 2) / 0.02)),
        (0, 8, math.exp(-3.125)),
        (8, 8, math.exp(-3.125)),
    ],
)
def test_the_proposers_reward_is_a_gaussian_of_the_variance(right, of, reward):
    assert variance_reward(right / of) == pytest.approx(reward)


@given(st.integers(1, 64), st.data())
def test_the_variance_is_that_of_the_answers(of, data):
    right = data.draw(st.integers(0, of))
    answers = [1.0] * right + [0.0] * (of - right)
    mean = sum(answers) / of
    variance = sum((one - mean) ** 2 for one in answers) / of
    assert variance_reward(right / of) == pytest.approx(math.exp(-((variance - 0.25) ** 2) / (2 * 0.01)))


def corpus(directory, count=10):
    rows = [
        {
            "text": f"The tower {number} has {number + 5} bells.",
            "question": f"Bells of {number}?",
            "answer": "5",
        }
        for number in range(count)
    ]
    file = directory / "towers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class Players:
    """A proposer who asks for the bells of its tower, except in every n-th proposal, and solvers who are
    right in every second answer."""

    def __init__(self, invalid_every=0):
        self.proposed, self.answered, self.invalid_every = 0, Counter(), invalid_every

    def __call__(self, model, prompt):
        tower = re.match(r"The tower (\d+) has", prompt)
        if tower is not None:
            self.proposed += 1
            if self.invalid_every and self.proposed % self.invalid_every == 0:
                return "Is it nice?"
            number = int(tower[1])
            return f"Question: Bells of {number}, {self.proposed}?\nAnswer: {number + 5}"
        asked = re.match(r"Bells of (\d+)", prompt)
        self.answered[prompt] += 1
        return f"The answer is: {int(asked[1]) + 5 if self.answered[prompt] % 2 else 'none'}"


def arena_of(directory, players, **settings):
    given = {"batch_size": 12, "proposals_per_document": 4, "solver_rollouts": 4}
    client = ScoringClient(players)
    return client, CorpusArena(
        client, CorpusSettings(documents=corpus(directory), **(given | settings)), seed=3
    )


async def test_only_the_proposer_sees_the_document(tmp_path):
    client, arena = arena_of(tmp_path, Players())
    _, results = await arena.play_step()
    texts = {one.rollout.artifact["document"] for one in results}
    seen = Counter()
    for _, messages in client.asked:
        said = " ".join(message["content"] for message in messages)
        proposing = "stands in this text" in said
        seen[proposing] += 1
        assert any(text in said for text in texts) == proposing
    assert seen == {True: 12, False: 48}


async def test_an_invalid_question_earns_the_penalty_and_a_half_solved_one_the_most(tmp_path):
    _, arena = arena_of(tmp_path, Players(invalid_every=3))
    _, results = await arena.play_step()
    rewards = Counter((one.rollout.extras["valid"], one.rollout.rewards["Proposer"]) for one in results)
    assert rewards == {(False, -0.1): 4, (True, 1.0): 8}


async def test_the_solver_learns_from_one_valid_question_of_each_document(tmp_path):
    _, arena = arena_of(tmp_path, Players(invalid_every=3))
    places = Counter()
    for _ in range(6):
        batch, results = await arena.play_step()
        learned = [record for record in batch.records if record.role_id == "Solver"]
        trained = [one for one in results if any(child.is_trainable for child in one.children)]
        assert len(learned) == 3 * 4
        assert Counter(one.rollout.meta["group"] for one in trained) == {
            one.rollout.meta["group"]: 1 for one in results
        }
        places += Counter(results.index(one) % 4 for one in trained)
    assert len(places) > 2, "the question is drawn, not always the first"


async def test_a_proposals_advantage_is_its_reward_less_the_mean_of_its_document(tmp_path):
    _, arena = arena_of(tmp_path, Players(invalid_every=4))
    _, results = await arena.play_step()
    for one in results:
        group = [
            other.rollout for other in results if other.rollout.meta["group"] == one.rollout.meta["group"]
        ]
        mean = sum(other.rewards["Proposer"] for other in group) / len(group)
        assert len(group) == 4
        assert one.rollout.steps[0].advantage == pytest.approx(one.rollout.rewards["Proposer"] - mean)


async def test_every_document_comes_before_one_comes_again_and_held_out_ones_never(tmp_path):
    _, arena = arena_of(tmp_path, Players())
    shown = []
    for _ in range(8):
        _, results = await arena.play_step()
        shown += list(dict.fromkeys(one.rollout.artifact["document"] for one in results))
    held_out = {arena.documents[place].text for place in arena.held_out}
    assert Counter(shown) == dict.fromkeys({one.text for one in arena.documents} - held_out, 3)


async def test_a_restored_arena_goes_on_in_the_same_way(tmp_path):
    _, whole = arena_of(tmp_path, Players())
    await whole.play_step()
    state = json.loads(json.dumps(whole.state_dict()))
    _, restored = arena_of(tmp_path, Players())
    restored.load_state_dict(state)
    assert restored.get_batch() == whole.get_batch()


async def test_evaluations_ask_about_held_out_documents_with_known_answers(tmp_path):
    _, arena = arena_of(tmp_path, Players(), evaluation_proposals=4)
    measures = await arena.evaluate()
    assert {name: len(values) for name, values in measures.items()} == {
        "solver exact match": 2,
        "proposer valid": 4,
        "pass rate": 4,
    }
    assert measures["pass rate"] == [0.5] * 4


@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        ("a.txt", "One.\nTwo.\n\n\nThree.\n \nFour.", ["One.\nTwo.", "Three.", "Four."]),
        ("a.txt", "\ufeffOne.\n\nOne.\n\nTwo.", ["One.", "Two."]),
        ("a.jsonl", '{"text": " One. "}\n\n{"text": "Two."}\n', ["One.", "Two."]),
    ],
)
def test_documents_are_paragraphs_of_a_text_or_lines_of_json(tmp_path, name, text, documents):
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = load_documents(str(tmp_path / name), "documents")
    assert [one.text for one in found] == documents
    assert all(one.questions == () for one in found)


def test_every_question_on_a_text_is_kept_and_no_question_is_none(tmp_path):
    rows = [
        {"text": "A.", "question": "q1", "answer": "a1"},
        {"text": "A.", "question": None, "answer": None},
        {"text": "B.", "question": "q2", "answer": 2.5e-05},
        {"text": "A.", "question": "q3", "answer": "a3"},
        {"text": "C."},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_documents(str(tmp_path / "a.jsonl"), "documents")
    known = {one.text: [(q["question"], q["ground_truth"]) for q in one.questions] for one in found}
    assert known == {"A.": [("q1", "a1"), ("q3", "a3")], "B.": [("q2", "0.000025")], "C.": []}


async def test_solvers_do_not_learn_from_the_questions_of_held_out_documents(tmp_path):
    rows = [
        {"text": f"{number}.", "question": f"Bells of {number}, 1?", "answer": "5"} for number in range(10)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    number = iter(range(1000))
    client = ScoringClient(
        lambda model, prompt: (
            f"Question: Bells of {next(number) % 10}, 1?\nAnswer: 5"
            if "Write a question" in prompt
            else f"The answer is: {next(number) % 2}"
        )
    )
    settings = CorpusSettings(documents=str(tmp_path / "a.jsonl"), batch_size=20, proposals_per_document=1)
    arena = CorpusArena(client, settings)
    _, results = await arena.play_step(concurrency=1)
    held_out = {f"Bells of {place}, 1?" for place in arena.held_out}
    asked = {one.rollout.extras["question"]["question"] for one in results}
    learned = {
        child.rollout.artifact["question"] for one in results for child in one.children if child.is_trainable
    }
    assert learned
    assert held_out & asked
    assert not held_out & learned


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", "Only one.", "has no two documents"),
        ("a.txt", "", "has no two documents"),
        ("a.jsonl", '["text"]\n', "line 1 of .* is not an object"),
        ("a.jsonl", '{"text": ""}\n', "text of line 1 of .* is .*, not words"),
        ("a.jsonl", '{"text": 3}\n', "text of line 1 of .* is .*, not words"),
        ("a.jsonl", '{"text": "One.", "question": "Who?"}\n', "answer of line 1 of .* is None, not words"),
        ("a.jsonl", '{"text": "a\\ud800"}\n', "text of line 1 of .* is .*ud800.*, not words"),
        (
            "a.jsonl",
            '{"text": "One.", "question": "Who?", "answer": NaN}\n',
            "answer of line 1 of .* is nan, not",
        ),
        ("a.jsonl", "{\n", "line 1 of .* is not JSON"),
    ],
)
def test_a_file_without_documents_is_refused(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=problem):
        load_documents(str(tmp_path / name), "documents")


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_documents(str(tmp_path / "none.txt"), "documents")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a text file in UTF-8"):
        load_documents(str(tmp_path / "bytes.txt"), "documents")


def test_the_bundled_corpus_has_a_question_on_each_document_and_no_text_twice():
    documents = load_documents("everyday", "documents")
    assert len({one.text for one in documents}) == len(documents) >= 200
    questions = [question["question"] for one in documents for question in one.questions]
    assert len(questions) == len(set(questions)) == len(documents)
