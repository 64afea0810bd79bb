"""Who says which answer is right: the question's own answer, its proposer, or the vote of its solvers. And
what a question earns its proposer by the share of right answers, its pass rate p in [0, 1]."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparring.config.programs import ProposerLabels, ProposerReward, SolverLabels
from sparring.core import Rollout
from sparring.programs.questions import Domain, Question


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


@dataclass(frozen=True)
class Labels:
    """The labels of a run, for the solver's reward and for the pass rate that its proposer is paid by."""

    domain: Domain
    solver: SolverLabels = "answer"
    proposer: ProposerLabels = "answer"

    def vote(self, answers: Sequence[str | None]) -> Vote:
        """Count the stated answers to one question."""
        return vote(answers, self.domain.same)

    def reward_solvers(self, role_id: str, rollouts: Sequence[Rollout], counted: Vote) -> None:
        """Give the answers to one question their rewards. What they earned by the question's own answer stays
        in their metrics.

        ``majority``: 1 for the most common answer, else 0 (arXiv 2504.16084, used by 2508.05004 and
        2508.03682). ``shares``: the part of all answers that are the same (2605.22217).
        """
        if self.solver == "answer":
            return
        for rollout, share in zip(rollouts, counted.shares, strict=True):
            result = rollout.extras["result"]
            agrees = (
                result is not None and counted.answer is not None and self.domain.same(result, counted.answer)
            )
            rollout.set_reward(role_id, share if self.solver == "shares" else float(agrees))

    def pass_rate(self, question: Question, answered: Sequence[Rollout], counted: Vote) -> float:
        """Return the share of answers that are right for the proposer."""
        if self.proposer == "majority":
            return counted.share
        return sum(self.is_right(one, question) for one in answered) / len(answered)

    def is_right(self, answered: Rollout, question: Question) -> bool:
        """Return whether an answer is the question's own, or the one that its proposer stated."""
        result: str | None = answered.extras["result"]
        if self.proposer == "stated":
            stated = question.get("stated", question["ground_truth"])
            return result is not None and self.domain.same(result, stated)
        return bool(answered.extras.get("right"))


LOWEST_NEAR_TARGET = -0.5
WRONG, UNREAD = -0.5, -1.0
"""Penalties of Absolute Zero (arXiv 2505.03335): for what keeps the requested form but is wrong or cannot be
used, and for what does not keep it."""


def question_reward(kind: ProposerReward, pass_rate: float, target: float = 0.5) -> float:
    """Return the reward of a valid question.

    ``near_target``: 1 - 2 |p - target|, but at least -0.5. With the target 1/2 this is the uncertainty reward
    of R-Zero (arXiv 2508.05004), 1 - 2 |p - 1/2|; its code has half of that, min(p, 1 - p).
    ``hard``: 1 - p, the proposer's reward of arXiv 2605.22217.
    ``mixed``: 1 if 0 < p < 1, else 0, as in SQLM (arXiv 2508.03682). By majority labels, p is above 0 as soon
    as one answer can be read, so that answers which all differ earn 1; its code gives these 0.
    ``learnability``: 1 - p, or 0 if p is 0 or 1, as in Absolute Zero (Zhao et al. 2025, arXiv 2505.03335),
    whose code pays -0.5 there.
    """
    match kind:
        case "near_target":
            return max(LOWEST_NEAR_TARGET, 1.0 - 2.0 * abs(pass_rate - target))
        case "hard":
            return 1.0 - pass_rate
        case "learnability":
            return 1.0 - pass_rate if 0.0 < pass_rate < 1.0 else 0.0
        case "mixed":
            return float(0.0 < pass_rate < 1.0)


def lowest_reward(kind: ProposerReward) -> float:
    """Return the least that a valid question can earn, which is what a repetition earns."""
    return LOWEST_NEAR_TARGET if kind == "near_target" else 0.0


def failure_reward(is_read: bool) -> float:
    """Return what a wrong answer earns, or a question that cannot be asked: more if it ``is_read``, since it
    has the requested form."""
    return WRONG if is_read else UNREAD
