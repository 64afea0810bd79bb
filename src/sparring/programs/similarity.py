"""How similar questions are: BLEU distances, their clusters, and how much of a batch repeats itself."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LONGEST = 4
"""The largest n of the n-grams that are compared."""
_SMOOTHED = 0.1
_WORD = re.compile(r"\w+|[^\w\s]")

Grams = list[Counter[tuple[str, ...]]]
"""How often each n-gram occurs in a text, for n from 1 to 4."""


def grams(text: str) -> Grams:
    """Count the n-grams of a text's words and signs."""
    words = _WORD.findall(text)
    return [
        Counter(zip(*(words[place:] for place in range(n)), strict=False)) for n in range(1, _LONGEST + 1)
    ]


def bleu_matrix(hypotheses: Sequence[Grams], references: Sequence[Grams]) -> NDArray[np.float64]:
    """Return BLEU-4 of each of the H hypotheses against each of the R references (Papineni et al. 2002), an
    HxR matrix of numbers between 0 and 1.

    A count of 0 is smoothed to 0.1 (method 1 of Chen and Cherry 2014), except that without a common word the
    result is 0. A sentence of fewer than four words has less than 1 against itself.
    """
    where = [_places([one[n] for one in references]) for n in range(_LONGEST)]
    lengths_R = np.array([one[0].total() for one in references], dtype=float)
    bleu_HR = np.zeros((len(hypotheses), len(references)))
    for row, hypothesis in enumerate(hypotheses):
        length = hypothesis[0].total()
        logs_R, none_R = np.zeros(len(references)), np.zeros(len(references), dtype=bool)
        for n, counted in enumerate(hypothesis):
            common_R = np.zeros(len(references))
            for gram, count in counted.items():
                if gram in where[n]:
                    places, counts = where[n][gram]
                    common_R[places] += np.minimum(counts, count)
            if n == 0:
                none_R = common_R == 0
            logs_R += np.log(np.where(common_R > 0, common_R, _SMOOTHED) / max(1, counted.total()))
        short_R = np.minimum(0.0, 1.0 - lengths_R / max(1, length))
        bleu_HR[row] = np.where(none_R, 0.0, np.exp(short_R + logs_R / _LONGEST))
    return bleu_HR


def _places(
    counted: Sequence[Counter[tuple[str, ...]]],
) -> dict[tuple[str, ...], tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return in which texts an n-gram is, and how often in each."""
    found: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place, one in enumerate(counted):
        for gram, count in one.items():
            found.setdefault(gram, []).append((place, count))
    return {
        gram: (np.array([place for place, _ in pairs]), np.array([float(count) for _, count in pairs]))
        for gram, pairs in found.items()
    }


def bleu_distances(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return 1 - BLEU for each pair of texts, an NxN matrix. BLEU is not symmetric: of each pair the earlier
    text is the hypothesis, as in the code of R-Zero. The diagonal is 0."""
    counted = [grams(text) for text in texts]
    above_NN = np.triu(1.0 - bleu_matrix(counted, counted), 1)
    distances_NN: NDArray[np.float64] = above_NN + above_NN.T
    return distances_NN


def clusters(distances_NN: NDArray[np.float64], threshold: float) -> list[int]:
    """Return the cluster of each item: agglomerative clustering with average linkage, which merges the two
    nearest clusters while their mean distance is below ``threshold``. Clusters are numbered by their first
    items."""
    count = len(distances_NN)
    members = {place: [place] for place in range(count)}
    left_NN = distances_NN.astype(float)
    np.fill_diagonal(left_NN, np.inf)
    while len(members) > 1:
        first, second = sorted(divmod(int(left_NN.argmin()), count))
        if left_NN[first, second] >= threshold:
            break
        kept, merged = members[first], members.pop(second)
        row_N = (len(kept) * left_NN[first] + len(merged) * left_NN[second]) / (len(kept) + len(merged))
        left_NN[first], left_NN[:, first] = row_N, row_N
        left_NN[second], left_NN[:, second] = np.inf, np.inf
        left_NN[first, first] = np.inf
        kept += merged
    number = {place: n for n, kept in enumerate(members.values()) for place in kept}
    return [number[place] for place in range(count)]


def cluster_shares(texts: Sequence[str], threshold: float, batch_size: int) -> list[float]:
    """Return, for each text, the size of its cluster divided by ``batch_size``: the repetition penalty of
    R-Zero (arXiv 2508.05004) with the weight 1."""
    found = clusters(bleu_distances(texts), threshold)
    sizes = Counter(found)
    return [sizes[one] / batch_size for one in found]
