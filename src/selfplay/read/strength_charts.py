"""The charts of strength: evaluations with their intervals, and ratings."""

from selfplay.core.intervals import Interval
from selfplay.read.charts import FROM_ZERO, Chart, Line, banded_line, chart, lines_of, share_chart
from selfplay.read.evaluations import Evaluation, are_shares, exact_of, matches_of, measures_of
from selfplay.read.metrics import POOL
from selfplay.read.run_view import RunView
from selfplay.read.series import Series


def strength_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of a run's evaluations and ratings."""
    if run.is_program:
        return [*_measure_charts(run), _policy_ratings(run)]
    draws = any(one.draws for one in run.evaluations)
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
        chart(
            "NashConv",
            _nash_lines(run),
            "The gain of best responses against this policy, summed over seats; 0 is an equilibrium.",
            bounds=FROM_ZERO,
        ),
        share_chart(
            "Win rate in rolling evaluation",
            lines_of(by_env(run, "evaluation-", "Win Rate")),
            "Mean over recent games.",
        ),
    ]


def rate_lines(run: RunView, rate: str) -> list[Line]:
    """Return a line for each opponent: a rate of :meth:`Evaluation.rates` by step."""
    return [
        banded_line(match_name(run, *of_what), {one.step: one.rates()[rate] for one in matches})
        for of_what, matches in matches_of(run.evaluations).items()
    ]


def match_name(run: RunView, env_id: str, opponent: str) -> str:
    """Return the name of a series of matches; the environment is part of it if there are several."""
    against = f"against {opponent}" if opponent else "alone"
    return against if len(run.plays()) == 1 else f"{env_id} {against}"


def by_env(run: RunView, prefix: str, measure: str) -> list[tuple[str, Series]]:
    """Return a metric of every environment, named by environment if there are several."""
    found = [
        (rest.removesuffix(f"/{measure}"), one)
        for rest, one in run.under(prefix).items()
        if rest.endswith(f"/{measure}")
    ]
    return found if len(found) > 1 else [("", one) for _, one in found]


def _nash_lines(run: RunView) -> list[Line]:
    found = exact_of(run.evaluations)
    return lines_of((env_id if len(found) > 1 else "", _nash_series(one)) for env_id, one in found.items())


def _nash_series(found: list[Evaluation]) -> Series:
    return Series([float(one.step) for one in found], [one.nash_conv or 0.0 for one in found])


def _measure_charts(run: RunView) -> list[Chart | None]:
    """Return one chart of all shares and one chart for every other measure, each with its interval."""
    series = measures_of(run.evaluations)
    shares = [name for name, measures in series.items() if are_shares(measures)]
    lines = {
        name: banded_line(name, {one.step: one.interval() for one in measures})
        for name, measures in series.items()
    }
    return [
        share_chart(
            shares[0] if len(shares) == 1 else "Shares",
            [lines[name] for name in shares],
            "Share of the items; bands are 95% Wilson intervals.",
        ),
        *(
            chart(name, [line], "Mean over the items; the band is a 95% interval.")
            for name, line in lines.items()
            if name not in shares
        ),
    ]


def _policy_ratings(run: RunView) -> Chart | None:
    """Return the chart of the policies' ratings; ``None`` if no policies have met and so none is rated."""
    names = [rest.removesuffix("/mu") for rest in run.under(POOL) if rest.endswith("/mu")]
    found = {policy: points for policy in names if (points := _ratings(run, policy))}
    if len({rating for points in found.values() for rating in points.values()}) < 2:
        return None
    lines = [banded_line(policy, points) for policy, points in found.items()]
    return chart("Ratings of the policies", lines, "TrueSkill mean, plus and minus two standard deviations.")


def _ratings(run: RunView, policy: str) -> dict[float, Interval]:
    """Return a policy's ratings by step, where both mean and standard deviation are known."""
    means, deviations = (run.series.get(f"{POOL}{policy}/{name}", Series()) for name in ("mu", "sigma"))
    spread = dict(zip(deviations.steps, deviations.values, strict=True))
    return {
        step: Interval(mean - 2 * spread[step], mean, mean + 2 * spread[step])
        for step, mean in zip(means.steps, means.values, strict=True)
        if step in spread
    }
