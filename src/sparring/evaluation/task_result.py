"""TaskResult: what a model answered to the questions of a task, counted, with its file in a run."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sparring.core import Rollout, Sampling
from sparring.core.confidence_intervals import Interval, interval_of, paired_interval, wilson_interval
from sparring.programs.tasks import RIGHT


@dataclass(kw_only=True)
class TaskResult:
    """The answers of a model to the questions of a task.

    ``scores`` has an entry for each question, in order: from 0 to 1, which is right, and ``None`` if the
    question could not be asked. ``failure_reasons`` counts these by reason, and no other count includes them.
    ``unread`` answers state no answer, and score 0; ``cut`` ones reached the token limit; ``tokens`` were
    drawn in all, at a ``temperature`` and with a ``sampling`` where one is set. Of the questions that were
    also asked in the run's first evaluation, ``compared`` of them, ``gained`` were wrong then and are right
    now, and ``lost`` the other way round.
    """

    task: str
    model: str
    temperature: float
    max_tokens: int | None
    seed: int
    sampling: Sampling | None = None
    scores: list[float | None] = field(default_factory=list)
    unread: int = 0
    cut: int = 0
    tokens: int = 0
    failure_reasons: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    gained: int = 0
    lost: int = 0

    def add(self, rollout: Rollout) -> None:
        """Count the answer to the next question, from its rollout."""
        if rollout.error is not None:
            self.scores.append(None)
            self.failure_reasons[rollout.error] = self.failure_reasons.get(rollout.error, 0) + 1
            return
        (step,) = rollout.steps
        self.scores.append(step.reward)
        self.unread += rollout.extras["read"] is None
        self.cut += step.info["finish_reason"] == "length"
        self.tokens += step.info["tokens"]

    @property
    def answered(self) -> list[float]:
        """The scores of the questions that were answered."""
        return [score for score in self.scores if score is not None]

    @property
    def right(self) -> int:
        """The number of right answers."""
        return sum(score >= RIGHT for score in self.answered)

    @property
    def accuracy(self) -> Interval:
        """Right answers per answer, with a Wilson interval."""
        return wilson_interval(self.right, len(self.answered))

    @property
    def gives_parts(self) -> bool:
        """Whether an answer had a score between wrong and right."""
        return any(0 < score < RIGHT for score in self.answered)

    @property
    def mean_score(self) -> Interval:
        """The mean score, partial credit included, with a normal interval; that of equal scores is Wilson's,
        which holds for every mean of numbers from 0 to 1."""
        scores = self.answered
        if len({*scores}) < 2:
            return wilson_interval(sum(scores), len(scores))
        return interval_of(scores)

    @property
    def change(self) -> Interval:
        """By how much the accuracy has changed since the first evaluation, on the same questions.

        The interval is that of paired answers.
        """
        return paired_interval(self.gained, self.lost, self.compared)

    def beside(self, first: "TaskResult") -> "TaskResult":
        """Return the result with the comparison to the first one, if that asked the same questions."""
        if (first.task, first.seed, len(first.scores)) != (self.task, self.seed, len(self.scores)):
            return self
        pairs = [
            (before >= RIGHT, after >= RIGHT)
            for before, after in zip(first.scores, self.scores, strict=True)
            if before is not None and after is not None
        ]
        gained, lost = pairs.count((False, True)), pairs.count((True, False))
        return replace(self, compared=len(pairs), gained=gained, lost=lost)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; the counts and ``accuracy`` are for the file's readers."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        own["sampling"] = None if self.sampling is None else asdict(self.sampling)
        counts = {"questions": len(self.scores), "answered": len(self.answered), "right": self.right}
        return {**own, **counts, "accuracy": list(self.accuracy)}
