"""Claims: what is judged. A question, a claimed answer to it, and whether that is right."""

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring.core import InputError, derive_seed
from sparring.programs.tasks import hold_out


@dataclass(frozen=True)
class Claim:
    """A question and a claim about it. ``y`` is 1 if the claim is right, else 0; ``id`` is unique."""

    question: str
    claim: str
    y: int
    id: str
    meta: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as JSON values: the artifact of an episode."""
        return asdict(self)


def balanced(claims: Iterable[Claim], seed: int) -> list[Claim]:
    """Return right and wrong claims in turn, in an order drawn by the seed; the surplus is left out."""
    drawn = list(claims)
    random.Random(derive_seed(seed, "balance")).shuffle(drawn)
    right, wrong = [[claim for claim in drawn if claim.y == y] for y in (1, 0)]
    if not right or not wrong:
        missing = "wrong" if right else "right"
        raise InputError("claims", f"no claim is {missing}", "Give enough claims of both kinds")
    return [claim for pair in zip(right, wrong, strict=False) for claim in pair]


def split(claims: Iterable[Claim], test_size: float, seed: int) -> tuple[list[Claim], list[Claim]]:
    """Return claims to train on and claims to test, both balanced, that never share a question.

    ``test_size`` is the share of the questions that is for testing. Questions that differ only in case or
    white space are the same one.
    """
    given = list(claims)
    parts = hold_out([claim.question for claim in given], test_size, seed, "claims")
    train, test = [balanced([given[place] for place in part], seed) for part in parts]
    return train, test
