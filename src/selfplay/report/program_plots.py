"""Charts that only a program's run has: measures, rewards and metrics by role, ratings of policies."""

from typing import Any

from selfplay.read.run_data import Evaluation, RunData
from selfplay.report.lines import Chart, banded_curve, curve, share_axis, thin
from selfplay.report.program_summary import are_shares, measure_rate, measures_by_name
from selfplay.report.summary import Rate

METRIC = "program/metric/"
REWARD = "program/reward/"
RATING = "model-pool/"


def measure_charts(run: RunData) -> list[Chart]:
    """Return one chart of all shares and one chart for every other measure, each with its interval."""
    series = measures_by_name(run)
    shares = {name: measures for name, measures in series.items() if are_shares(measures)}
    title = next(iter(shares)) if len(shares) == 1 else "Shares"
    chart = Chart(title, "Share of the items; bands are 95% Wilson intervals.", layout=share_axis(whole=True))
    for index, (name, measures) in enumerate(shares.items()):
        chart.traces += _measure_curve(name, measures, index)
    means = [
        Chart(name, "Mean over the items; the band is a 95% interval.", _measure_curve(name, measures, 0))
        for name, measures in series.items()
        if name not in shares
    ]
    return [chart, *means] if chart.traces else means


def _measure_curve(name: str, measures: list[Evaluation], index: int) -> list[dict[str, Any]]:
    steps = [float(measure.step) for measure in measures]
    return banded_curve(name, steps, [measure_rate(measure) for measure in measures], index)


def role_reward_charts(run: RunData) -> list[Chart]:
    """Return the chart of the mean reward of each role."""
    chart = Chart("Reward by role", "Mean over the episodes of a step, sub-episodes included.")
    roles = []
    for index, role in enumerate(run.roles()):
        series = run.series(REWARD + role)
        if series[0]:
            chart.traces.append(curve(role, series, index))
            roles.append(role)
    if len(roles) == 1:
        chart.title = f"Reward of {roles[0]}"
    return [chart] if roles else []


def rubric_charts(run: RunData) -> list[Chart]:
    """Return a chart of the values of the reward functions for each type of episode.

    Metrics that leave the range from -1 to 1 get charts of their own, so that they do not flatten the others.
    """
    small: dict[str, Chart] = {}
    large = []
    for name in run.metric_names():
        parts = name.removeprefix(METRIC).split("/")
        series = run.series(name)
        if not name.startswith(METRIC) or len(parts) < 3 or not series[0]:
            continue
        episode_type, function, role = parts[0], "/".join(parts[1:-1]), parts[-1]
        caption = "Value of a reward function before its weight; mean over the episodes of a step."
        label = f"{function}, {role}"
        if max(map(abs, series[1])) > 1:
            large.append(Chart(f"{episode_type}: {label}", caption, [curve(label, series, 0)]))
            continue
        chart = small.setdefault(episode_type, Chart(f"Metrics of {episode_type}", caption))
        chart.traces.append(curve(label, series, len(chart.traces)))
    return [*small.values(), *large]


def failure_charts(run: RunData) -> list[Chart]:
    """Return the chart of failed and retried episodes, if there are any."""
    chart = Chart("Failed and retried episodes", "Total since the start of the run.")
    for index, name in enumerate(("failed", "retried")):
        series = run.series(f"accounts/{name}")
        if any(series[1]):
            chart.traces.append(curve(name, series, index))
    chart.layout = {"yaxis": {"rangemode": "tozero"}}
    return [chart] if chart.traces else []


def policy_rating_charts(run: RunData) -> list[Chart]:
    """Return the chart of the policies' ratings; empty if no policies have met and so none is rated."""
    chart = Chart("Ratings of the policies", "TrueSkill mean, plus and minus two standard deviations.")
    found = {policy: points for policy in _rated_policies(run) if (points := _ratings(run, policy))}
    if len({rate for points in found.values() for _, rate in points}) < 2:
        return []
    for index, (policy, points) in enumerate(found.items()):
        shown = thin(points)
        steps, rates = [step for step, _ in shown], [rate for _, rate in shown]
        chart.traces += banded_curve(policy, steps, rates, index, markers=False)
    return [chart]


def _rated_policies(run: RunData) -> list[str]:
    names = [name for name in run.metric_names() if name.startswith(RATING) and name.endswith("/mu")]
    return [name.removeprefix(RATING).removesuffix("/mu") for name in names]


def _ratings(run: RunData, policy: str) -> list[tuple[float, Rate]]:
    """Return a policy's ratings by step, where both mean and standard deviation are known."""
    means = dict(zip(*run.series(f"{RATING}{policy}/mu"), strict=True))
    deviations = dict(zip(*run.series(f"{RATING}{policy}/sigma"), strict=True))
    return [
        (step, Rate(mean - 2 * deviations[step], mean, mean + 2 * deviations[step]))
        for step, mean in means.items()
        if step in deviations
    ]
