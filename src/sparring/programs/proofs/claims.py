"""Claims: what is judged. A question, a claimed answer to it, and whether that is right."""

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring.core import InputError, derive_seed


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
    by_question: dict[str, list[Claim]] = {}
    for claim in claims:
        by_question.setdefault(question_key(claim.question), []).append(claim)
    questions = sorted(by_question)
    if len(questions) < 2:
        raise InputError("claims", "there are no two questions, so none can be held out", "Give more")
    random.Random(derive_seed(seed, "split")).shuffle(questions)
    tests = max(1, round(test_size * len(questions)))
    parts = questions[tests:], questions[:tests]
    train, test = [[claim for key in part for claim in by_question[key]] for part in parts]
    return balanced(train, seed), balanced(test, seed)


def question_key(question: str) -> str:
    """Return a question in lower case with single spaces."""
    return " ".join(question.lower().split())
