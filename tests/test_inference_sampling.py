import numpy as np
import pytest

from selfplay.core import SelfplayError
from selfplay.inference.sampling import Distribution, uniforms

CHI_SQUARE_99 = {9: 21.67, 19: 36.19}  # 99% quantiles by degrees of freedom


def numbers(seeds, offsets) -> np.ndarray:
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(offsets, dtype=np.uint64))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def random_logprobs(size: int = 20) -> np.ndarray:
    logits = np.random.default_rng(0).normal(size=size) * 2
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def test_a_uniform_number_depends_only_on_its_seed_and_offset():
    alone = [numbers([seed], [offset])[0] for seed in (3, 2**64 - 1) for offset in (0, 7)]
    together = numbers([3, 3, 2**64 - 1, 2**64 - 1], [0, 7, 0, 7])
    assert together.tolist() == alone
    assert len(set(alone)) == 4


def test_the_numbers_are_those_of_the_published_generator():
    """Known values of SplitMix64 for the seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = numbers([1234567] * 5, range(5))
    assert drawn.tolist() == [(value >> 11) / 2**53 for value in published]


@pytest.mark.parametrize("vary", ["seed", "offset"])
def test_numbers_are_uniform_and_uncorrelated_over_seeds_and_over_offsets(vary):
    count, fixed = np.arange(20_000), np.zeros(20_000)
    drawn = numbers(count, fixed) if vary == "seed" else numbers(fixed, count)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.bincount((drawn * 10).astype(int), minlength=10)
    assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_99[9]
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0, 0.05, 0.01])
def test_log_probabilities_at_a_temperature_equal_those_of_the_scaled_logits(temperature):
    logprobs = random_logprobs()
    scaled = logprobs.astype(np.float64) / temperature
    expected = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
    distribution = Distribution(logprobs, temperature)
    np.testing.assert_allclose(distribution.logprobs_V, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-308, 0.99e-6])
def test_a_temperature_at_or_near_zero_always_gives_the_likeliest_token(temperature):
    logprobs = random_logprobs()
    distribution = Distribution(logprobs, temperature)
    best = int(logprobs.argmax())
    assert distribution.draw(np.linspace(0, 1, 50, endpoint=False)).tolist() == [best] * 50
    assert distribution.logprobs_V[best] == 0.0


@pytest.mark.parametrize(("temperature", "drawn"), [(0.99e-6, [0, 0]), (1e-6, [0, 1])])
def test_among_equally_likely_tokens_only_a_temperature_of_zero_always_gives_the_same(temperature, drawn):
    halves = Distribution(np.log(np.array([0.5, 0.5], dtype=np.float32)), temperature)
    assert halves.draw(np.array([0.49, 0.51])).tolist() == drawn


@pytest.mark.parametrize("temperature", [1e-6, 1e308])
def test_very_low_and_very_high_temperatures_give_finite_distributions(temperature):
    logprobs = random_logprobs()
    logprobs[0] = -np.inf
    distribution = Distribution(logprobs, temperature)
    assert np.exp(distribution.logprobs_V.astype(np.float64)).sum() == pytest.approx(1.0)
    assert distribution.logprobs_V[0] == -np.inf


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_have_the_frequencies_of_the_distribution(temperature):
    distribution = Distribution(random_logprobs(), temperature)
    drawn = distribution.draw(numbers(np.arange(50_000), np.zeros(50_000)))
    expected = np.exp(distribution.logprobs_V.astype(np.float64))
    counts = np.bincount(drawn, minlength=len(expected))
    assert chi_square(counts, expected) < CHI_SQUARE_99[19]


def test_impossible_tokens_are_never_drawn_even_at_the_edges():
    logprobs = np.array([-np.inf, np.log(0.5), -np.inf, np.log(0.5), -np.inf], dtype=np.float32)
    edges = np.array([0.0, 0.5 - 2**-53, 0.5, 1 - 2**-53])
    assert Distribution(logprobs, 1.0).draw(edges).tolist() == [1, 1, 3, 3]


def test_a_token_of_one_in_a_billion_can_be_drawn():
    rare = Distribution(np.array([0.0, np.log(1e-9)], dtype=np.float32), 1.0)
    assert rare.draw(np.array([1 - 1e-8, 1 - 2**-53])).tolist() == [0, 1]


def test_probabilities_need_not_add_up_to_one():
    halves = Distribution(np.log(np.array([0.25, 0.25], dtype=np.float32)), 1.0)
    assert halves.draw(np.array([0.0, 0.49, 0.51, 0.99])).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_log_probabilities_are_kept_in_single_precision(temperature):
    assert Distribution(random_logprobs(), temperature).logprobs_V.dtype == np.float32


@pytest.mark.parametrize("place", [0, 1, 2])
def test_log_probabilities_that_are_not_numbers_are_rejected(place):
    logprobs = np.log(np.array([0.2, 0.3, 0.5], dtype=np.float32))
    logprobs[place] = np.nan
    with pytest.raises(SelfplayError, match=r"^the model's log-probabilities are not numbers"):
        Distribution(logprobs, 1.0)
