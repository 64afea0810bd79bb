"""The charts of a league, from recorded counts."""

from selfplay.read.league_charts import league_charts
from selfplay.read.run_view import RunView
from selfplay.read.series import Series

COUNTS = {
    "league/default/games/self_play": Series([1.0, 2.0, 3.0], [6.0, 6.0, 12.0]),
    "league/default/games/pfsp": Series([2.0, 3.0], [2.0, 4.0]),
    "league/attacker/games/main": Series([1.0, 3.0], [2.0, 4.0]),
    "league/attacker/win_rate/default": Series([2.0], [0.25]),
}


def charts(series):
    found = [one for one in league_charts(RunView("run", series=series)) if one is not None]
    return {one.title: {line.name: (line.steps, line.values) for line in one.lines} for one in found}


def test_shares_are_of_all_games_so_far():
    drawn = charts(COUNTS)
    assert drawn["Games of each player"] == {
        "attacker": ([1.0, 2.0, 3.0], [0.25, 0.2, 0.2]),
        "default": ([1.0, 2.0, 3.0], [0.75, 0.8, 0.8]),
    }
    assert drawn["Whom default met"] == {
        "prioritised copies": ([1.0, 2.0, 3.0], [0.0, 0.25, 0.25]),
        "main players (self-play)": ([1.0, 2.0, 3.0], [1.0, 0.75, 0.75]),
    }
    assert "Whom attacker met" not in drawn, "it met only main players"


def test_win_rates_are_named_by_both_players():
    assert charts(COUNTS)["Win rates between players"] == {"attacker against default": ([2.0], [0.25])}


def test_a_run_without_a_league_has_no_such_charts():
    assert charts({"learner/loss": Series([1.0], [1.0])}) == {}
