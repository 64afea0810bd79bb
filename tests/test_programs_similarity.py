"""BLEU, clusters and their shares, by hand and against SciPy, which OpenSpiel brings."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from sparring.programs.similarity import bleu_distances, bleu_matrix, cluster_shares, clusters, grams

TEXTS = st.lists(st.text(alphabet="ab +", max_size=12), max_size=8)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("a b c d e", "a b c d e", 1.0),
        ("a b c d", "a b c x", (3 / 4 * 2 / 3 * 1 / 2 * 0.1 / 1) ** 0.25),  # no common 4-gram: 0.1
        ("a b c d", "a b c d e f g h", math.exp(1 - 8 / 4)),  # too short
        ("a b c d e f g h", "a b c d", (4 / 8 * 3 / 7 * 2 / 6 * 1 / 5) ** 0.25),
        (
            "a a a a",
            "a b c d",
            (1 / 4 * 0.1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25,
        ),  # a word counts as often as there
        ("46 + 27", "46 + 28", (2 / 3 * 1 / 2 * 0.1 * 0.1) ** 0.25),
        ("a b", "c d", 0.0),
        ("", "a", 0.0),
        ("a", "", 0.0),
    ],
)
def test_bleu_equals_what_was_worked_out(hypothesis: str, reference: str, expected: float) -> None:
    others = [grams("x y z"), grams(reference), grams("a b c")]  # which change nothing
    found = bleu_matrix([grams(hypothesis)] * 2, others)
    assert found.shape == (2, 3)
    assert found[:, 1] == pytest.approx([expected, expected])


@given(TEXTS)
def test_distances_are_symmetric_and_between_0_and_1(texts: list[str]) -> None:
    distances = bleu_distances(texts)
    assert np.array_equal(distances, distances.T)
    assert not distances.diagonal().any()
    assert ((distances >= -1e-9) & (distances <= 1)).all()


def test_average_linkage_merges_by_means() -> None:
    """0 and 1 merge at 0.25. The mean distance of 2 to them is 0.5, and not 0.375 or 0.625."""
    distances = np.array([[0, 0.25, 0.375], [0.25, 0, 0.625], [0.375, 0.625, 0]])
    assert clusters(distances, 0.25) == [0, 1, 2]  # at the threshold they stay apart
    assert clusters(distances, 0.5) == [0, 0, 1]
    assert clusters(distances, 0.51) == [0, 0, 0]


@given(st.integers(2, 9), st.floats(0.05, 0.95), st.randoms(use_true_random=False))
def test_clusters_are_those_of_scipy(count: int, threshold: float, rng) -> None:
    distances = np.zeros((count, count))
    for place in range(count):
        for other in range(place):
            distances[place, other] = distances[other, place] = rng.random()
    tree = linkage(squareform(distances), "average")
    assume(min(abs(tree[:, 2] - threshold)) > 1e-9)  # SciPy merges at the threshold too
    theirs = fcluster(tree, threshold, "distance")
    ours = clusters(distances, threshold)
    assert [[a == b for a in ours] for b in ours] == [[a == b for a in theirs] for b in theirs]


def test_the_penalty_is_the_part_of_the_batch_that_is_alike() -> None:
    """R-Zero's |C| / B: two of the four questions are one cluster, of a batch of five proposals."""
    texts = ["What is the sum of 3 and 4 ?", "Who wrote this ?", "What is the sum of 3 and 5 ?", "46 + 27"]
    assert cluster_shares(texts, 0.5, 5) == [0.4, 0.2, 0.4, 0.2]
    assert cluster_shares([], 0.5, 5) == []


@given(TEXTS.filter(bool))
def test_shares_of_a_batch_add_up_over_its_clusters(texts: list[str]) -> None:
    shares = cluster_shares(texts, 0.5, len(texts))
    assert all(1 / len(texts) <= share <= 1 for share in shares)
    assert sum(1 / share for share in shares) == pytest.approx(
        len(texts) * len({*clusters(bleu_distances(texts), 0.5)})
    )
