"""Who says which answer is right: the question's own answer, its proposer, or the vote of its solvers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparring.config.programs import ProposerLabels, SolverLabels
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
        return vote(answers, self._same)

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
            agrees = result is not None and counted.answer is not None and self._same(result, counted.answer)
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
            return result is not None and self._same(result, stated)
        return bool(answered.extras.get("right"))

    def _same(self, one: str, other: str) -> bool:
        return self.domain.is_correct(one, {"question": "", "ground_truth": other})
