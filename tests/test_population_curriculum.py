"""Curriculum: environments in which results vary most are drawn most."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.population.curriculum import Curriculum
from sparring.population.results import DECAY, RATED_AFTER

UNIT = {"a": (-1.0, 1.0), "b": (-1.0, 1.0), "c": (-1.0, 1.0)}


def after(rewards, seat=0, limits=(-1.0, 1.0)):
    """The variance after games with these rewards of one seat."""
    curriculum = Curriculum({"a": limits})
    for reward in rewards:
        curriculum.add("a", {seat: reward})
    return curriculum.variances()["a"]


def test_variances_by_hand():
    ten = [1.0] * 10
    n = sum(DECAY**age for age in range(10))
    win_rate = (n + 1) / (n + 2)
    assert after(ten) == pytest.approx(4 * win_rate * (1 - win_rate))
    assert after([0.0] * 10) == pytest.approx(2 / (n + 2))
    squares = sum(DECAY**age for age in range(0, 10, 2))
    mean = sum(DECAY**age for age in range(0, 10, 2)) / (n + 2)
    assert after([0.0, 1.0] * 5) == pytest.approx((squares + 2) / (n + 2) - mean**2)


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=RATED_AFTER, max_size=80))
def test_of_games_that_are_won_or_lost_it_is_that_of_the_smoothed_win_rate(rewards):
    weights = [DECAY**age for age in range(len(rewards))][::-1]
    wins = sum(weight for weight, reward in zip(weights, rewards, strict=True) if reward > 0)
    win_rate = (wins + 1) / (sum(weights) + 2)
    assert after(rewards) == pytest.approx(4 * win_rate * (1 - win_rate))


REWARDS = st.lists(st.floats(-10, 10), min_size=RATED_AFTER, max_size=60)


@given(REWARDS, st.floats(-5, 5), st.floats(0.1, 20))
def test_it_is_above_0_and_at_most_1_and_the_same_in_every_unit(rewards, middle, half):
    variance = after(rewards, limits=(-10.0, 10.0))
    assert 0 < variance <= 1 + 1e-9
    moved = [middle + reward / 10 * half for reward in rewards]
    assert after(moved, limits=(middle - half, middle + half)) == pytest.approx(variance)


@pytest.mark.parametrize("limits", [(0.0, 0.0), (-float("inf"), float("inf")), (0.0, float("inf"))])
def test_a_range_that_says_nothing_counts_as_minus_1_to_1(limits):
    assert after([1.0, -1.0] * 8, limits=limits) == after([1.0, -1.0] * 8)


def test_games_are_counted_not_the_seats_in_them():
    curriculum = Curriculum({"a": (-1.0, 1.0)})
    for number in range(RATED_AFTER):
        assert curriculum.variances() == {"a": None}, number
        curriculum.add("a", {0: 1.0, 1: -1.0})
    assert curriculum.variances()["a"] > 0


def test_in_a_game_against_itself_seats_are_taken_apart():
    """Where whoever begins wins, nothing is open, although each reward is as frequent as the other."""
    curriculum = Curriculum(UNIT)
    for game in range(100):
        curriculum.add("a", {0: 1.0, 1: -1.0})
        curriculum.add("b", {0: (-1.0) ** game, 1: -((-1.0) ** game)})
    found = curriculum.variances()
    assert found["a"] < 0.1
    assert found["b"] > 0.9


def test_weights_are_the_set_ones_times_the_variances():
    curriculum = Curriculum(UNIT)
    for game in range(40):
        curriculum.add("a", {0: 1.0})
        curriculum.add("b", {0: (-1.0) ** game})
    found = curriculum.variances()
    assert found["c"] is None
    assert curriculum.weights(["a", "b", "c"], [1.0, 2.0, 3.0]) == [
        found["a"],
        2 * found["b"],
        3 * found["b"],
    ]


def test_without_results_weights_stay_as_they_are_set():
    curriculum = Curriculum(UNIT)
    for _ in range(RATED_AFTER - 1):
        curriculum.add("a", {0: 1.0})
    assert curriculum.weights(["c", "a", "b"], [1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]


def test_a_policy_that_gets_better_brings_an_environment_back_and_away():
    curriculum, seen = Curriculum(UNIT), []
    for rewards in ([-1.0] * 300, [-1.0, 1.0] * 150, [1.0] * 300):
        for reward in rewards:
            curriculum.add("a", {0: reward})
        seen.append(curriculum.variances()["a"])
    assert seen[0] < 0.1
    assert seen[1] > 0.9
    assert seen[2] < 0.2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(-1, 1)), max_size=60))
def test_a_state_that_was_written_and_read_goes_on_the_same(games):
    one, other = Curriculum(UNIT), Curriculum(UNIT)
    for key, seat, reward in games:
        one.add(key, {seat: reward})
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for curriculum in (one, other):
        for key, seat, reward in games:
            curriculum.add(key, {seat: -reward})
    assert one.variances() == other.variances()
    assert one.state_dict() == other.state_dict()
