import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrices import first_of
from sparring.core import SparringError
from sparring.engine.sampling import BLOCK, BYTES_AT_ONCE, Distributions, uniforms

CHI_SQUARE_99 = {9: 21.67, 19: 36.19}  # 99% quantiles by degrees of freedom


def numbers(seeds, offsets) -> np.ndarray:
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(offsets, dtype=np.uint64))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def random_logits(size: int = 20, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * 2).astype(np.float32)


def logprobs_of(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max()
    return scaled - np.log(np.exp(scaled).sum())


def draw(logits: np.ndarray, chances: np.ndarray, temperature: float = 1.0) -> list[int]:
    """Draw from one distribution, beside others that must not matter."""
    return drawn_from(np.stack([random_logits(len(logits), seed=1), logits]), 1, chances, temperature)


def drawn_from(logits_NV: np.ndarray, row: int, chances: np.ndarray, temperature: float) -> list[int]:
    distributions = Distributions(torch.from_numpy(logits_NV), temperature)
    return distributions.draw(np.full(len(chances), row), chances).tolist()


def all_logprobs(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    distributions = Distributions(torch.from_numpy(logits[None]), temperature)
    return np.array(distributions.logprobs(np.zeros(len(logits), dtype=int), np.arange(len(logits))))


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


@pytest.mark.parametrize("size", [20, BLOCK, BLOCK + 1, 3 * BLOCK - 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0, 0.05, 0.01])
def test_log_probabilities_at_a_temperature_equal_those_of_the_scaled_logits(temperature, size):
    logits = random_logits(size)
    expected = logprobs_of(logits, temperature)
    np.testing.assert_allclose(all_logprobs(logits, temperature), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-308, 0.99e-6])
def test_a_temperature_at_or_near_zero_always_gives_the_likeliest_token(temperature):
    logits = random_logits()
    best = int(logits.argmax())
    assert draw(logits, np.linspace(0, 1, 50, endpoint=False), temperature) == [best] * 50
    assert [value > -np.inf for value in all_logprobs(logits, temperature)] == [
        token == best for token in range(20)
    ]
    assert all_logprobs(logits, temperature)[best] == 0.0


@pytest.mark.parametrize(("temperature", "drawn"), [(0.99e-6, [0, 0]), (1e-6, [0, 1])])
def test_among_equally_likely_tokens_only_a_temperature_of_zero_always_gives_the_same(temperature, drawn):
    assert draw(np.zeros(2, dtype=np.float32), np.array([0.49, 0.51]), temperature) == drawn


@pytest.mark.parametrize("temperature", [1e-6, 1e308])
def test_very_low_and_very_high_temperatures_give_finite_distributions(temperature):
    logits = random_logits()
    logits[0] = -np.inf
    logprobs = all_logprobs(logits, temperature)
    assert np.exp(logprobs).sum() == pytest.approx(1.0)
    assert logprobs[0] == -np.inf
    assert 0 not in draw(logits, np.linspace(0, 1, 50, endpoint=False), temperature)


@pytest.mark.parametrize("temperature", first_of([1.0, 0.7]))
def test_draws_have_the_frequencies_of_the_distribution(temperature):
    drawn = draw(random_logits(), numbers(np.arange(50_000), np.zeros(50_000)), temperature)
    expected = np.exp(logprobs_of(random_logits(), temperature))
    assert chi_square(np.bincount(drawn, minlength=20), expected) < CHI_SQUARE_99[19]


@settings(derandomize=True)
@given(
    st.integers(1, 3 * BLOCK),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([0.5, 3.0, 30.0]),
)
def test_a_draw_is_the_token_at_which_the_sum_of_probabilities_exceeds_the_number(
    size, seed, temperature, spread
):
    logits_NV = np.stack([random_logits(size, seed + row) * spread for row in range(3)])
    chances = np.random.default_rng(seed).random(40)
    for row, logits in enumerate(logits_NV):
        cumulative = np.exp(logprobs_of(logits, temperature)).cumsum()
        drawn = drawn_from(logits_NV, row, chances, temperature)
        for chance, token in zip(chances, drawn, strict=True):
            before = cumulative[token - 1] if token else 0.0
            assert before - 1e-6 <= chance <= cumulative[token] + 1e-6


def test_draws_and_log_probabilities_of_rows_do_not_depend_on_the_other_rows():
    size = BYTES_AT_ONCE // (4 * 8)  # eight rows are read at once
    logits_NV = np.stack([random_logits(size, seed) for seed in range(20)])
    together = Distributions(torch.from_numpy(logits_NV), 1.0)
    rows, chances = np.array([19, 3, 3, 0]), np.array([0.2, 0.5, 0.9, 0.7])
    tokens = together.draw(rows, chances)
    logprobs = together.logprobs(rows, tokens)
    for index, row in enumerate(rows):
        alone = Distributions(torch.from_numpy(logits_NV[row][None]), 1.0)
        assert alone.draw(np.array([0]), chances[index : index + 1]) == tokens[index]
        assert alone.logprobs(np.array([0]), tokens[index : index + 1]) == [logprobs[index]]


def test_impossible_tokens_are_never_drawn_even_at_the_edges():
    logits = np.full(2 * BLOCK + 3, -np.inf, dtype=np.float32)
    logits[[1, 2 * BLOCK]] = 4.0
    edges = np.array([0.0, 0.5 - 2**-53, 0.5, 1 - 2**-53])
    assert draw(logits, edges) == [1, 1, 2 * BLOCK, 2 * BLOCK]


def test_a_token_of_one_in_a_million_can_be_drawn():
    rare = np.array([0.0, np.log(1e-6)], dtype=np.float32)
    assert draw(rare, np.array([1 - 2e-6, 1 - 0.5e-6])) == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("place", "value"), [(0, np.nan), (1, np.nan), (2, np.nan), (1, np.inf)])
def test_logits_that_are_not_numbers_are_rejected(place, value, temperature):
    logits = random_logits(3)
    logits[place] = value
    distributions = Distributions(torch.from_numpy(np.stack([random_logits(3), logits])), temperature)
    both, broken, uniform = np.array([0, 1]), np.array([1]), np.array([0.5])
    assert distributions.usable(both).tolist() == [True, False]
    for ask in (
        lambda: distributions.draw(broken, uniform),
        lambda: distributions.logprobs(broken, np.array([0])),
        lambda: distributions.likeliest(broken, 1),
    ):
        with pytest.raises(SparringError, match=r"^the model's logits are not numbers"):
            ask()
    assert 0 <= distributions.draw(np.array([0]), uniform)[0] < 3  # the other row is not affected
