"""Charts of the answers used for training: whether they teach anything, how long and how varied they are."""

from typing import Any

from selfplay.read.run_data import RunData
from selfplay.report.lines import Chart, curve, share_axis

PREFIX = "answers/"


def answer_charts(run: RunData) -> list[Chart]:
    """Return the charts of the answer metrics that the run has, with a line for each role or seat."""
    from_zero: dict[str, Any] = {"yaxis": {"rangemode": "tozero"}}
    charts = [
        _chart(
            run,
            "zero_advantage_share",
            "Answers without advantage",
            "Share of the answers whose advantage is 0, so that the rewards teach nothing about them.",
            share_axis(whole=True),
            ("program/equal_group_share", "groups with equal rewards"),
        ),
        _chart(
            run,
            "cut_share",
            "Answers cut at the token limit",
            "Share of the answers.",
            share_axis(whole=True),
        ),
        _chart(run, "tokens", "Answer length", "Tokens, mean over the step's answers.", from_zero),
        _chart(
            run,
            "entropy_estimate",
            "Entropy of sampling, estimated",
            "Mean of -log p over the sampled tokens, in nats per token.",
            from_zero,
        ),
    ]
    return [chart for chart in charts if chart.traces]


def _chart(
    run: RunData,
    measure: str,
    title: str,
    caption: str,
    layout: dict[str, Any],
    more: tuple[str, str] = ("", ""),
) -> Chart:
    """Return a chart of a measure by role, and of one more metric if it is given."""
    prefix = f"{PREFIX}{measure}/"
    named = [(name, name.removeprefix(prefix)) for name in run.metric_names() if name.startswith(prefix)]
    chart = Chart(title, caption, layout=layout)
    for name, label in [*named, more]:
        series = run.series(name)
        if series[0]:
            chart.traces.append(curve(label, series, len(chart.traces)))
    return chart
