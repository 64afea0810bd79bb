"""Votes and proposers' rewards, against the papers' formulas on numbers that were worked out by hand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.core.answers import same_answer
from sparring.programs.labels import Vote, lowest_reward, question_reward, vote

ANSWERS = st.lists(st.sampled_from(["1", "2", "3", None]), max_size=12)


def equal(one: str, other: str) -> bool:
    return one == other


@pytest.mark.parametrize(
    ("answers", "counted"),
    [
        (["7", "8", "7", None], Vote("7", 0.5, [0.5, 0.25, 0.5, 0.0])),
        (["8", "7"], Vote("8", 0.5, [0.5, 0.5])),  # of two that are as common, the first
        ([None, None], Vote(None, 0.0, [0.0, 0.0])),
        ([None, None, "3"], Vote("3", 1 / 3, [0.0, 0.0, 1 / 3])),  # silence is no answer, however common
        ([], Vote(None, 0.0, [])),
    ],
)
def test_a_vote_equals_the_table(answers: list[str | None], counted: Vote) -> None:
    assert vote(answers, equal) == counted


def test_answers_that_are_the_same_in_one_direction_count_as_one() -> None:
    """As R-Zero compares: an answer joins the first class whose first member is the same."""
    assert vote(["1/2", "0.5", "50%", "2"], same_answer) == Vote("1/2", 0.75, [0.75, 0.75, 0.75, 0.25])
    assert vote(["ab", "a"], str.startswith).share == 1.0
    assert vote(["a", "ab"], str.startswith).share == 1.0


@given(ANSWERS)
def test_the_majority_is_the_most_common_answer_and_the_shares_are_those_of_counting(
    answers: list[str | None],
) -> None:
    counted = vote(answers, equal)
    stated = Counter(one for one in answers if one is not None)
    assert counted.shares == [stated[one] / len(answers) if one is not None else 0.0 for one in answers]
    assert counted.share == max(counted.shares, default=0.0)
    assert stated[counted.answer] == max(stated.values()) if stated else counted.answer is None


@pytest.mark.parametrize(
    ("pass_rate", "uncertainty", "hard", "mixed"),
    [
        (0.0, 0.0, 1.0, 0.0),
        (0.1, 0.2, 0.9, 1.0),
        (0.5, 1.0, 0.5, 1.0),
        (0.8, 0.4, 0.2, 1.0),
        (1, 0.0, 0.0, 0.0),
    ],
)
def test_rewards_of_questions_equal_the_formulas(
    pass_rate: float, uncertainty: float, hard: float, mixed: float
) -> None:
    """R-Zero's 1 - 2 |p - 1/2|, the 1 - p of 2605.22217, and SQLM's 1 if neither all nor none agree."""
    earned = [question_reward(kind, pass_rate) for kind in ("near_target", "hard", "mixed")]
    assert earned == pytest.approx([uncertainty, hard, mixed])


@given(st.sampled_from(["near_target", "hard", "mixed"]), st.floats(0, 1), st.floats(0.01, 0.99))
def test_no_valid_question_earns_less_than_a_repetition_or_more_than_1(
    kind: str, pass_rate: float, target: float
) -> None:
    assert lowest_reward(kind) <= question_reward(kind, pass_rate, target) <= 1.0
