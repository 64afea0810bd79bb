"""What the answers to one question agree on: the majority as a label, and its share as the confidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Vote:
    """The result of a vote.

    ``answer`` is the most common answer, among equally common ones the one that was stated first; ``None``
    if nobody stated one. ``share`` is its part of all answers. ``shares`` has, for each answer, the part of
    all answers that are the same; 0 for one that states nothing.
    """

    answer: str | None
    share: float
    shares: list[float]


def vote(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> Vote:
    """Count the answers to one question, in their order; ``None`` stands for one that states nothing.

    An answer joins the first class whose first member is the ``same``, in either direction, as in the code of
    R-Zero (arXiv 2508.05004). All answers count in the denominator, those that state nothing as well.
    """
    firsts: list[str] = []
    classes: list[int | None] = []
    for answer in answers:
        if answer is None:
            classes.append(None)
            continue
        fits = (place for place, first in enumerate(firsts) if same(answer, first) or same(first, answer))
        place = next(fits, len(firsts))
        if place == len(firsts):
            firsts.append(answer)
        classes.append(place)
    if not firsts:
        return Vote(None, 0.0, [0.0] * len(answers))
    parts = [classes.count(place) / len(answers) for place in range(len(firsts))]
    largest = max(range(len(firsts)), key=parts.__getitem__)
    return Vote(firsts[largest], parts[largest], [0.0 if one is None else parts[one] for one in classes])
