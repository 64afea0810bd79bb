"""What a data gate lets in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.config.programs import GateSettings
from sparring.programs.data_gate import DataGate, Proposed

SEEDS = st.integers(0, 2**63 - 1)


def proposed(
    text: str = "a", pass_rate: float = 0.5, agreement: float = 0.5, label_agrees: bool = True
) -> Proposed:
    return Proposed(text.lower(), text, pass_rate, agreement, label_agrees)


@given(SEEDS)
def test_a_strict_gate_never_leaks_and_an_open_one_always(seed: int) -> None:
    assert not DataGate(GateSettings(leak=0.0)).leaks(seed)
    assert DataGate(GateSettings(leak=1.0)).leaks(seed)


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_what_leaks_at_a_strictness_leaks_at_every_larger_one(seed: int, one: float, other: float) -> None:
    smaller, larger = sorted((one, other))
    assert DataGate(GateSettings(leak=smaller)).leaks(seed) <= DataGate(GateSettings(leak=larger)).leaks(seed)


@pytest.mark.parametrize("leak", [0.05, 0.4, 0.9])
def test_the_leak_is_the_part_of_invalid_questions_that_pass(leak: float) -> None:
    gate = DataGate(GateSettings(leak=leak))
    passed = sum(gate.leaks(seed) for seed in range(4000))
    assert abs(passed / 4000 - leak) < 4 * (leak * (1 - leak) / 4000) ** 0.5


def test_by_default_everything_enters_and_nothing_is_demanded() -> None:
    assert DataGate(GateSettings()).judge([proposed(), proposed()], {"a": "a"}) == [{}, {}]


def test_a_band_has_both_of_its_ends() -> None:
    gate = DataGate(GateSettings(min_pass_rate=0.3, max_pass_rate=0.8))
    rates = [0.2, 0.3, 0.5, 0.8, 0.9]
    verdicts = gate.judge([proposed(pass_rate=rate) for rate in rates], {})
    assert [one["pass_rate"] for one in verdicts] == [False, True, True, True, False]


def test_every_reason_is_given_not_only_the_first() -> None:
    gate = DataGate(GateSettings(max_pass_rate=0.5, min_agreement=0.6, label_agrees=True, novelty=0))
    found = gate.judge([proposed("A", 0.75, 0.5, label_agrees=False), proposed("B", 0.5, 0.6)], {"a": "a"})
    assert found[0] == {"pass_rate": False, "agreement": False, "label": False, "novelty": False}
    assert found[1] == {"pass_rate": True, "agreement": True, "label": True, "novelty": True}


def test_a_question_must_be_far_from_what_is_there_and_from_what_entered_before() -> None:
    texts = ["the sum of 3 and 4", "who wrote this book", "who wrote this poem", "the sum of 3 and 5"]
    verdicts = DataGate(GateSettings(novelty=0.7)).judge(
        [proposed(text) for text in texts], {"x": "the sum of 3 and 6"}
    )
    assert [one["novelty"] for one in verdicts] == [False, True, False, False]


def test_what_was_refused_for_another_reason_does_not_make_a_later_one_a_repetition() -> None:
    gate = DataGate(GateSettings(novelty=0, min_pass_rate=0.5))
    verdicts = gate.judge([proposed(pass_rate=0.0), proposed(), proposed()], {})
    assert [one["novelty"] for one in verdicts] == [True, True, False]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0])), max_size=8))
def test_with_novelty_nothing_enters_twice(questions: list[tuple[str, float]]) -> None:
    gate = DataGate(GateSettings(novelty=0, min_pass_rate=0.5))
    judged = gate.judge([proposed(text, rate) for text, rate in questions], {})
    entered = [text for (text, _), one in zip(questions, judged, strict=True) if all(one.values())]
    assert sorted(entered) == sorted({text for text, rate in questions if rate >= 0.5})
