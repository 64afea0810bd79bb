"""The figures of an update, and where a run's loop writes them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from sparring.collection.sinks import Metrics
from sparring.core import TrainingRecord
from sparring.core.records import NO_ADVANTAGE
from sparring.core.types import Answer


class RunMetrics:
    """The figures of an update as its loop logs them. They are sent to the tracker with the update's line.

    Args:
        tracker: a handle of :class:`MetricsLog` in this process, or of an actor of the same methods.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._figures: defaultdict[str, float] = defaultdict(float)

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Log exact values; the last value before a flush is written."""
        self._figures |= name_value_dict

    def add(self, values: Mapping[str, float]) -> None:
        """Log values that are summed until the next flush, such as seconds."""
        for name, value in values.items():
            self._figures[name] += value

    async def flush(self, step: int) -> Metrics:
        """Write the line of ``step`` and return it. A step that has its line gets no second one.

        What is logged meanwhile goes to the next line.
        """
        figures, self._figures = self._figures, defaultdict(float)
        line: Metrics = await self._tracker.flush.remote(step, dict(figures))
        return line

    async def resume(self, step: int, state: dict[str, Any]) -> bool:
        """Continue after update ``step`` from a state; ``{}`` is the beginning. Later lines are deleted.

        Returns whether the line of ``step`` is written.
        """
        measured: bool = await self._tracker.resume.remote(step, state.get("tracker", {}))
        if not measured:
            self._figures |= state.get("figures", {})
        return measured

    async def state(self) -> dict[str, Any]:
        """Return what a resume needs, as JSON-able data."""
        return {"tracker": await self._tracker.checkpoint.remote(), "figures": dict(self._figures)}

    async def close(self) -> None:
        """Close the files and connections."""
        await self._tracker.close.remote()


Learned = Mapping[str, Mapping[str, float]]
"""The metrics of each policy's update."""


def staleness_shares(ages: Iterable[int]) -> dict[str, float]:
    """Return the share of records by staleness, in versions: ``overlap/staleness_0`` and so on."""
    counts = Counter(ages)
    return {f"overlap/staleness_{age}": count / counts.total() for age, count in sorted(counts.items())}


def idle_share(waited: float, worked: float) -> float:
    """Return the share of an update's seconds in which one side waited for the other."""
    return waited / max(waited + worked, 1e-9)


def learned_figures(learned: Learned, *, alone: bool) -> dict[str, float]:
    """Return the learners' figures without times, under ``learner/POLICY/``, or ``learner/`` if ``alone``."""
    figures: dict[str, float] = {}
    for policy, metrics in learned.items():
        prefix = "learner" if alone else f"learner/{policy}"
        kept = {name: one for name, one in metrics.items() if not name.endswith(("_seconds", "_second"))}
        figures |= {f"{prefix}/{name}": one for name, one in kept.items()}
    return figures


def turn_figures(
    learn: float, tokens: float, *, play: float, played: float, overlaps: bool
) -> dict[str, float]:
    """Return the seconds of play and learning in an update, and their rates.

    Args:
        learn: seconds of learning.
        tokens: tokens that were learned.
        play: seconds of play; if play and learning overlap, only those in which the learner waited for it.
        played: games or episodes that were played.
        overlaps: whether they overlap.
    """
    figures = {
        "overlap/learner_idle_share": idle_share(play, learn),
        "time/learn_seconds": learn,
        "time/games_per_second": played / max(play + learn if overlaps else play, 1e-9),
        "time/trained_tokens_per_second": tokens / max(learn, 1e-9),
    }
    if overlaps:
        return figures | {"time/wait_seconds": play}
    return figures | {"time/play_seconds": play, "overlap/engine_idle_share": idle_share(learn, play)}


@dataclass
class _Counts:
    answers: int = 0
    judged: int = 0
    without_advantage: int = 0
    explored: int = 0
    cut: int = 0
    going_on: int = 0
    thoughts: int = 0
    endless: int = 0
    thought_tokens: list[int] = field(default_factory=list)
    tokens: int = 0
    surprisal: float = 0.0
    advantage: float = 0.0

    def add(self, answer: Answer, *, judged: bool) -> None:
        if not judged:
            self.advantage += abs(answer.advantage) * len(answer.completion_token_ids)
        if answer.meta.get("rest", False):
            self.tokens += len(answer.completion_token_ids)
            self.surprisal -= sum(answer.logprobs)
            return
        self.answers += 1
        self.judged += judged
        self.without_advantage += not judged and abs(answer.advantage) <= NO_ADVANTAGE
        if answer.meta.get("explored", False):
            self.explored += 1
            return
        self.cut += answer.meta.get("finish_reason") == "length"
        self.going_on += answer.meta.get("goes_on", False)
        if (thought := answer.meta.get("reasoning")) is not None:
            self.thoughts += 1
            self.endless += not thought["ended"]
            self.thought_tokens += [] if thought["tokens"] is None else [thought["tokens"]]
        self.tokens += len(answer.completion_token_ids)
        self.surprisal -= sum(answer.logprobs)

    def figures(self) -> dict[str, float]:
        figures = {}
        if self.judged < self.answers:
            figures["zero_advantage_share"] = self.without_advantage / self.answers
        if self.explored:
            figures["explored_share"] = self.explored / self.answers
        drawn = self.answers - self.explored
        if self.going_on:
            figures["going_on_share"] = self.going_on / drawn
        if self.thoughts:
            figures |= {
                "reasoning_share": self.thoughts / drawn,
                "endless_reasoning_share": self.endless / drawn,
            }
        if self.thought_tokens:
            figures["reasoning_tokens"] = fmean(self.thought_tokens)
        if drawn:
            figures |= {
                "cut_share": self.cut / drawn,
                "tokens": self.tokens / drawn,
                "entropy_estimate": self.surprisal / max(self.tokens, 1),
            }
        return figures


def answer_figures(records: Iterable[TrainingRecord], judged: Collection[str] = ()) -> dict[str, float]:
    """Return the figures of all records as ``answers/NAME``, and of each role as ``answers/NAME/ROLE``.

    ``zero_advantage_share``: the share of answers whose advantage is 0; nothing is learned from them. Answers
    of the policies in ``judged``, which learn from the values of a critic or of the tree of games, count as
    others. It is missing if all are theirs. ``explored_share``: the share of answers that were random legal
    ones, which the figures after it leave out; missing if there is none. ``cut_share``: the share of answers
    that were cut at the token limit. ``going_on_share``: the share that was cut after beginning with a legal
    answer; missing if there is none. ``reasoning_share``: the share of answers with a thought, whose mean
    length, where it is known, is ``reasoning_tokens``; ``endless_reasoning_share``: the share with a thought
    that did not end, so that nothing was said. They are missing without any. ``tokens``: mean length of an
    answer, its stop token included. ``entropy_estimate``: mean of -log p over the sampled tokens, in nats per
    token; its expectation is the mean entropy of the distributions that they were sampled from.
    ``advantage_share``, of roles alone: a role's share in the sum of |advantage| over all tokens, without
    those of ``judged``; what Zeng et al. 2026, arXiv 2605.24202, call its gradient mass.
    """
    everything = _Counts()
    by_role: defaultdict[str, _Counts] = defaultdict(_Counts)
    for record in records:
        for answer in record.answers:
            everything.add(answer, judged=record.policy in judged)
            by_role[record.role_id].add(answer, judged=record.policy in judged)
    if not everything.answers:
        return {}
    figures = {f"answers/{name}": value for name, value in everything.figures().items()}
    for role_id, counts in sorted(by_role.items()):
        figures |= {f"answers/{name}/{role_id}": value for name, value in counts.figures().items()}
        if len(by_role) > 1 and everything.advantage:
            figures[f"answers/advantage_share/{role_id}"] = counts.advantage / everything.advantage
    return figures
