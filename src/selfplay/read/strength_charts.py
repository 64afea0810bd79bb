"""The charts of strength: evaluations with their intervals, and ratings."""

from dataclasses import replace

from selfplay.core.confidence_intervals import Interval
from selfplay.read.charts import FROM_ZERO, Chart, Line, banded_line, chart, lines_of, share_chart
from selfplay.read.evaluations import are_shares, exact_of, match_title, matches_of, measures_of
from selfplay.read.metrics import POOL
from selfplay.read.run_view import RunView
from selfplay.read.series import Series


def strength_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of a run's evaluations and ratings; NashConv is shown with a population, if any."""
    draws = any(one.draws for one in run.evaluations)
    shares = measure_lines(run, shares=True)
    return [
        share_chart(
            "Win rate in evaluation matches",
            rate_lines(run, "Wins"),
            "Bands are 95% Wilson intervals.",
        ),
        share_chart(
            "Draw rate in evaluation matches",
            rate_lines(run, "Draws") if draws else [],
            "In many games a draw is the best possible result against perfect play.",
        ),
        None if run.has_population else nash_chart(run),
        share_chart(
            "Win rate in rolling evaluation",
            lines_of(by_env(run, "evaluation-", "Win Rate")),
            "Mean over recent games.",
        ),
        share_chart(
            shares[0].name if len(shares) == 1 else "Shares",
            shares,
            "Share of the items; bands are 95% Wilson intervals.",
        ),
        *(
            chart(line.name, [line], "Mean over the items; the band is a 95% interval.")
            for line in measure_lines(run, shares=False)
        ),
        _policy_ratings(run),
    ]


def rate_lines(run: RunView, rate: str) -> list[Line]:
    """Return a line for each opponent: a rate of :meth:`Evaluation.rates` by step."""
    return [
        banded_line(match_name(run, *of_what), {one.step: one.rates()[rate] for one in matches})
        for of_what, matches in matches_of(run.evaluations).items()
    ]


def match_name(run: RunView, env_id: str, opponent: str) -> str:
    """Return the name of a series of matches; the environment is part of it if there are several."""
    title = match_title(env_id, opponent)
    several = len({*run.plays(), *(one.env_id for one in run.evaluations)}) > 1
    return title if several else title.removeprefix(f"{env_id} ")


def nash_chart(run: RunView) -> Chart | None:
    """Return the chart of the NashConv of every exactly evaluated environment."""
    lines = nash_lines(run)
    return chart(
        "NashConv",
        lines if len(lines) > 1 else [replace(line, name="") for line in lines],
        "The gain of best responses against this policy, summed over seats; 0 is an equilibrium.",
        bounds=FROM_ZERO,
    )


def nash_lines(run: RunView) -> list[Line]:
    """Return the NashConv of every exactly evaluated environment by step."""
    found = exact_of(run.evaluations)
    return lines_of(
        {
            env_id: Series([float(one.step) for one in exact], [one.nash_conv or 0.0 for one in exact])
            for env_id, exact in found.items()
        }
    )


def measure_lines(run: RunView, *, shares: bool) -> list[Line]:
    """Return the program's measures by step: those that are shares, or the others."""
    return [
        banded_line(name, {one.step: one.interval() for one in measures})
        for name, measures in measures_of(run.evaluations).items()
        if are_shares(measures) == shares
    ]


def by_env(run: RunView, prefix: str, measure: str) -> dict[str, Series]:
    """Return a metric of every environment, named by environment if there are several."""
    found = run.under(prefix, f"/{measure}")
    return dict(zip(found if len(found) > 1 else [""], found.values(), strict=False))


def _policy_ratings(run: RunView) -> Chart | None:
    """Return the chart of the learning policies' ratings; ``None`` if they never met and so none is rated."""
    found = {policy: points for policy in run.policies() if (points := _ratings(run, policy))}
    if len({rating for points in found.values() for rating in points.values()}) < 2:
        return None
    lines = [banded_line(policy, points) for policy, points in found.items()]
    return chart("Ratings of the policies", lines, "TrueSkill mean, plus and minus two standard deviations.")


def _ratings(run: RunView, policy: str) -> dict[float, Interval]:
    """Return a policy's ratings by step, where both mean and standard deviation are known."""
    means, deviations = run.metric(f"{POOL}{policy}/mu"), run.metric(f"{POOL}{policy}/sigma")
    spread = dict(zip(deviations.steps, deviations.values, strict=True))
    return {
        step: Interval(mean - 2 * spread[step], mean, mean + 2 * spread[step])
        for step, mean in zip(means.steps, means.values, strict=True)
        if step in spread
    }
