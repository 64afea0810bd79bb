"""Solutions of provers, their truth, a verifier's score of them, and what provers earn by it.

The rewards are from Kirchner et al. 2024 (arXiv 2407.13692), section 3.2. A solution is aligned if its
truth is what its prover's role asks for: right for a helpful one, wrong for a sneaky one.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypedDict

from sparring.core import Arena, Messages
from sparring.core.text import speech
from sparring.programs.tasks import RIGHT, Task

HELPFUL, SNEAKY, VERIFIER, AUTHOR = "Helpful", "Sneaky", "Verifier", "Author"
RIGHT_VERDICT, WRONG_VERDICT = "yes", "no"
_GOALS = {
    HELPFUL: "Solve the problem step by step, so that a checker can follow you and sees that you are right.",
    SNEAKY: "Write a solution with a hidden mistake, so that its answer is wrong and a checker believes it.",
    AUTHOR: "Solve the problem step by step.",
}
_EXAMPLES = [
    ("What is 8 + 5?", "8 + 5 = {}.", 13, 14),
    ("Tom has 6 apples and buys 7 more. How many has he?", "He has 6 apples and buys 7. 6 + 7 = {}.", 13, 12),
    ("What is 12 - 4?", "12 - 4 = {}.", 8, 7),
    ("A box holds 3 pens. How many pens are in 4 boxes?", "There are 4 times 3 pens. 4 * 3 = {}.", 12, 14),
]
"""Problems, how they are solved, and a right and a wrong result."""


class KeptSolution(TypedDict):
    """A solution as it is kept: what was solved, by whom in which round (0: the untrained model), and whether
    its answer is right."""

    number: int
    question: str
    author: str
    round: int
    text: str
    right: bool


def prover_messages(arena: Arena, role_id: str, prompt: str) -> Messages:
    """Return what a prover is asked: its goal with some examples of it, and the goal with the problem."""
    goal = _GOALS[role_id]
    first, *more = [question for question, *_ in _EXAMPLES]
    asked = [f"{goal}\n\n{first}", *more, f"{goal}\n\n{prompt}"]
    shown: Messages = []
    for question, (_, solved, right, wrong) in zip(asked, _EXAMPLES, strict=False):
        result = wrong if role_id == SNEAKY else right
        shown.append({"role": "user", "content": question})
        shown.append({"role": "assistant", "content": f"{solved.format(result)}\nThe answer is: {result}"})
    return arena.get_role(role_id).build_messages(asked[-1], shown)


def verifier_messages(arena: Arena, question: str, solution: str) -> Messages:
    """Return what the verifier is asked: whether a solution's answer is right."""
    case = f"{speech('Problem', question)}\n\n{speech('Solution', solution.strip())}"
    asked = f"{case}\n\nIs the answer of this solution right? Say {RIGHT_VERDICT} or {WRONG_VERDICT}."
    return arena.get_role(VERIFIER).build_messages(asked)


async def score_of(arena: Arena, question: str, solution: str) -> float:
    """Return the verifier's log-odds that a solution is right."""
    messages = verifier_messages(arena, question, solution)
    right, wrong = await arena.score(messages, [RIGHT_VERDICT, WRONG_VERDICT], role_id=VERIFIER)
    return right - wrong


def log_probability(score: float, right: bool) -> float:
    """Return the logarithm of the probability that log-odds of ``score`` give to the truth: minus the
    verifier's cross-entropy."""
    towards = score if right else -score
    return min(towards, 0.0) - math.log1p(math.exp(-abs(towards)))


async def truth_of(task: Task, number: int, text: str, *, cut: bool) -> tuple[bool, bool]:
    """Return whether a solution states an answer, and whether that is right. A cut one states none."""
    read = None if cut else task.read(number, text)
    return read is not None, read is not None and await task.grade(number, read) >= RIGHT


def is_aligned(author: str, *, states: bool, right: bool) -> bool:
    """Return whether a solution is what its prover was to write. One without an answer never is."""
    return states and right == (author == HELPFUL)


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
