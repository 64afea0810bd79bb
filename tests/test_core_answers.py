"""What a text states as its answer, and whether two short answers are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import HOSTILE_PIECES
from sparring.core.answers import last_number, number_of, same_answer, same_formula, stated_answer

FORMS = [
    "The answer is: {}",
    "so the answer is {}.",
    "Answer: {}\nand that is all",
    "**Answer:** {}",
    "24 + 24\n#### {}",
    "Thus \\boxed{{{}}}.",
    "I think\n<answer>{}</answer> ok",
    "<ANSWER> {}",
    "The answer is: **${}$**.",
]


@pytest.mark.parametrize("form", FORMS)
@given(
    number=st.integers(-(10**9), 10**9), before=st.text(st.characters(exclude_characters="<\\#"), max_size=40)
)
def test_the_last_stated_answer_is_read_whatever_stands_before_it(form, number, before):
    if "answer" in before.lower():
        return
    text = f"{before} the answer is 3 or 4\n{form.format(number)}"
    assert stated_answer(text) == str(number)


@pytest.mark.parametrize("text", ["", "71", "I do not know", "answers are 3", "{", "}"])
def test_a_text_without_a_mark_states_nothing(text):
    assert stated_answer(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 + 7 = 19", "19"),
        ("it costs $1,250.50.", "1,250.50"),
        ("from 45-23 to -22", "-22"),
        ("two thirds: 2/3", "2/3"),
        ("x2 and 3rd", None),
        ("half", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


ALIKE = [
    ("0.5", "1/2"),
    ("50%", "1/2"),
    ("1,000", "1000"),
    ("Paris.", "paris"),
    (r"\frac{1}{2}", "0.5"),
    (r"\dfrac12", "1/2"),
    (r"-\frac{3}{4}", "-0.75"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"90^\circ", "90"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ("x + 1", "x+1"),
    ("18 dollars", "18"),
    ("9 + 9 = 18", "18"),
    ("x = \\frac{1}{2}", "0.5"),
    (r"\$18", "18"),
    (r"10\%", "10%"),
    ("12{,}000", "12000"),
]
APART = [("18 or 19", "18"), ("1 + x", "x + 1"), ("", "0"), ("zero", "0"), ("1/0", "1"), ("-5", "5")]


@pytest.mark.parametrize(("given", "truth"), ALIKE)
def test_answers_that_are_the_same(given, truth):
    assert same_formula(given, truth)


@pytest.mark.parametrize(("given", "truth"), APART)
def test_answers_that_are_not(given, truth):
    assert not same_formula(given, truth)
    assert not same_answer(given, truth)


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**6))
def test_a_number_is_itself_however_it_is_written(number):
    assert number_of(str(number)) == number
    assert same_formula(f"{number} apples", str(number))


@given(st.text() | st.sampled_from(HOSTILE_PIECES), st.text(max_size=20))
def test_no_text_of_a_model_breaks_the_reading(text, truth):
    for found in (stated_answer(text), last_number(text)):
        assert found is None or same_formula(found, found)
    same_formula(text, truth)
