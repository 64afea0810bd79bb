"""The charts of a population: ratings, who was drawn, and the players of a league."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from sparring.core.confidence_intervals import Interval
from sparring.population.evolution import replaced
from sparring.population.pool_members import copy_of
from sparring.view.charts import FROM_ZERO, Chart, Line, banded_line, chart, lines_of, share_chart
from sparring.view.metrics import Series
from sparring.view.run_view import RunView

LEAGUE = "league/"
REASONS = {
    "self_play": "main players (self-play)",
    "forgotten": "forgotten copies",
    "pfsp": "prioritised copies",
    "main": "main players",
}
"""Why an opponent was drawn, as metrics name it and as it is shown; see ``sparring.population.league``."""


def population_charts(run: RunView, exact: Iterable[Chart | None]) -> Iterator[Chart | None]:
    """Yield the charts of a run whose policies meet frozen copies, with those of ``exact`` measures."""
    if run.has_population:
        yield _ratings(run)
    yield from exact
    yield _draws_of_copies(run)
    games = _games(run)
    yield share_chart(
        "Games of each player",
        _shares({player: _sums(list(by_reason.values())) for player, by_reason in games.items()}),
        "Share of the games of training in which the player learned, since the start of the run.",
    )
    for player, by_reason in games.items():
        if len(by_reason) > 1:
            yield share_chart(
                f"Whom {player} met",
                _shares({REASONS.get(reason, reason): one for reason, one in by_reason.items()}),
                "Share of the games in which it learned, since the start of the run.",
            )
    pairs = {rest: rest.split("/win_rate/") for rest in run.under(LEAGUE) if "/win_rate/" in rest}
    yield share_chart(
        "Win rates between players",
        lines_of({" against ".join(pair): run.metric(LEAGUE + rest) for rest, pair in pairs.items()}),
        "Of recent games between players as they were at that update; a draw is half a win.",
    )
    yield _compared(run)


def _compared(run: RunView) -> Chart | None:
    """Return the chart of what players earned when evolution compared them, with who was replaced."""
    found, names = run.under(LEAGUE), ("measure_low", "measure", "measure_high")
    lines = []
    for player in (name.removesuffix("/measure") for name in found if name.endswith("/measure")):
        parts = [found[f"{player}/{name}"] for name in names]
        bands = zip(parts[0].steps, *(one.values for one in parts), strict=True)
        lines.append(banded_line(player, {step: Interval(*band) for step, *band in bands}))
    events = sorted((step, name) for name, one in found.items() for step in one.steps if "/parents/" in name)
    by_update = groupby(events, key=itemgetter(0))
    children = [
        f"{player} is a child of {' and '.join(parents)} (update {step:.0f})"
        for step, of_update in by_update
        for player, parents in replaced({name: 1.0 for _, name in of_update}).items()
    ]
    caption = (
        f"Mean reward against opponents that stay the same. {'; '.join(children) or 'Nobody was replaced'}."
    )
    return chart("Players compared", lines, caption)


def _ratings(run: RunView) -> Chart | None:
    policies = dict.fromkeys(uid for moment in run.moments for uid in moment.policies)
    points = {
        uid: {float(one.step): one.ratings[uid] for one in run.moments if uid in one.ratings}
        for uid in policies
    }
    return chart(
        "Ratings of the policies against the population",
        [banded_line(uid, found) for uid, found in points.items() if found],
        "Bradley-Terry: 400 points more are ten times the odds of a win, and 1,000 is the mean of the "
        "members at that update. Bands are 95% intervals.",
    )


def _draws_of_copies(run: RunView) -> Chart | None:
    """Return the chart of how often each copy of a policy was drawn; ``None`` without two of them."""
    drawn = {uid: figures["drawn"] for uid, figures in run.pool().items() if "drawn" in figures}
    copies: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for uid, count in drawn.items():
        if copy := copy_of(uid):
            copies[copy[0]][copy[1]] = count
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
    others = [f"{uid} {drawn[uid] / total:.1%}" for uid in sorted(drawn) if not copy_of(uid)]
    rest = f" Of all draws, {', '.join(others)}." if others else ""
    caption = f"Games for which each copy was drawn so far, by the update after which it was frozen.{rest}"
    return chart("Draws of each copy", lines, caption, bounds=FROM_ZERO)


def _games(run: RunView) -> dict[str, dict[str, Series]]:
    found: defaultdict[str, dict[str, Series]] = defaultdict(dict)
    for rest, one in run.under(LEAGUE).items():
        player, _, reason = rest.partition("/games/")
        if reason:
            found[player][reason] = one
    return dict(found)


def _shares(counts: dict[str, Series]) -> list[Line]:
    """Return what each series of counts is of their sum, where the sum is above 0."""
    whole = _sums(list(counts.values()))
    sums = [(step, total) for step, total in zip(whole.steps, whole.values, strict=True) if total]
    steps = [step for step, _ in sums]
    shares = {
        name: [count / total for count, (_, total) in zip(_at(one, steps), sums, strict=True)]
        for name, one in counts.items()
    }
    return lines_of({name: Series(steps, values) for name, values in shares.items()})


def _sums(found: list[Series]) -> Series:
    steps = sorted({step for one in found for step in one.steps})
    return Series(steps, [sum(counts) for counts in zip(*(_at(one, steps) for one in found), strict=True)])


def _at(one: Series, steps: list[float]) -> list[float]:
    """Return a count at each of these steps: the last that was known, 0 before the first."""
    places = [bisect_right(one.steps, step) for step in steps]
    return [one.values[place - 1] if place else 0.0 for place in places]
