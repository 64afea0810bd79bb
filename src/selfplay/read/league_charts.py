"""The charts of a league: who learned in how many games and against whom, and who beats whom now."""

from bisect import bisect_right
from collections import defaultdict

from selfplay.read.charts import Chart, Line, lines_of, share_chart
from selfplay.read.run_view import RunView
from selfplay.read.series import Series

LEAGUE = "league/"
REASONS = {
    "self_play": "main players (self-play)",
    "forgotten": "forgotten copies",
    "pfsp": "prioritised copies",
    "main": "main players",
}
"""Why an opponent was drawn, as metrics name it and as it is shown; see ``selfplay.population.league``."""


def league_charts(run: RunView) -> list[Chart | None]:
    """Return the charts of a league's players; none without a league."""
    games = _games(run)
    of_players = {player: _sums(list(by_reason.values())) for player, by_reason in games.items()}
    return [
        share_chart(
            "Games of each player",
            _shares(of_players),
            "Share of the games of training in which the player learned, since the start of the run.",
        ),
        *(
            share_chart(
                f"Whom {player} met",
                _shares({REASONS.get(reason, reason): one for reason, one in by_reason.items()}),
                "Share of the games in which it learned, since the start of the run.",
            )
            for player, by_reason in games.items()
            if len(by_reason) > 1
        ),
        share_chart(
            "Win rates between players",
            lines_of(_win_rates(run)),
            "Of recent games between players as they were at that update; a draw is half a win.",
        ),
    ]


def _games(run: RunView) -> dict[str, dict[str, Series]]:
    """Return the games of each player by reason, so far at each step."""
    found: defaultdict[str, dict[str, Series]] = defaultdict(dict)
    for rest, one in run.under(LEAGUE).items():
        player, _, reason = rest.partition("/games/")
        if reason:
            found[player][reason] = one
    return dict(found)


def _win_rates(run: RunView) -> dict[str, Series]:
    pairs = {rest: rest.split("/win_rate/") for rest in run.under(LEAGUE) if "/win_rate/" in rest}
    return {" against ".join(pair): run.metric(LEAGUE + rest) for rest, pair in pairs.items()}


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
    """Return the sum of counts at every step."""
    steps = sorted({step for one in found for step in one.steps})
    return Series(steps, [sum(counts) for counts in zip(*(_at(one, steps) for one in found), strict=True)])


def _at(one: Series, steps: list[float]) -> list[float]:
    """Return a count at each of these steps: the last that was known, 0 before the first."""
    places = [bisect_right(one.steps, step) for step in steps]
    return [one.values[place - 1] if place else 0.0 for place in places]
