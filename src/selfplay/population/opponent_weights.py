"""The weights with which the rated sample modes choose opponents. Each list sums to 1."""


def proportional_weights(scores: list[float]) -> list[float]:
    """Return score / sum(scores); uniform if all scores are 0."""
    total = sum(scores)
    if total <= 0:
        return [1 / len(scores)] * len(scores)
    return [score / total for score in scores]


def distance_weights(distances: list[float]) -> list[float]:
    """Return (1 - d / sum(d)) / (n - 1) for the n distances d, so closer candidates are more likely.

    A single candidate has weight 1; if all candidates are at distance 0, they have equal weights.
    (UnstableBaselines omits the division and normalises in place while the sum changes.)
    """
    count, total = len(distances), sum(distances)
    if count == 1 or total <= 0:
        return [1 / count] * count
    return [(1 - distance / total) / (count - 1) for distance in distances]
