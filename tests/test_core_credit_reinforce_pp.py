"""REINFORCE++: rewards whitened over a batch, against numbers made by hand."""

import pytest

from core_programs import played
from credit_groups import at, found, game
from sparring.core import ReinforcePPBaselineCredit, ReinforcePPCredit


def test_rewards_are_whitened_over_all_types_roles_and_levels():
    child = played("solve", {"S": 4.0})
    results = [
        played("debate", {"Aff": 0.0, "Neg": 2.0}, steps=3, children=[child]),
        played("ask", {"S": 2.0}),
        played("ask", {"S": 99.0}, trainable=False),
    ]
    # Rewards 0, 2, 4, 2, one for each role of a rollout whatever its steps: mean 2, deviation sqrt(2).
    half = 2**0.5
    wanted = [[-half, 0.0] * 3, [half], [0.0]]
    assert found(ReinforcePPCredit(), results) == [pytest.approx(one) for one in wanted]


def test_a_group_mean_is_subtracted_before_the_batch_is_whitened():
    results = [played("ask", {"S": reward}, group="easy") for reward in (10.0, 8.0)]
    results += [played("ask", {"S": reward}, group="hard") for reward in (-3.0, -9.0)]
    # Differences 1, -1, 3, -3: mean 0, deviation sqrt(5).
    wanted = [[value / 5**0.5] for value in (1.0, -1.0, 3.0, -3.0)]
    assert found(ReinforcePPBaselineCredit(), results) == [pytest.approx(one) for one in wanted]


def test_with_groups_by_prompt_each_step_counts_once_in_the_batch():
    results = [
        game([at([1]), at([2], "b")], {"a": 1.0, "b": 0.0}),
        game([at([1]), at([2], "b")], {"a": -1.0, "b": 0.0}),
    ]
    # Differences 1, 0, -1, 0: deviation sqrt(1/2).
    wanted = [[2**0.5, 0.0], [-(2**0.5), 0.0]]
    credit = ReinforcePPBaselineCredit(group="prompt")
    assert found(credit, results) == [pytest.approx(one) for one in wanted]


def test_a_tiny_deviation_is_bounded():
    results = [played("ask", {"S": reward}) for reward in (0.0, 2e-8)]
    # Deviation 1e-8, to which 1e-8 is added.
    assert found(ReinforcePPCredit(), results) == [[pytest.approx(-0.5)], [pytest.approx(0.5)]]


def test_equal_rewards_and_single_answers_have_no_advantage():
    for count in (1, 3):
        results = [played("ask", {"S": 0.1}) for _ in range(count)]  # three times 0.1 over 3 is not 0.1
        assert found(ReinforcePPCredit(), results) == [[0.0]] * count
    assert ReinforcePPCredit().compute([]) == {}
