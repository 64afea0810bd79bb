"""Interquartile means, mean ranks, and their stratified bootstraps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.aggregates import interquartile_interval, interquartile_mean, mean_ranks


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end():
    assert interquartile_mean(np.array([9.0, 1.0, 2.0, 3.0])) == 2.5
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 3.0, 100.0, 5.0])) == pytest.approx(
        (1 + 2 + 3 + 5) / 4
    )
    assert interquartile_mean(np.array([4.0, 8.0])) == 6.0, "a quarter of two scores is none"


def test_runs_are_drawn_again_within_each_game_and_never_games():
    low, mid, high = interquartile_interval([[0.0] * 5, [1.0] * 5])
    assert low == mid == high == 0.5, "every resample has the same five of each game"


def test_the_interval_is_that_of_all_resamples_counted_by_hand():
    # Two runs of one game: the mean of a resample is 0, 0.5 or 1, with probabilities 1/4, 1/2 and 1/4.
    assert tuple(interquartile_interval([[0.0, 1.0]])) == (0.0, 0.5, 1.0)
    # Of four runs, of which one is 1, a resample's middle half is above 0 if 1 is drawn twice or more: in
    # 26% of resamples; it is 1 if 1 is drawn thrice or more: in 5.1%.
    assert tuple(interquartile_interval([[0.0, 0.0, 0.0, 1.0]])) == (0.0, 0.0, 1.0)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=3))
def test_an_interval_lies_among_the_scores_and_is_the_same_again(games):
    low, mid, high = interquartile_interval(games)
    scores = [score for runs in games for score in runs]
    assert min(scores) - 1e-9 <= low <= high <= max(scores) + 1e-9
    assert min(scores) - 1e-9 <= mid <= max(scores) + 1e-9
    assert interquartile_interval(games) == (low, mid, high)


def test_ranks_are_by_the_mean_of_a_game_and_their_mean_is_over_games():
    first, second, third = [[1.0, 1.2], [3.0, 3.0]], [[2.0, 2.2], [1.0, 1.0]], [[5.0, 5.0], [2.0, 2.0]]
    ranks = mean_ranks([first, second, third], smaller_is_better=True)
    assert [one.mid for one in ranks] == [2.0, 1.5, 2.5]
    assert [one.mid for one in mean_ranks([first, second, third], smaller_is_better=False)] == [2.0, 2.5, 1.5]


def test_equal_entries_share_a_rank_and_a_coin_between_two_has_the_whole_interval():
    assert [one.mid for one in mean_ranks([[[1.0]], [[1.0]], [[2.0]]], smaller_is_better=True)] == [
        1.5,
        1.5,
        3.0,
    ]
    low, _, high = mean_ranks([[[0.0, 1.0]], [[0.5]]], smaller_is_better=True)[0]
    assert (low, high) == (1.0, 2.0)


def test_intervals_are_those_of_rliable_but_for_the_resampling():
    # rliable 1.2.0, aggregate_iqm, 20,000 resamples: of five runs of three games, and three runs of four.
    theirs = {
        1: ((5, 3), 1, (0.3654, 0.512843243505, 0.6744)),
        2: ((3, 4), 2, (0.0588, 0.157452692491, 0.3137)),
    }
    for seed, (shape, power, (low, mid, high)) in theirs.items():
        runs_of_games = (np.random.default_rng(seed).random(shape) ** power).T.tolist()
        ours = interquartile_interval(runs_of_games)
        assert ours.mid == pytest.approx(mid, abs=1e-9)
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.015)
