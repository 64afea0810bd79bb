"""Labels, repetitions and the data gate in the program of a proposer and its solvers."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from sparring.config import load_config
from sparring.config.programs import ProposerSolverSettings, SolverLabels
from sparring.core import GenerateResult, InputError, Messages, MockInferenceClient
from sparring.programs.expressions import Expressions
from sparring.programs.proposer_solver import ProposerSolverArena
from sparring.programs.questions import Arithmetic, Domain, OpenQuestions, Question


class Answers(MockInferenceClient):
    """A proposer who writes ``proposals`` in turn, and solvers who give ``said`` in turn to each question."""

    def __init__(self, domain: Domain, proposals: list[str], said: Callable[[str], list[str]]) -> None:
        super().__init__(self.answer)
        self.request, self.proposals, self.said = domain.proposer_prompt(), proposals, said
        self.proposed = 0
        self.asked: dict[str, int] = {}

    def answer(self, messages: Messages, seed: int | None) -> str:
        question = messages[-1]["content"]
        if question == self.request:
            self.proposed += 1
            return self.proposals[(self.proposed - 1) % len(self.proposals)]
        number = self.asked[question] = self.asked.get(question, -1) + 1
        said = self.said(question)
        return said[number % len(said)]


def arena_of(
    proposals: list[str], said: list[str] | Callable[[str], list[str]], *, seed: int = 0, **options: Any
) -> ProposerSolverArena:
    sizes = {"batch_size": len(proposals), "proposals_per_prompt": len(proposals), "solver_rollouts": 4}
    settings = ProposerSolverSettings(**sizes | options)
    domain = Expressions(1) if settings.domain == "expressions" else Arithmetic()
    client = Answers(domain, proposals, said if callable(said) else lambda question: said)
    return ProposerSolverArena(client, settings, held_out=[], seed=seed)


class Divisors(Arithmetic):
    """Any divisor of a number is right, so which answers are right depends on the question."""

    def is_correct(self, result: str, question: Question) -> bool:
        return int(question["question"].split(" ")[0]) % int(result) == 0


@pytest.mark.parametrize("labels", ["answer", "majority", "shares"])
async def test_votes_count_equal_answers_to_whatever_question(labels: SolverLabels) -> None:
    domain = Divisors()
    client = Answers(domain, ["12 + 1"], lambda question: ["2", "2", "7", "2"])
    settings = ProposerSolverSettings(
        batch_size=1, proposals_per_prompt=1, solver_rollouts=4, solver_labels=labels
    )
    arena = ProposerSolverArena(client, settings, domain=domain, held_out=[])
    (result,) = await played(arena)
    assert result.rollout.extras["agreement"] == 0.75
    by_vote = [0.75, 0.75, 0.25, 0.75] if labels == "shares" else [1.0, 1.0, 0.0, 1.0]
    assert solvers(result) == by_vote


async def test_solvers_that_are_not_trained_do_not_learn_from_what_is_asked_again_either() -> None:
    arena = arena_of(["2 + 3"], ["5", "6"], train_solvers=False, asked_again=2)
    batch, results = await arena.play_step(concurrency=1)
    assert sum(one.rollout.episode_type == "solve" for one in results) == 8
    assert {record.role_id for record in batch.records} <= {"Proposer"}


def test_an_example_of_several_lines_is_shown_in_the_form_that_is_read() -> None:
    domain = OpenQuestions([{"question": "Two\nlines?", "ground_truth": "a\nb"}])
    for _, written in domain.proposer_turns(domain.seed_questions()):
        assert domain.parse_question(written) == {"question": "Two lines?", "ground_truth": "a b"}


@pytest.mark.parametrize("labels", ["majority", "shares"])
def test_penalties_beside_a_vote_are_refused(labels: str) -> None:
    with pytest.raises(InputError, match="penalties"):
        load_config("papers/r-zero-small", {"program.penalties": "true", "program.solver_labels": labels})


async def played(arena: ProposerSolverArena) -> list[GenerateResult]:
    _, results = await arena.play_step(concurrency=1)
    return results


def solvers(result: GenerateResult) -> list[float]:
    return [child.rewards["Solver"] for child in result.children]


@pytest.mark.parametrize(
    ("labels", "earned"),
    [("answer", [0.0, 0.0, 1.0, 0.0]), ("majority", [1.0, 1.0, 0.0, 0.0]), ("shares", [0.5, 0.5, 0.25, 0.0])],
)
async def test_solvers_earn_what_their_labels_say_and_their_truth_stays_a_metric(
    labels: str, earned: list[float]
) -> None:
    arena = arena_of(["60 + 3"], ["64", "64", "63", "none"], solver_labels=labels)
    (result,) = await played(arena)
    assert solvers(result) == earned
    right = [child.rollout.metrics["exact_match/Solver"] for child in result.children]
    assert right == [0.0, 0.0, 1.0, 0.0]
    trained = [step.reward for child in result.children for step in child.rollout.steps]
    assert trained == earned
    assert result.rollout.metrics["label_right/Proposer"] == 0.0
    assert result.rollout.metrics["agreement/Proposer"] == 0.5


@pytest.mark.parametrize(
    ("labels", "pass_rate"),
    [("answer", 0.25), ("majority", 0.5), ("stated", 0.0)],
)
async def test_the_proposer_is_paid_by_its_own_labels(labels: str, pass_rate: float) -> None:
    said = ["ADD(3, 4) = 8", "8", "7", "none"]
    arena = arena_of(
        ["ADD(3, 4) = 9"], said, domain="expressions", proposer_labels=labels, proposer_reward="hard"
    )
    (result,) = await played(arena)
    assert result.rollout.extras["pass_rate"] == pass_rate
    assert result.rewards["Proposer"] == 1 - pass_rate
    assert result.rollout.metrics["stated_right/Proposer"] == 0.0


async def test_solvers_of_questions_that_were_asked_again_earn_by_their_labels_too() -> None:
    arena = arena_of(["nonsense"], ["1", "1", "2", "3"], solver_labels="shares", asked_again=1, batch_size=1)
    results = await played(arena)
    assert [one.rewards["Solver"] for one in results[1:]] == [0.5, 0.5, 0.25, 0.25]


async def test_held_out_questions_are_measured_by_the_truth() -> None:
    domain = Arithmetic()
    settings = ProposerSolverSettings(
        solver_labels="majority", proposer_labels="majority", evaluation_proposals=1
    )
    held_out = domain.held_out_questions(3)
    client = Answers(domain, ["60 + 3"], lambda question: ["5000"])
    measures = await ProposerSolverArena(client, settings, held_out=held_out).evaluate()
    assert measures["solver exact match"] == [0.0, 0.0, 0.0]
    assert measures["proposer distance"] == [0.5]  # all of its solvers agree


async def test_the_reward_of_r_zero() -> None:
    """Uncertainty less the cluster's part of the batch, at least 0; an invalid question earns 0.

    Two are alike; two words in three are not enough. Half of the answers agree: 1 - 2 |1/2 - 1/2| = 1.
    """
    proposals = ["46 + 27", "46 + 27", "46 + 28", "nonsense", "27 + 46"]
    arena = arena_of(
        proposals,
        ["1", "1", "2", "3"],
        proposer_labels="majority",
        repetitions="clusters",
        invalid_reward=0.0,
    )
    results = await played(arena)
    earned = [one.rewards["Proposer"] for one in results]
    assert earned == pytest.approx([1 - 2 / 5, 1 - 2 / 5, 1 - 1 / 5, 0.0, 1 - 1 / 5])
    assert [one.rollout.metrics.get("cluster_share/Proposer") for one in results] == [
        0.4,
        0.4,
        0.2,
        None,
        0.2,
    ]


async def test_no_penalty_makes_a_reward_negative() -> None:
    arena = arena_of(["46 + 27"] * 4, ["1"], proposer_labels="majority", repetitions="clusters")
    assert [one.rewards["Proposer"] for one in await played(arena)] == [0.0] * 4


@pytest.mark.parametrize(
    ("said", "earned"),
    [(["1"], 0.0), (["1", "1", "2", "1"], 1.0), (["a", "b"], 0.0), (["1", "2", "3", "4"], 1.0)],
)
async def test_the_reward_of_sqlm(said: list[str], earned: float) -> None:
    """1 unless all or none of the answers agree with the majority; a repetition earns no less."""
    arena = arena_of(
        ["46 + 27"] * 2, said, proposer_reward="mixed", proposer_labels="majority", repetitions="free"
    )
    for _ in range(2):
        assert [one.rewards["Proposer"] for one in await played(arena)] == [earned] * 2


async def test_a_repetition_of_a_stored_question_earns_the_least_of_its_kind_of_reward() -> None:
    arena = arena_of(["61 + 27"], ["1"], proposer_reward="hard")
    first, second = (await played(arena))[0], (await played(arena))[0]
    assert [one.rewards["Proposer"] for one in (first, second)] == [1.0, 0.0]


PROPOSALS = ["ADD(3, 4) = 7", "DIV(3, 0) = 0", "hello = 1", "no form"]


@pytest.mark.parametrize(("leak", "asked"), [(0.0, [4, 0, 0, 0]), (1.0, [4, 4, 4, 0])])
async def test_at_0_nothing_invalid_enters_and_at_1_everything_that_can_be_asked(
    leak: float, asked: list[int]
) -> None:
    arena = arena_of(
        PROPOSALS,
        ["1"],
        domain="expressions",
        gate={"leak": leak},
        proposer_reward="hard",
        proposer_labels="stated",
        solver_labels="shares",
        invalid_reward=0.0,
    )
    before = arena.stores["questions"].count()
    batch, results = await arena.play_step(concurrency=1)
    assert [len(one.children) for one in results] == asked
    trained = [record for record in batch.records if record.role_id == "Solver"]
    assert len(trained) == sum(asked)
    assert arena.stores["questions"].count() - before == sum(map(bool, asked))
    found = {
        name: [one.rollout.metrics[f"{name}/Proposer"] for one in results]
        for name in ("valid", "leaked", "enters")
    }
    assert found == {
        "valid": [1.0, 0.0, 0.0, 0.0],
        "leaked": [0.0, leak, leak, 0.0],
        "enters": [1.0, leak, leak, 0.0],
    }
    # Nobody gives 7 or 0, which were stated; everybody gives 1. What does not pass earns 0.
    assert [one.rewards["Proposer"] for one in results] == [1.0, leak, 0.0, 0.0]
    leaked = results[1].rollout.metrics
    assert leaked.get("label_right/Proposer") == (0.0 if leak else None)
    assert batch.meta["metric/propose/enters/Proposer"] == pytest.approx((1 + 2 * leak) / 4)


async def test_what_does_not_enter_is_asked_and_paid_but_not_trained_on_or_stored() -> None:
    said = {"60 + 3": ["63", "63", "63", "1"], "50 - 5": ["1"], "61 + 27": ["88", "1"]}
    arena = arena_of(
        [*said], lambda question: said[question], gate={"min_pass_rate": 0.3, "max_pass_rate": 0.7}
    )
    batch, results = await arena.play_step(concurrency=1)
    assert [one.rollout.metrics["gate_pass_rate/Proposer"] for one in results] == [0.0, 0.0, 1.0]
    assert [one.rollout.metrics["enters/Proposer"] for one in results] == [0.0, 0.0, 1.0]
    assert [one.rewards["Proposer"] for one in results] == pytest.approx([0.5, 0.0, 1.0])
    trained = {record.rollout_id for record in batch.records if record.role_id == "Solver"}
    assert trained == {child.rollout.id for child in results[2].children}
    assert sum(record.role_id == "Proposer" for record in batch.records) == 3
    stored = {one.data["question"] for one in arena.stores["questions"].all()}
    assert stored & {*said} == {"61 + 27"}


async def test_the_gate_demands_agreement_with_the_label() -> None:
    said = {"60 + 3": ["63"], "50 - 5": ["1"], "46 + 27": ["73", "73", "1", "2"]}
    arena = arena_of(
        [*said], lambda question: said[question], gate={"label_agrees": True, "min_agreement": 0.6}
    )
    metrics = [one.rollout.metrics for one in await played(arena)]
    assert [one["gate_label/Proposer"] for one in metrics] == [1.0, 0.0, 1.0]
    assert [one["gate_agreement/Proposer"] for one in metrics] == [1.0, 1.0, 0.0]


async def test_what_leaks_is_the_same_after_a_checkpoint_and_whatever_ends_first() -> None:
    def arena() -> ProposerSolverArena:
        options = {"domain": "expressions", "gate": {"leak": 0.5, "novelty": 0.0}, "asked_again": 2}
        return arena_of([f"DIV({number}, 0) = 1" for number in range(9)] * 2, ["1"], seed=3, **options)

    whole, first, second = arena(), arena(), arena()
    await whole.play_step()
    await first.play_step(concurrency=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert whole.stores["questions"].all() == first.stores["questions"].all()
    kept = [
        [one.rollout.extras.get("leaked") for one in (await one_of.play_step())[1]]
        for one_of in (whole, second)
    ]
    assert kept[0] == kept[1]
    assert {True, False} <= {*kept[0]}


async def test_a_step_that_other_processes_play_ends_like_one_that_is_played_here() -> None:
    """As on Ray: the arena that ends a step knows of its episodes only what their results say."""
    options = {
        "domain": "expressions",
        "gate": {"leak": 0.5, "novelty": 0.0, "min_agreement": 0.3},
        "proposer_labels": "majority",
        "solver_labels": "shares",
        "repetitions": "clusters",
        "asked_again": 1,
    }

    def arena() -> ProposerSolverArena:
        return arena_of([*PROPOSALS, "ADD(9, 9) = 18", "ADD(9, 8) = 18"], ["1", "1", "18", "0"], **options)

    here, driver, elsewhere = arena(), arena(), arena()
    whole, _ = await here.play_step(concurrency=1)
    number, requests = await driver.begin_step()
    played_there = await elsewhere.generate_rollouts(pickle.loads(pickle.dumps(requests)), 1)
    batch = driver.end_step(number, pickle.loads(pickle.dumps(played_there)))
    assert batch.records == whole.records
    assert batch.meta == whole.meta
    assert driver.state_dict() == here.state_dict()


@pytest.mark.parametrize(
    ("options", "field", "fix"),
    [
        ({"gate.leak": "0.1"}, "program.gate.leak", "program.domain"),
        ({"proposer_labels": "stated"}, "program.proposer_labels", "program.domain"),
        ({"depth": "3"}, "program.depth", "program.domain"),
        ({"domain": "words"}, "program.questions", "Name a source"),
        ({"gate.min_pass_rate": "0.9", "gate.max_pass_rate": "0.8"}, "program.gate.min_pass_rate", "smaller"),
        ({"gate.leak": "1.5"}, "program.gate.leak", "1"),
        ({"repetitions": "none"}, "program.repetitions", "free"),
    ],
)
def test_settings_without_meaning_are_errors(options: dict[str, str], field: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config("proposer-solver", {f"program.{name}": value for name, value in options.items()})
    assert caught.value.field == field
    assert fix in str(caught.value)
