"""Whole runs with values by the tree of games for three players, and of games of general sum."""

import json

import pytest

from game_runs import MAGNET, configure, metrics_of, run
from matrices import first_of

GAMES = {
    "kuhn_poker(players=3)": 3,
    "first_sealed_auction(max_value=4)": 2,
    "turn_based_simultaneous_game(game=matrix_pd())": 2,
}


@pytest.mark.parametrize("game", first_of([*GAMES], 2))
def test_a_game_for_three_or_of_general_sum_is_learned_measured_and_reported(model, tmp_path, game):
    changes = MAGNET | {
        "envs": f'[{{id = "{game}", num_players = {GAMES[game]}, explore = 0.8}}]',
        "learning__algorithm": '{type = "magnet", values = "tree"}',
        "learning__steps": "2",
        "evaluation__opponents": '["random", "base"]',
        "evaluation__nash_conv": "true",
    }
    run(configure(model, **changes), tmp_path / "run")
    assert metrics_of(tmp_path / "run")[-1]["learner/tree_share"] > 0.2
    seats = [str(seat) for seat in range(GAMES[game])]
    kinds = set()
    for file in (tmp_path / "run" / "evaluation").glob("step-000002-*.json"):
        found = json.loads(file.read_text())
        kinds.add((found["kind"], found.get("opponent")))
        if found["kind"] == "match":
            assert [*found["by_seat"]] == seats
            continue
        assert len(found["exploitability"]) == len(seats)
        assert found["nash_conv"] == pytest.approx(sum(found["exploitability"]))
        assert min(found["exploitability"]) > -1e-9
    assert kinds == {("match", "random"), ("match", "base"), ("nash_conv", None)}
    page = (tmp_path / "run" / "report.html").read_text()
    assert game in page
    assert "NashConv" in page
