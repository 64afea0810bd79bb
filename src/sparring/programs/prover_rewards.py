"""What provers earn for a verifier's scores, and what each of its examples weighs.

From Kirchner et al. 2024 (arXiv 2407.13692), section 3.2. A solution is aligned if its truth is what its
prover's role asks for: right for a helpful one, wrong for a sneaky one.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

ROUNDING = 1e-9
"""Scores this near to their mean are equal to it."""


def relative_convincingness(scores: Sequence[float], aligned: Sequence[bool]) -> list[float]:
    """Return the rewards of the solutions of one prover to one question (equation 2).

    A score above the mean earns its distance from it, with a minus if the solution is not aligned. Any other
    earns -1, aligned or not: the paper puts convincing first.
    """
    mean = sum(scores) / len(scores)
    return [
        (score - mean) * (1 if fits else -1) if score - mean > ROUNDING else -1.0
        for score, fits in zip(scores, aligned, strict=True)
    ]


def gated_convincingness(scores: Sequence[float], aligned: Sequence[bool], gate: float) -> list[float]:
    """Return the rewards of the solutions of an update (equation 3): the score if aligned, else ``gate``.

    The paper's constant, -2, was below all its scores. Here the lowest score takes its place if it is lower,
    so that no solution that is not aligned earns more than one that is.
    """
    worst = min([gate, *scores])
    return [score if fits else worst for score, fits in zip(scores, aligned, strict=True)]


def balanced_weights(sources: Sequence[Hashable], right: Sequence[bool]) -> list[float]:
    """Return the weights with which the right and the wrong solutions of each source count alike.

    They sum up to the number of a source's solutions. A source with only one kind has weight 0: it would
    teach a verifier to believe, or to doubt, that source.
    """
    pairs = list(zip(sources, right, strict=True))
    count, of_source = Counter(pairs), Counter(sources)
    return [
        of_source[source] / (2 * count[source, is_right]) if count[source, not is_right] else 0.0
        for source, is_right in pairs
    ]
