"""The charts of a population: ratings, exploitability, who was drawn, and the players of a league."""

from selfplay.core.adapters import TRAINED
from selfplay.read.charts import FROM_ZERO, Chart, Line, banded_line, chart
from selfplay.read.league_charts import league_charts
from selfplay.read.population import COPY
from selfplay.read.run_view import RunView
from selfplay.read.strength_charts import nash_chart

RATINGS = "Ratings of the policies against the population"
RATINGS_CAPTION = (
    "Bradley-Terry: 400 points more are ten times the odds of a win, and 1,000 is the mean of the members at "
    "that update. Bands are 95% intervals."
)


def population_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of a run whose policies meet frozen copies."""
    of_members = [_ratings(run), nash_chart(run)] if run.has_population else []
    return [*of_members, _draws_of_copies(run), *league_charts(run)]


def _ratings(run: RunView) -> Chart | None:
    """Return the chart of the ratings that change, which are those of policies."""
    policies = dict.fromkeys(uid for moment in run.moments for uid in moment.policies)
    points = {
        uid: {
            float(one.step): one.ratings[uid]
            for one in run.moments
            if one.step is not None and uid in one.ratings
        }
        for uid in policies
    }
    return chart(
        RATINGS, [banded_line(uid, found) for uid, found in points.items() if found], RATINGS_CAPTION
    )


def _draws_of_copies(run: RunView) -> Chart | None:
    """Return the chart of how often each copy of a policy was drawn; ``None`` without two of them."""
    drawn = {uid: figures["drawn"] for uid, figures in run.pool().items() if "drawn" in figures}
    copies: dict[str, dict[int, float]] = {}
    for uid in drawn:
        if found := COPY.fullmatch(uid):
            copies.setdefault(found["policy"] or TRAINED, {})[int(found["update"])] = drawn[uid]
    if sum(map(len, copies.values())) < 2:
        return None
    lines = [
        Line(
            policy if len(copies) > 1 else "",
            [*map(float, sorted(counts))],
            [counts[update] for update in sorted(counts)],
        )
        for policy, counts in sorted(copies.items())
    ]
    total = sum(drawn.values())
    others = [f"{uid} {drawn[uid] / total:.1%}" for uid in sorted(drawn) if not COPY.fullmatch(uid)]
    rest = f" Of all draws, {', '.join(others)}." if others else ""
    caption = f"Games for which each copy was drawn so far, by the update after which it was frozen.{rest}"
    return chart("Draws of each copy", lines, caption, bounds=FROM_ZERO)
