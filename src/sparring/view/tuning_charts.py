"""The charts of a run through fine-tuning jobs, by iteration."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sparring.core.confidence_intervals import Interval
from sparring.evaluation.figures import FigureName
from sparring.finetune.run_files import TRAINING
from sparring.view.charts import FROM_ZERO, Chart, Line, banded_line, chart, lines_of, share_chart
from sparring.view.run_view import RunView

SPLITS = {"test": "", "training": TRAINING}
SOLO = 2
"""The colour of the solo verifier."""


def tuning_strength_charts(run: RunView) -> Iterator[Chart | None]:
    """Yield how well the verifier judges."""
    yield share_chart(
        "Accuracy of the verifier",
        [*_both(run, "accuracy"), *_solo(run)],
        "Share of right verdicts, a missing one counted as wrong. Bands are 95% intervals over claims.",
    )
    yield share_chart(
        "Always wrong", _both(run, "always wrong"), "Share of the claims of which no proof is right."
    )
    yield share_chart(
        "Precision and recall",
        _each(run, {"precision": "precision", "recall": "recall"}),
        "How many of the accepted claims are right, and how many of the right claims are accepted.",
    )
    yield share_chart(
        "Accuracy by truth",
        _each(run, {truth: f"accuracy on {truth}" for truth in ("right claims", "wrong claims")}),
        "Share of right verdicts on right and on wrong claims.",
    )
    yield share_chart(
        "No decision", _both(run, "no decision"), "Share of the proofs that ended without a verdict."
    )


def tuning_reward_charts(run: RunView) -> Iterator[Chart | None]:
    """Yield what each agent earned in an episode."""
    yield chart("Mean reward in training", lines_of(run.under("", ".mean_episode_reward")), "In an episode.")
    yield chart(
        "Mean reward in tests", lines_of(run.under("", ".test_mean_episode_reward")), "In an episode."
    )


def tuning_answer_charts(run: RunView) -> Iterator[Chart | None]:
    """Yield how agents answered in training."""
    retries, cut = run.under("", ".retry_proportion"), run.under("", ".token_limit_proportion")
    lengths = {"training": run.metric("mean_episode_length"), "test": run.metric("test_mean_episode_length")}
    yield chart("Rounds with a message", lines_of(lengths), "Mean of an episode.", bounds=FROM_ZERO)
    yield chart("Retries", lines_of(retries), "Invalid answers for each one that was kept.", bounds=FROM_ZERO)
    yield share_chart("Cut answers", lines_of(cut), "Share of the answers that the token limit ended.")


def _both(run: RunView, name: str) -> list[Line]:
    return _lines(run, {split: f"{prefix}{name}" for split, prefix in SPLITS.items()})


def _each(run: RunView, names: Mapping[str, str]) -> list[Line]:
    return _lines(
        run,
        {
            f"{split}, {name}": f"{prefix}{measure}"
            for split, prefix in SPLITS.items()
            for name, measure in names.items()
        },
    )


def _lines(run: RunView, names: Mapping[str, str]) -> list[Line]:
    """Return a line for each measure that there is; its colour is that of its place."""
    found = {name: run.figures.get(FigureName(measure), {}) for name, measure in names.items()}
    return [
        replace(banded_line(name, {step: _share(one.interval) for step, one in series.items()}), colour=place)
        for place, (name, series) in enumerate(found.items())
        if series
    ]


def _share(interval: Interval) -> Interval:
    """Return an interval within 0 and 1, which that of a mean of shares may leave."""
    return Interval(max(0.0, interval.low), interval.mid, min(1.0, interval.high))


def _solo(run: RunView) -> list[Line]:
    """Return the accuracy of the solo verifier; a single value holds for all iterations."""
    points = run.tuning.solo if run.tuning is not None else {}
    if not points:
        return []
    last = run.last_evaluation
    if len(points) == 1 and last > 0:
        (value,) = points.values()
        points = dict.fromkeys((0.0, float(last)), value)
    return [replace(banded_line("solo verifier", points), colour=SOLO)]
