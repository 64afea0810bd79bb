"""How similar questions are: BLEU distances, their clusters, and how much of a batch repeats itself."""

import math
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


def bleu(hypothesis: Grams, reference: Grams) -> float:
    """Return BLEU-4 of one sentence against one reference (Papineni et al. 2002), between 0 and 1.

    A count of 0 is smoothed to 0.1 (method 1 of Chen and Cherry 2014), except that without a common word the
    result is 0. A sentence of fewer than four words has less than 1 against itself.
    """
    length, reference_length = hypothesis[0].total(), reference[0].total()
    logs: list[float] = []
    for own, other in zip(hypothesis, reference, strict=True):
        common = (own & other).total()
        if not common and not logs:
            return 0.0
        logs.append(math.log((common or _SMOOTHED) / max(1, own.total())))
    return math.exp(min(0.0, 1.0 - reference_length / length) + sum(logs) / _LONGEST)


def bleu_distances(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return 1 - BLEU for each pair of texts, an NxN matrix. BLEU is not symmetric: of each pair the earlier
    text is the hypothesis, as in the code of R-Zero. The diagonal is 0."""
    counted = [grams(text) for text in texts]
    distances_NN = np.zeros((len(texts), len(texts)))
    for place, hypothesis in enumerate(counted):
        for other in range(place + 1, len(texts)):
            distances_NN[place, other] = distances_NN[other, place] = 1.0 - bleu(hypothesis, counted[other])
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
