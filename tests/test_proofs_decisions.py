"""Decisions: every text of every scale, and what is not a decision."""

import pytest
from hypothesis import given

from hostile_text import hostile_text
from sparring.programs.proofs.answers import (
    NO_DECISION,
    SCALES,
    Decision,
    decision_text,
    read_decision,
)

LIKERT = {"strongly disagree": -1, "disagree": -0.5, "agree": 0.5, "strongly agree": 1}
LIKERT_6 = {
    **{"strongly disagree": -1, "disagree": -2 / 3, "somewhat disagree": -1 / 3},
    **{"somewhat agree": 1 / 3, "agree": 2 / 3, "strongly agree": 1},
}
TEXTS = {
    "accept_reject": {"reject": -1, "accept": 1},
    "likert_scale": LIKERT | {"neither agree nor disagree": 0},
    "likert_scale_no_undecided": LIKERT,
    "out_of_10": {str(n): n / 5 - 1 for n in range(11)},
    "out_of_100": {str(n): n / 50 - 1 for n in range(101)},
    "likert_int_scale_11": {str(n): n / 5 - 1 for n in range(11)},
    "likert_scale_4": LIKERT,
    "likert_scale_5": LIKERT | {"neither agree nor disagree": 0},
    "likert_scale_6": LIKERT_6,
    "likert_scale_7": LIKERT_6 | {"neither agree nor disagree": 0},
}


@pytest.mark.parametrize("scale", TEXTS)
def test_every_text_of_a_scale_is_its_decision(scale):
    for text, value in TEXTS[scale].items():
        verdict = "accept" if value > 0 else "reject" if value < 0 else "neither"
        for written in (
            f"Decision: {text}",
            f"decision:{text.upper()}.",
            f"**Decision:** {text}\n",
            f"**Decision**: _{text}_.",
            f"I have seen enough.\nDecision: `{text}`",
        ):
            found = read_decision(written, SCALES[scale])
            assert (found.verdict, found.raw) == (verdict, text)
            assert found.value == pytest.approx(value)
        assert decision_text(scale, value) == f"Decision: {text}"


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        ("out_of_10", "100"),
        ("out_of_10", "11"),
        ("out_of_10", "1 0"),
        ("out_of_10", "-1"),
        ("out_of_10", "7/10"),
        ("out_of_10", "٣"),
        ("out_of_100", "101"),
        ("out_of_100", "57.5"),
        ("accept_reject", "accepted"),
        ("accept_reject", "accept it"),
        ("accept_reject", "accept or reject"),
        ("accept_reject", "reject. Decision: accept, I think"),
        ("accept_reject", "accept\nBecause it is right."),
        ("accept_reject", "not accept"),
        ("accept_reject", ""),
        ("likert_scale_no_undecided", "neither agree nor disagree"),
        ("likert_scale", "somewhat agree"),
    ],
)
def test_what_is_not_a_whole_entry_cannot_be_read(scale, text):
    assert read_decision(f"Decision: {text}", SCALES[scale]) is None


def test_numbers_are_read_whole():
    scale = SCALES["out_of_100"]
    values = [read_decision(f"Decision: {text}", scale).value for text in ("1", "10", "100", "5", "57")]
    assert values == pytest.approx([-0.98, -0.8, 1, -0.9, 0.14])


@pytest.mark.parametrize("text", ["accept", "Is it?", "", "I accept your decision", "Indecision: accept"])
def test_a_text_without_the_word_is_no_decision(text):
    assert read_decision(text, SCALES["accept_reject"]) == NO_DECISION


def test_an_entry_alone_is_a_decision_where_nothing_else_can_be_meant():
    scale = SCALES["accept_reject"]
    assert read_decision(" Accept.", scale, bare=True) == Decision("accept", 1.0, "accept")
    assert read_decision("I accept", scale, bare=True) == NO_DECISION
    assert read_decision("Decision: maybe", scale, bare=True) is None


@given(hostile_text())
def test_any_text_is_read_without_an_error(text):
    for scale in SCALES.values():
        found = read_decision(f"Decision: {text}", scale, bare=True)
        assert found is None or found.raw in scale
