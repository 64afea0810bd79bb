"""Expressions: their values, what is invalid, and what can be asked nevertheless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import hostile_text
from sparring.programs.expressions import Expressions, value_of

EXPRESSIONS = Expressions(2)
NUMBERS = st.integers(-999, 999).map(lambda number: (str(number), str(number)))
PYTHON = {
    "ADD": "({} + {})",
    "SUB": "({} - {})",
    "MUL": "({} * {})",
    "DIV": "({} // {})",
    "MOD": "({} % {})",
    "MAX": "max({}, {})",
    "MIN": "min({}, {})",
}
CONDITIONS = {"GT": ">", "LT": "<", "EQ": "==", "GEQ": ">=", "LEQ": "<="}


def larger(smaller):
    """Draw an expression of smaller ones: as a text of the language, and as one of Python."""
    pairs = st.tuples(st.sampled_from([*PYTHON]), smaller, smaller).map(
        lambda drawn: (
            f"{drawn[0]}({drawn[1][0]}, {drawn[2][0]})",
            PYTHON[drawn[0]].format(drawn[1][1], drawn[2][1]),
        )
    )
    single = st.tuples(st.sampled_from([("NEG", "(-({}))"), ("ABS", "abs({})")]), smaller).map(
        lambda drawn: (f"{drawn[0][0]}({drawn[1][0]})", drawn[0][1].format(drawn[1][1]))
    )
    choices = st.tuples(st.sampled_from([*CONDITIONS]), smaller, smaller, smaller, smaller).map(
        lambda drawn: (
            f"ITE({drawn[0]}({drawn[1][0]},{drawn[2][0]}),{drawn[3][0]},{drawn[4][0]})",
            f"({drawn[3][1]} if {drawn[1][1]} {CONDITIONS[drawn[0]]} {drawn[2][1]} else {drawn[4][1]})",
        )
    )
    return pairs | single | choices


@given(st.recursive(NUMBERS, larger, max_leaves=8))
def test_values_are_those_of_python(drawn: tuple[str, str]) -> None:
    expression, python = drawn
    try:
        value = eval(python)
    except ZeroDivisionError:
        value = None
    assert len(expression) <= 300
    assert value_of(expression) == value
    question = EXPRESSIONS.parse_question(f" {expression} = 17\n")
    if value is None:
        assert question is None
        assert EXPRESSIONS.parse_invalid(f"{expression} = 17") == {
            "question": expression,
            "ground_truth": "",
            "stated": "17",
        }
        return
    assert question == {"question": expression, "ground_truth": str(value), "stated": "17"}
    for answer in (str(value), f"{expression} = {value}", f"First this.\n{expression} = {value} "):
        stated = EXPRESSIONS.parse_answer(answer)
        assert stated is not None
        assert EXPRESSIONS.is_correct(stated, question)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("DIV(-7, 2)", -4),  # rounds down, as the language of the paper
        ("MOD(-7, 3)", 2),
        ("ITE(GT(1, 2), DIV(1, 0), 4)", 4),  # only the branch that counts is computed
        ("ITE(GT(2, 1), DIV(1, 0), 4)", None),
        ("ADD(3)", None),
        ("ADD(1, 2, 3)", None),
        ("NEG(1, 2)", None),
        ("ADD(1, 2) 3", None),
        ("ITE(1, 2, 3)", None),
        ("GT(1, 2)", None),
        ("add(1, 2)", None),
        ("ADD(x, 2)", None),
        ("ADD(1000, 2)", None),
        ("ADD(\u0663, 2)", None),
        ("", None),
        ("ADD(", None),
    ],
)
def test_values_equal_the_table(expression: str, value: int | None) -> None:
    assert value_of(expression) == value


@given(hostile_text() | st.text(max_size=40) | st.text(alphabet="ADMOD(,) =-019\n", max_size=40))
def test_a_proposal_is_a_question_or_an_invalid_one_or_nothing(text: str) -> None:
    valid, invalid = EXPRESSIONS.parse_question(text), EXPRESSIONS.parse_invalid(text)
    assert valid is None or invalid is None
    for one in (valid, invalid):
        if one is not None:
            assert one["question"] in text
            assert bool(one["ground_truth"]) == (one is valid)
            EXPRESSIONS.key(one)
    stated = EXPRESSIONS.parse_answer(text)
    assert stated is None or str(int(stated)) == stated


@pytest.mark.parametrize("text", ["NEG(" * 60_000, "(" * 100_000, "9" * 100_000, "= " * 50_000])
def test_long_texts_are_read_in_linear_time(text: str) -> None:
    """A deep one is not a question, and not a RecursionError."""
    assert EXPRESSIONS.parse_question(text) is None
    assert EXPRESSIONS.parse_question(f"{text} = 1") is None
    assert EXPRESSIONS.parse_answer(text) is None


@pytest.mark.parametrize("text", ["NEG(" * 74 + "1" + ")" * 74, "NEG(" * 75])
def test_the_deepest_expressions_that_are_read(text: str) -> None:
    assert value_of(text) in (1, None)


@pytest.mark.parametrize("depth", range(1, 7))
def test_first_and_held_out_questions_are_valid_different_and_always_the_same(depth: int) -> None:
    domain = Expressions(depth)
    seeds, held_out = domain.seed_questions(), domain.held_out_questions(300)
    assert (seeds, held_out) == (
        Expressions(depth).seed_questions(),
        Expressions(depth).held_out_questions(300),
    )
    assert all(
        domain.parse_question(f"{one['question']} = {one['ground_truth']}") == one
        for one in [*seeds, *held_out]
    )
    keys = [domain.key(one) for one in [*seeds, *held_out]]
    assert len(set(keys)) == len(keys) == 324
    shown = {text for turn in domain.solver_turns() for text in turn}
    assert not shown & {one["question"] for one in [*seeds, *held_out]}


def test_a_leading_zero_states_the_same_number() -> None:
    question = Expressions(2).parse_question("ADD(3, 4) = 07")
    assert question is not None
    assert (question["stated"], question["ground_truth"]) == ("7", "7")


def test_one_question_in_two_spellings_has_one_key() -> None:
    spelt = [EXPRESSIONS.parse_question(text) for text in ("ADD(3, 04) = 7", "ADD( 3,4 ) = 8")]
    assert len({EXPRESSIONS.key(one) for one in spelt if one is not None}) == 1
