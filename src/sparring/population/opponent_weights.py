"""The weights with which the rated sample modes choose opponents. Each list sums to 1."""

from collections.abc import Callable, Sequence
from typing import assert_never

from sparring.core.play import PfspForm


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


def pfsp_weights(win_rates: Sequence[float | None], form: PfspForm) -> list[float]:
    """Return the weights of prioritised fictitious self-play, f(x) / sum(f).

    x is the learner's win rate against a candidate, 0 to 1. The forms are those of AlphaStar (Vinyals et al.,
    2019, and its published pseudocode, which calls them ``squared``, ``variance`` and ``linear_capped``):

    - ``hard``: f(x) = (1 - x)^2, those that the learner beats least.
    - ``variance``: f(x) = x (1 - x), those nearest to the learner's strength.
    - ``linear``: f(x) = min(0.5, 1 - x), all that the learner does not beat alike.

    As in AlphaStar, weights that are all 0 become uniform. AlphaStar takes 0.5 for an unknown win rate; here
    a candidate with ``None`` has the largest weight of the others, so that it gets games and a win rate.
    """
    f = _pfsp_form(form)
    known = [f(rate) for rate in win_rates if rate is not None]
    largest = max(known, default=1.0)
    return proportional_weights([largest if rate is None else f(rate) for rate in win_rates])


def _pfsp_form(form: PfspForm) -> Callable[[float], float]:
    match form:
        case "hard":
            return lambda x: (1 - x) ** 2
        case "variance":
            return lambda x: x * (1 - x)
        case "linear":
            return lambda x: min(0.5, 1 - x)
        case _:
            assert_never(form)
