import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.config.programs import ProposerSolverSettings
from sparring.core import (
    AgentSpec,
    Artifact,
    EpisodeRequest,
    Messages,
    MockInferenceClient,
    ModelResponse,
    PlaySpec,
    Rollout,
)
from sparring.evaluation.match import play_of_program
from sparring.programs.proposer_episodes import make_proposer_rubric
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.programs.questions import Arithmetic, OpenQuestions, Question

ARITHMETIC = Arithmetic()
ADDITION = re.compile(r"\d+ [+*-] \d+")


def is_proposal(messages: Messages) -> bool:
    return messages[-1]["content"] == ARITHMETIC.proposer_prompt()


class Players(MockInferenceClient):
    """A proposer who writes ``proposals`` in turn, and solvers who answer by ``solve(question, number)``.

    ``number`` counts the solver's calls about that question.
    """

    def __init__(self, proposals: list[str], solve: Callable[[str, int], str]) -> None:
        super().__init__(self.answer)
        self.proposals = proposals
        self.solve = solve
        self.proposed = 0
        self.asked: dict[str, int] = {}

    def answer(self, messages: Messages, seed: int | None) -> str:
        if is_proposal(messages):
            self.proposed += 1
            return self.proposals[(self.proposed - 1) % len(self.proposals)]
        question = messages[-1]["content"]
        number = self.asked.get(question, 0)
        self.asked[question] = number + 1
        return self.solve(question, number)


def truth(question: str) -> str:
    parsed = ARITHMETIC.parse_question(question)
    assert parsed is not None
    return parsed["ground_truth"]


def right_in_the_first(count: int) -> Callable[[str, int], str]:
    return lambda question, number: f"{question} = {truth(question)}" if number < count else "0"


def small_arena(client: MockInferenceClient, **options: Any) -> ProposerSolverArena:
    given = {name: options.pop(name) for name in ("domain", "questions", "seed") if name in options}
    held_out = options.pop("held_out", [])
    settings = ProposerSolverSettings(**{"batch_size": 1, "solver_rollouts": 4} | options)
    return ProposerSolverArena(client, settings, held_out=held_out, **given)


async def propose(arena: ProposerSolverArena) -> Any:
    results = await arena.generate_rollouts([EpisodeRequest("propose", {"examples": []}, {"seed": 1})])
    return results[0]


@pytest.mark.parametrize(
    ("extras", "target", "reward"),
    [
        ({"valid": False, "repeated": False}, 0.5, -1.0),
        ({"valid": True, "repeated": False, "pass_rate": 0.5}, 0.5, 1.0),
        ({"valid": True, "repeated": False, "pass_rate": 0.125}, 0.5, 0.25),
        ({"valid": True, "repeated": False, "pass_rate": 0.0}, 0.25, 0.5),
        ({"valid": True, "repeated": False, "pass_rate": 1.0}, 0.2, -0.5),  # 1 - 1.6 is floored
        ({"valid": True, "repeated": True, "pass_rate": 0.5}, 0.5, -0.5),
    ],
)
async def test_goldilocks_reward_equals_the_table(
    extras: dict[str, Any], target: float, reward: float
) -> None:
    rollout = Rollout(episode_type="propose", extras={"failed_solvers": 0} | extras)
    await make_proposer_rubric("Proposer", target).score(
        rollout, small_arena(Players(["x"], lambda q, n: ""))
    )
    assert rollout.rewards["Proposer"] == pytest.approx(reward)


async def test_invalid_question_is_punished_and_never_asked() -> None:
    client = Players(["What is love?"], lambda question, number: "0")
    result = await propose(small_arena(client))
    assert result.rewards == {"Proposer": -1.0}
    assert result.children == []
    assert client.calls == 1
    assert "pass_rate/Proposer" not in result.rollout.metrics


async def test_question_that_was_cut_short_is_invalid() -> None:
    class Cut(Players):
        async def complete(self, *args: Any, **kwargs: Any) -> ModelResponse:
            response = await super().complete(*args, **kwargs)
            response.finish_reason = "length"
            return response

    assert (await propose(small_arena(Cut(["1 + 1"], right_in_the_first(4))))).rewards == {"Proposer": -1.0}


async def test_failed_solvers_are_left_out_of_the_pass_rate_and_counted() -> None:
    def solve(question: str, number: int) -> str:
        if number % 2:
            raise RuntimeError("no connection")
        return right_in_the_first(1)(question, number)

    arena = small_arena(Players(["60 + 3"], solve))
    arena.retries = 0
    result = await propose(arena)
    assert result.rollout.extras["failed_solvers"] == 2
    assert result.rollout.extras["pass_rate"] == 0.5  # one right, one wrong, two failed
    assert result.rollout.metrics["failed_solvers/Proposer"] == 2.0
    assert [child.rollout.error is None for child in result.children].count(False) == 2


async def test_proposal_whose_solvers_all_fail_fails_with_the_reason() -> None:
    def solve(question: str, number: int) -> str:
        raise RuntimeError("no connection")

    result = await propose(small_arena(Players(["60 + 3"], solve)))
    assert "all 4 solvers failed" in result.rollout.error
    assert "no connection" in result.rollout.error


async def test_solvers_are_trained_only_where_asked() -> None:
    def arena(train_solvers: bool) -> ProposerSolverArena:
        return small_arena(Players(["60 + 3"], right_in_the_first(2)), train_solvers=train_solvers)

    trained, _ = await arena(True).play_step()
    frozen, _ = await arena(False).play_step()
    assert [record.role_id for record in trained.records] == ["Proposer"] + ["Solver"] * 4
    assert [record.role_id for record in frozen.records] == ["Proposer"]


async def test_valid_questions_are_stored_once_and_weighted_by_nearness() -> None:
    # The third is the first again: in this domain the order of a sum does not matter.
    client = Players(["60 + 3", "50 - 5", "3 + 60", "nonsense"], right_in_the_first(1))
    arena = small_arena(client, batch_size=4)
    await arena.play_step()
    seeds = {ARITHMETIC.key(question) for question in ARITHMETIC.seed_questions()}
    added = {one.id: one.weight for one in arena.stores["questions"].all() if one.id not in seeds}
    assert added == {"3 + 60": 0.5, "50 - 5": 0.5}


async def test_the_proposer_is_shown_the_first_questions_and_never_its_own() -> None:
    prompts: list[list[str]] = []

    class Watched(Players):
        def answer(self, messages: Messages, seed: int | None) -> str:
            if is_proposal(messages):
                prompts.append([one["content"] for one in messages if one["role"] == "assistant"])
            return super().answer(messages, seed)

    arena = small_arena(Watched(["60 + 3"], right_in_the_first(2)), examples=100)
    await arena.play_step()
    await arena.play_step()
    seeds = {question["question"] for question in ARITHMETIC.seed_questions()}
    assert set(prompts[0]) == seeds
    assert set(prompts[1]) == seeds


async def test_repeated_question_earns_the_least_a_valid_one_can() -> None:
    client = Players(["60 + 3", "3 + 60"], right_in_the_first(2))
    arena = small_arena(client)
    _, first = await arena.play_step()
    client.asked.clear()
    _, second = await arena.play_step()
    assert [first[0].rewards["Proposer"], second[0].rewards["Proposer"]] == [1.0, -0.5]
    assert second[0].rollout.metrics["repeated/Proposer"] == 1.0
    assert len(second[0].children) == 4


async def test_copies_of_a_new_question_in_one_step_share_the_reward_of_one() -> None:
    proposals = ["60 + 3"] * 15 + ["3 + 60", "50 - 5", "nonsense"]
    client = Players(proposals, lambda question, number: truth(question) if number % 4 < 2 else "0")
    arena = small_arena(client, batch_size=18, proposals_per_prompt=18)
    batch, results = await arena.play_step(concurrency=1)
    earned = [result.rewards["Proposer"] for result in results]
    assert earned == pytest.approx([(1.0 - 15 * 0.5) / 16] * 16 + [1.0, -1.0])
    assert [result.rollout.metrics.get("copies/Proposer") for result in results] == [16.0] * 16 + [1.0, None]
    trained = [record for record in batch.records if record.role_id == "Proposer"]
    assert [record.reward for record in trained] == earned
    assert trained[16].advantage > 0 > trained[0].advantage


async def test_good_questions_are_asked_again_and_reweighted() -> None:
    client = Players(["nonsense"], right_in_the_first(1))
    arena = small_arena(client, asked_again=2)
    batch, results = await arena.play_step()
    solved = [result.rollout for result in results if result.rollout.episode_type == "solve"]
    questions = {rollout.artifact["question"] for rollout in solved}
    assert len(solved) == 8
    assert len(questions) == 2
    weights = {one.data["question"]: one.weight for one in arena.stores["questions"].all()}
    assert {weights[question] for question in questions} == {0.5}
    assert {weight for question, weight in weights.items() if question not in questions} == {1.0}
    for question in questions:
        rewards = [
            r.advantage
            for r in batch.records
            if r.meta.get("group") == ARITHMETIC.key({"question": question, "ground_truth": ""})
        ]
        assert sorted(rewards) == pytest.approx([-(3**-0.5)] * 3 + [3**0.5])


async def test_held_out_questions_are_never_trained_on_shown_or_asked_again() -> None:
    held_out: list[Question] = [{"question": "60 + 3", "ground_truth": "63"}]
    client = Players(["3 + 60"], right_in_the_first(2))
    arena = small_arena(client, held_out=held_out, asked_again=50, examples=100)
    shown = []
    for _ in range(3):
        batch, results = await arena.play_step()
        again = {result.rollout.artifact["question"] for result in results[1:]}
        shown += [question["question"] for question in results[0].rollout.artifact["examples"]]
        assert results[0].rollout.extras["held_out"]
        assert [child.is_trainable for child in results[0].children] == [False] * 4
        assert not again & {"60 + 3", "3 + 60"}
        trained = {r.rollout_id for r in batch.records if r.role_id == "Solver"}
        assert not trained & {child.rollout.id for child in results[0].children}
        assert trained
    assert not set(shown) & {"60 + 3", "3 + 60"}


async def test_store_is_bounded_and_survives_a_checkpoint() -> None:
    def arena() -> ProposerSolverArena:
        proposals = [f"{number} + 70" for number in range(1, 40)]
        return small_arena(Players(proposals, right_in_the_first(2)), batch_size=10, store_size=16, seed=5)

    first = arena()
    await first.play_step()
    await first.play_step()
    assert first.stores["questions"].count() == 16
    second = arena()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.stores["questions"].all() == first.stores["questions"].all()
    assert [r.artifact for r in second.get_batch()] == [r.artifact for r in first.get_batch()]
    assert second.step_num == 3


async def test_evaluation_gives_one_value_per_item() -> None:
    held_out = ARITHMETIC.held_out_questions(5)
    rights = [one["question"] for one in held_out[:2]]

    def solve(question: str, number: int) -> str:
        return truth(question) if question in rights or (number < 3 and question == "60 + 3") else "1"

    client = Players(["60 + 3", "nonsense"], solve)
    arena = small_arena(client, held_out=held_out, evaluation_proposals=2)
    measures = await arena.evaluate()
    assert measures["solver exact match"] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert sorted(measures["proposer distance"]) == [0.25, 0.5]
    assert sorted(measures["proposer valid"]) == [0.0, 1.0]


async def test_a_valid_proposal_is_a_match_between_proposer_and_solver() -> None:
    arena = small_arena(Players(["60 + 3", "nonsense"], right_in_the_first(3)))
    assert arena.outcomes(await propose(arena)) == [{"Proposer": 0.25, "Solver": 0.75}]
    assert arena.outcomes(await propose(arena)) == []


async def test_seats_of_a_proposal_earn_their_rewards_and_solvers_of_none_earn_nothing() -> None:
    arena = small_arena(Players(["60 + 3", "nonsense"], right_in_the_first(3)))
    play = play_of_program(arena, arena.get_batch(), ("Proposer", "Solver"))
    agents = (AgentSpec("model", "a"), AgentSpec("model", "b"))
    games = [await play(f"game-{number}", PlaySpec("", 2, agents, 0)) for number in range(2)]
    assert [one.rewards for one in games] == [[0.5, 0.75], [-1.0, 0.0]]


# Arithmetic


@given(st.integers(0, 99), st.sampled_from("+-*"), st.integers(0, 99))
def test_arithmetic_computes_every_question_of_its_grammar(left: int, sign: str, right: int) -> None:
    text = f"{left} {sign} {right}"
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    question = ARITHMETIC.parse_question(f" {text}\n")
    if result < 0:
        assert question is None
        return
    assert question == {"question": text, "ground_truth": str(result)}
    for answer in (str(result), f"{text} = {result}", f" {text} = {result} "):
        stated = ARITHMETIC.parse_answer(answer)
        assert stated is not None
        assert ARITHMETIC.is_correct(stated, question)


@given(st.text(max_size=30) | st.text(alphabet="0123456789+-* =.\n", max_size=12))
@example("01 + 1")
@example("100 + 1")
@example("1 + 1 = 2")
@example("٣ + 1")
def test_arithmetic_takes_nothing_but_its_grammar(text: str) -> None:
    question = ARITHMETIC.parse_question(text)
    if question is not None:
        assert re.fullmatch(r"(0|[1-9]\d?) [+*-] (0|[1-9]\d?)", text.strip(), re.ASCII)
        assert question["question"] == text.strip()
    stated = ARITHMETIC.parse_answer(text)
    assert stated is None or text.strip().endswith(stated)


@pytest.mark.parametrize(
    "text", ["", "71.", "071", "is 71", "23+48=71", "71 or 72", "23 + 48 =", "-1", "7 1"]
)
def test_answers_without_the_form(text: str) -> None:
    assert ARITHMETIC.parse_answer(text) is None


def test_held_out_questions_are_always_the_same_all_different_and_never_shown() -> None:
    held_out = ARITHMETIC.held_out_questions(300)
    assert held_out == ARITHMETIC.held_out_questions(300)
    keys = {ARITHMETIC.key(question) for question in held_out}
    assert len(keys) == 300
    assert all(ARITHMETIC.parse_question(one["question"]) == one for one in held_out)
    shown = " ".join(text for turn in ARITHMETIC.solver_turns() for text in turn)
    written = [*ARITHMETIC.seed_questions()]
    written += [q for text in ADDITION.findall(shown) if (q := ARITHMETIC.parse_question(text)) is not None]
    assert len(written) > 16
    assert not keys & {ARITHMETIC.key(question) for question in written}


# Open questions

OPEN = OpenQuestions([{"question": "What is 2+2?", "ground_truth": "4"}])


async def test_open_questions_are_played_from_proposal_to_reward() -> None:
    def answer(messages: Messages, seed: int | None) -> str:
        if messages[-1]["content"] == OPEN.proposer_prompt():
            assert messages[1]["content"] == "Question: What is 2+2?\nAnswer: 4"
            return "Question: What is the capital of France?\nAnswer: Paris"
        assert messages[-1]["content"].startswith("What is the capital of France?")
        return "I think so.\nThe answer is: paris."

    questions: list[Question] = [{"question": "What is 2+2?", "ground_truth": "4"}]
    settings = ProposerSolverSettings(batch_size=1, solver_rollouts=2)
    arena = ProposerSolverArena(MockInferenceClient(answer), settings, questions=questions)
    _, results = await arena.play_step()
    assert results[0].rollout.extras["pass_rate"] == 1.0
    stored = arena.stores["questions"].get("what is the capital of france?")
    assert isinstance(stored, Artifact)
    assert stored.data["ground_truth"] == "Paris"
    assert await arena.evaluate() != {}
    assert "solver exact match" not in await arena.evaluate()


@pytest.mark.parametrize("end", ["", "\nAnswer:", f"\nAnswer:{' ' * 20_000}{'b' * 20_000}\nc"])
def test_a_long_proposal_is_parsed_in_linear_time(end: str) -> None:
    """In cubic time it would take days."""
    assert OPEN.parse_question(f"Question:{' ' * 20_000}{'a' * 20_000}{end}") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Question: a",
        "Question: a\nAnswer:",
        "Question: \t\nAnswer: b",
        "Question: a\nAnswer: b\nAnswer: c",
        "Sure! Question: a\nAnswer: b",
        "Question: a\nAnswer: b\n\nIs it good?",
    ],
)
def test_open_questions_without_the_form_are_invalid(text: str) -> None:
    assert OPEN.parse_question(text) is None


@pytest.mark.parametrize(
    ("truth", "answer", "right"),
    [
        ("4", "4", True),
        ("4", "4.0", True),
        ("4", "4.", True),
        ("1000", "1,000", True),
        ("0.5", "1/2", True),
        ("50%", "0.5", True),
        ("-3", "- 3", False),
        ("Paris", " PARIS ", True),
        ("New York", "new  york.", True),
        ("Paris", "Pairs", False),
        ("4", "2+2", False),
        ("4", "40", False),
        ("1", "1/0", False),
        ("x + 1", "1 + x", False),
    ],
)
def test_open_answers_are_right_as_the_same_text_or_number(truth: str, answer: str, right: bool) -> None:
    assert OPEN.is_correct(answer, {"question": "?", "ground_truth": truth}) is right


@given(st.text(max_size=30) | st.text(alphabet="0123456789,./%+- ", max_size=20), st.text(max_size=10))
def test_checking_an_open_answer_never_raises_and_a_text_equals_itself(text: str, other: str) -> None:
    question: Question = {"question": "?", "ground_truth": text}
    assert OPEN.is_correct(text, question)
    OPEN.is_correct(other, question)
    OPEN.parse_answer(f"{other}\nThe answer is: {text}")
