import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.core.confidence_intervals import interval_over_runs, mean_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_has_its_published_values(successes, trials, low, high):
    interval = wilson_interval(successes, trials)
    assert interval.mid == successes / trials
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


def test_nothing_is_known_without_trials():
    assert wilson_interval(0, 0) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 4), (0, -1)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_is_a_probability(confidence):
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50))
def test_mean_interval_follows_from_the_sample_standard_deviation(values):
    interval = mean_interval(len(values), sum(values), sum(value**2 for value in values))
    spread = 1.959964 * statistics.stdev(values) / len(values) ** 0.5
    assert interval.mid == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert interval.high - interval.mid == pytest.approx(spread, abs=1e-5)
    assert interval.mid - interval.low == pytest.approx(spread, abs=1e-5)


def test_mean_of_one_value_and_of_none():
    assert mean_interval(1, 2.5, 6.25) == (2.5, 2.5, 2.5)
    assert mean_interval(0, 0.0, 0.0) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("runs", "quantile"),
    # Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.10, for A(t|v) = 0.95.
    [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (6, 2.571), (11, 2.228), (31, 2.042), (121, 1.980)],
)
def test_the_interval_over_runs_has_the_published_quantiles_of_students_distribution(runs, quantile):
    values = [float(number) for number in range(runs)]
    low, mid, high = interval_over_runs(values)
    assert mid == statistics.fmean(values)
    spread = quantile * statistics.stdev(values) / runs**0.5
    assert high - mid == pytest.approx(spread, rel=3e-4)
    assert mid - low == pytest.approx(spread, rel=3e-4)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_runs_have_no_interval(values):
    with pytest.raises(ValueError, match="say nothing about the spread"):
        interval_over_runs(values)


def test_less_confidence_is_narrower():
    for interval, sample in ((wilson_interval, (3, 7)), (interval_over_runs, ([0.0, 1.0, 5.0],))):
        half, most = interval(*sample, 0.5), interval(*sample, 0.9)
        assert most.low < half.low < half.mid == most.mid < half.high < most.high
