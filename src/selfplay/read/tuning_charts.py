"""The charts of a run through fine-tuning jobs, by iteration."""

from dataclasses import replace

from selfplay.core.intervals import Interval
from selfplay.read.charts import Chart, Line, banded_line, chart, lines_of, share_chart
from selfplay.read.evaluations import measures_of
from selfplay.read.run_view import RunView

TRAINING = "training "
"""Precedes the names of measures of the rollouts that are learned from."""
SOLO = 2
"""The colour of the solo verifier."""


def tuning_strength_charts(run: RunView) -> list[Chart | None]:
    """Return how well the verifier judges."""
    by_truth = [
        replace(line, name=f"{split}, {truth} claims", colour=colour)
        for colour, (split, truth, name) in enumerate(
            (split, truth, f"{prefix}accuracy on {truth} claims")
            for split, prefix in (("test", ""), ("training", TRAINING))
            for truth in ("right", "wrong")
        )
        for line in _measure(run, name)
    ]
    kinds = ("precision", "recall")
    shares = [
        replace(line, name=f"{split}, {kind}", colour=colour)
        for colour, (split, kind, name) in enumerate(
            (split, kind, f"{prefix}{kind}")
            for split, prefix in (("test", ""), ("training", TRAINING))
            for kind in kinds
        )
        for line in _measure(run, name)
    ]
    return [
        share_chart(
            "Accuracy of the verifier",
            [*_both(run, "accuracy"), *_solo(run)],
            "Share of right verdicts, a missing one counted as wrong. Bands are 95% intervals over claims.",
        ),
        share_chart(
            "Always wrong", _both(run, "always wrong"), "Share of claims of which no proof is right."
        ),
        share_chart(
            "Precision and recall",
            shares,
            "Precision: how many of the accepted claims are right. Recall: how many right claims are accepted.",
        ),
        share_chart("Accuracy by truth", by_truth, "Share of right verdicts on right and on wrong claims."),
        share_chart(
            "No decision", _both(run, "no decision"), "Share of proofs that ended without a verdict."
        ),
    ]


def tuning_reward_charts(run: RunView) -> list[Chart | None]:
    """Return what each agent earned in an episode."""
    return [
        chart("Mean reward in training", lines_of(run.under("", ".mean_episode_reward")), "In an episode."),
        chart("Mean reward in tests", lines_of(run.under("", ".test_mean_episode_reward")), "In an episode."),
    ]


def tuning_answer_charts(run: RunView) -> list[Chart | None]:
    """Return how agents answered."""
    return [
        chart("Rounds with a message", lines_of(run.under("", "mean_episode_length")), "Mean of an episode."),
        chart(
            "Retries", lines_of(run.under("", ".retry_proportion")), "Invalid answers for each answer kept."
        ),
        share_chart(
            "Cut answers", lines_of(run.under("", ".token_limit_proportion")), "Ended by the token limit."
        ),
    ]


def _both(run: RunView, name: str) -> list[Line]:
    """Return a measure of tests and of training rollouts."""
    pairs = (("test", name), ("training", f"{TRAINING}{name}"))
    return [
        replace(line, name=split, colour=colour)
        for colour, (split, measure) in enumerate(pairs)
        for line in _measure(run, measure)
    ]


def _measure(run: RunView, name: str) -> list[Line]:
    """Return a measure by iteration; no line if it was never measured."""
    found = measures_of(run.evaluations).get(name)
    return [banded_line(name, {one.step: _share(one.interval()) for one in found})] if found else []


def _share(interval: Interval) -> Interval:
    """Return an interval within 0 and 1, which that of a mean of shares may leave."""
    return Interval(max(0.0, interval.low), interval.mid, min(1.0, interval.high))


def _solo(run: RunView) -> list[Line]:
    """Return the accuracy of the solo verifier; a single value holds for all iterations."""
    points = run.tuning.solo if run.tuning is not None else {}
    if not points:
        return []
    last = max((one.step for one in run.evaluations), default=0)
    if len(points) == 1 and last > 0:
        (value,) = points.values()
        points = dict.fromkeys((0.0, float(last)), value)
    return [replace(banded_line("solo verifier", points), colour=SOLO)]
