"""Whole runs against policies in files."""

import shutil
from collections import Counter

import pytest

from game_runs import configure, cut_back, metrics_of, resumed, run
from league_runs import games
from sparring.core import InputError
from sparring.evaluation.nash_conv import states_of
from sparring.evaluation.policy_file import write_policy
from sparring.run.checks import check_config

KUHN = "kuhn_poker"


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "bets.jsonl"
    write_policy(path, {one.info_state: {one.actions[1]: 1.0} for one in states_of(KUHN)})
    return path


def against(model, given, **changes):
    fixed = {"population__sample_mode": "fixed", "population__fixed_opponents": "['bets', 'random']"}
    less = {
        "evaluation__every": "0",
        "evaluation__games": "2",
        "learning__steps": "2",
        "run__save_every": "1",
    }
    more = {"population__weights": "[3, 1]", "tracking__games_logged": "100"}
    return configure(model, frozen__bets=str(given), **fixed | less | more | changes)


def test_a_policy_in_a_file_is_drawn_by_its_weight_also_where_its_run_was_moved(model, given, tmp_path):
    run(against(model, given), tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    given.unlink()
    cut_back(tmp_path / "moved", to=1)
    resumed(tmp_path / "moved")
    met = Counter(uid for game in games(tmp_path / "moved") for uid in game.meta["uids"])
    assert met["fixed-bets"] > met["fixed-random"] > 0
    assert metrics_of(tmp_path / "moved")[-1]["accounts/finished"] == 16


@pytest.mark.parametrize(("content", "line"), [(None, "no file with a policy"), ("{}", "line 1: is no line")])
def test_a_file_without_a_policy_is_one_line_before_anything_is_loaded(model, given, content, line):
    """Nobody meets it: it holds a seat."""
    given.unlink()
    if content is not None:
        given.write_text(content)
    config = against(model, given, envs=f'[{{id = "{KUHN}", policies = ["default", "bets"]}}]')
    with pytest.raises(InputError, match=line):
        check_config(config)


def test_a_policy_cannot_hold_a_seat_of_another_librarys_game(model, given):
    envs = '[{id = "TicTacToe-v0-train", policies = ["default", "bets"]}]'
    changes = {"population__fixed_opponents": "['random']", "population__weights": "[]"}
    changes |= {"envs": envs, "evaluation__nash_conv": "false", "evaluation__opponents": "['random']"}
    config = against(model, given, **changes)
    with pytest.raises(InputError, match=r"envs.0.policies: .*bets.jsonl is a policy for OpenSpiel's games"):
        check_config(config)
