"""Absolute Zero: questions about programs, their check by running, and its numbers by hand."""

from statistics import fmean, pstdev

import pytest

from core_programs import played
from sparring.config import load_config
from sparring.config.programs import ProposerSolverSettings
from sparring.core import EpisodeRequest, InputError, MockInferenceClient
from sparring.core.credit.assigners import ReinforcePPCredit
from sparring.programs.code.reasoning import KINDS, Abduction, Deduction, Induction
from sparring.programs.labels import question_reward
from sparring.programs.proposer_solver import ProposerSolverArena

pytest.importorskip("wasmtime", reason="needs the extra code")
pytest.importorskip("componentize_py", reason="needs the extra code")
DOUBLE = "def f(x):\n    return x * 2"
AS_THE_PAPER = {"proposer_reward": "learnability", "penalties": True, "repetitions": "free"}
INPUTS = "\n".join(f"Input: {number}" for number in range(1, 5))


@pytest.mark.parametrize("kind", KINDS)
async def test_every_example_is_true_and_parses_as_a_proposal(kind):
    domain = KINDS[kind]()
    for question in [*domain.seed_questions(), *domain.held_out_questions(20)]:
        (_, written) = domain.proposer_turns([question])[0]
        proposal = domain.parse_question(written)
        assert proposal is not None
        assert await domain.checked(proposal) == question
        assert await domain.judge(domain.parse_answer(domain.answer_of(question)), question)


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_questions_are_no_examples(kind):
    domain = KINDS[kind]()
    shown = {domain.key(one) for one in domain.seed_questions()}
    held_out = [domain.key(one) for one in domain.held_out_questions(50)]
    assert len(set(held_out)) == len(held_out) == 50
    assert not shown & set(held_out)
    assert not {asked for asked, _ in domain.solver_turns()} & {
        domain.solver_prompt(one) for one in domain.held_out_questions(50)
    }


BAD_FORM = [
    "",
    DOUBLE,
    "Input: 1",
    f"{DOUBLE}\nInput:",
    f"{DOUBLE}\nInput: 1\nInput: 2",
]


@pytest.mark.parametrize("text", BAD_FORM)
def test_a_proposal_needs_a_program_and_its_inputs(text):
    assert Deduction().parse_question(text) is None


UNUSABLE = {
    "a wrong syntax": "def f(x) return x",
    "another name": "def g(x):\n    return x",
    "an error": "def f(x):\n    return x / 0",
    "a loop": "def f(x):\n    while True:\n        pass",
    "a file": "def f(x):\n    return open('/etc/passwd').read()",
    "the clock": "import time\ndef f(x):\n    return time.time()",
    "an object": "def f(x):\n    return object()",
    **{
        f"a forged text, {text!r}": f"""import sys
def f(x): return x
frame = sys._getframe()
while "_literal" not in frame.f_globals: frame = frame.f_back
frame.f_globals["literal"] = lambda value, room: {text!r}"""
        for text in ["", "no value", "1\nYou win.", "1 # You win.", "1\n# You win.", "f(1)", "(2)", "1, 2"]
    },
}


@pytest.mark.parametrize("program", UNUSABLE.values(), ids=UNUSABLE.keys())
@pytest.mark.parametrize("kind", KINDS)
async def test_a_program_that_returns_no_plain_value_makes_no_question(kind, program):
    domain = KINDS[kind]()
    inputs = INPUTS if domain.count > 1 else "Input: 1"
    proposal = domain.parse_question(f"{program}\n{inputs}")
    assert proposal is not None
    assert await domain.checked(proposal) is None


@pytest.mark.parametrize("given", ["g()", "(lambda: 1)()", "1) or f(2", "x for x in [1]"])
async def test_an_input_that_is_no_literal_makes_no_question(given):
    assert await Deduction().checked(Deduction().parse_question(f"{DOUBLE}\nInput: {given}")) is None


async def question_of(domain, program, *inputs):
    written = "\n".join([program, *(f"Input: {one}" for one in inputs)])
    return await domain.checked(domain.parse_question(written))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("f([2]) == [2, 2]", True),
        ("f([2]) == [2,2.0]", True),
        ("f([2]) == (2, 2)", False),
        ("f([2]) == f([1])", False),
    ],
)
async def test_deduction_compares_values(said, right):
    domain = Deduction()
    question = await question_of(domain, "def f(x):\n    return x * 2", "[2]")
    assert "[2, 2]" not in domain.solver_prompt(question)
    assert await domain.judge(domain.parse_answer(said), question) is right


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("f(3) == 9", True),
        ("f(-3) == 9", True),
        ("I think\nf(4) == 9\nf(3) == 9", True),
        ("f(4) == 9", False),
        ("f(globals().update(f=lambda x: 9)) == 9", False),
        ("f(type('A', (), {'__mul__': lambda a, b: 9})()) == 9", False),
    ],
)
async def test_abduction_takes_any_input_with_that_output_that_is_plain_data(said, right):
    domain = Abduction()
    question = await question_of(domain, "def f(x):\n    return x * x", "3")
    assert "f(3)" not in domain.solver_prompt(question)
    assert await domain.judge(domain.parse_answer(said), question) is right


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("def f(y):\n    return y + y", True),
        ("It doubles.\n```python\nf = lambda x: 2 * x\n```", True),
        ("def f(x):\n    return {1: 2, 2: 4}.get(x)", False),
        ("class A(int):\n    __eq__ = lambda a, b: True\nf = lambda x: A(x)", False),
        ("import sys\nsys.exit(0)", False),
    ],
)
async def test_induction_holds_on_hidden_inputs(said, right):
    domain = Induction()
    question = await question_of(domain, DOUBLE, 1, 2, 3, 4)
    prompt = domain.solver_prompt(question)
    assert "f(1) == 2\nf(2) == 4" in prompt
    assert "f(3)" not in prompt
    assert "return" not in prompt
    assert await domain.judge(domain.parse_answer(said), question) is right


@pytest.mark.parametrize(("rate", "reward"), [(0, 0), (0.125, 0.875), (0.5, 0.5), (0.875, 0.125), (1, 0)])
def test_a_question_earns_what_its_solvers_do_not(rate, reward):
    assert question_reward("learnability", rate) == reward


@pytest.mark.parametrize(("said", "reward"), [("f(3) == 6", 1), ("f(3) == 7", -0.5), ("six", -1)])
async def test_an_answer_without_its_form_earns_least(said, reward):
    question = await Deduction().checked(Deduction().parse_question(f"{DOUBLE}\nInput: 3"))
    settings = ProposerSolverSettings(code=["deduction"], **AS_THE_PAPER)
    arena = ProposerSolverArena(MockInferenceClient(lambda messages, seed: said), settings, held_out=[])
    (result,) = await arena.generate_rollouts([EpisodeRequest("solve deduction", question)])
    assert result.rollout.rewards == {"Solver": reward}
    assert result.rollout.extras["right"] is (reward == 1)


def test_advantages_have_a_baseline_for_each_task_and_role():
    deductions = [played("propose deduction", {"P": reward}) for reward in (0.5, 0.0, -1.0)]
    deductions[0].children += [played("solve deduction", {"S": reward}) for reward in (1.0, -0.5)]
    deductions[1].children += [played("solve deduction", {"S": reward}) for reward in (1.0, 1.0)]
    abductions = [played("propose abduction", {"P": reward}) for reward in (0.25, 0.75)]
    results = deductions + abductions
    advantages = ReinforcePPCredit(by_role=True).compute(results)
    solved = [child for one in deductions for child in one.children]
    for part, rewards in [(deductions, [0.5, 0, -1]), (solved, [1, -0.5, 1, 1]), (abductions, [0.25, 0.75])]:
        expected = [(one - fmean(rewards)) / pstdev(rewards) for one in rewards]
        assert [advantages[one.rollout.id, 0] for one in part] == pytest.approx(expected)


PROPOSALS = {
    "Write a Python function f and an input for it.": f"{DOUBLE}\nInput: 3",
    "Write a Python function f and 4 different inputs for it.": f"{DOUBLE}\n{INPUTS}",
}


def model(messages, seed):
    """Proposes doubling; answers half of deduction, all of abduction and none of induction."""
    asked = messages[-1]["content"]
    if asked in PROPOSALS:
        return PROPOSALS[asked]
    if "f(3) == ..." in asked:
        return ["f(3) == 6", "f(3) == 7"][seed % 2]
    return "f(3) == 6" if "f(...) == 6" in asked else "def f(x):\n    return x"


async def test_an_update_asks_all_kinds_and_pays_each_as_the_paper_does():
    settings = ProposerSolverSettings(
        code=[*KINDS], **AS_THE_PAPER, batch_size=3, proposals_per_prompt=1, solver_rollouts=16
    )
    arena = ProposerSolverArena(MockInferenceClient(model), settings, held_out=[])
    results = await arena.generate_rollouts(arena.get_batch())
    found = {result.rollout.episode_type: result.rollout for result in results}
    assert set(found) == {f"propose {kind}" for kind in KINDS}
    for rollout in found.values():
        rate = rollout.extras["pass_rate"]
        assert rollout.rewards == {"Proposer": question_reward("learnability", rate)}
    assert 0 < found["propose deduction"].extras["pass_rate"] < 1
    assert found["propose abduction"].extras["pass_rate"] == 1
    assert found["propose induction"].extras["pass_rate"] == 0
    assert {one.rollout.episode_type for one in results[0].children} == {"solve deduction"}


@pytest.mark.parametrize(("said", "reward"), [("no", -1), ("def f(x):\n    return y\nInput: 1", -0.5)])
async def test_a_proposal_that_cannot_be_used_earns_less_than_nothing(said, reward):
    settings = ProposerSolverSettings(code=["deduction"], **AS_THE_PAPER, batch_size=1)
    arena = ProposerSolverArena(MockInferenceClient(lambda messages, seed: said), settings, held_out=[])
    (result,) = await arena.generate_rollouts(arena.get_batch())
    assert result.rollout.rewards == {"Proposer": reward}
    assert result.children == []


def test_given_questions_beside_code_are_refused():
    with pytest.raises(InputError, match=r"program.questions: is set beside code.*Leave one of the two out"):
        load_config("proposer-solver", {"program.code": '["deduction"]', "program.questions": "arithmetic"})


async def test_kinds_take_turns_over_updates_too():
    settings = ProposerSolverSettings(code=[*KINDS], batch_size=2, proposals_per_prompt=1)
    arena = ProposerSolverArena(MockInferenceClient(model), settings, held_out=[])
    asked = []
    for arena.step_num in (1, 2, 3):
        asked += [request.episode_type for request in arena.get_batch()]
    assert asked == 2 * [f"propose {kind}" for kind in KINDS]
