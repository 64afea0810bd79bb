"""``sparring export --payoffs``: what the members of a run's pool earned, by who sat where."""

import csv
import json
import shutil
from statistics import fmean, variance

import pytest

from game_runs import configure, run
from seat_runs import games
from sparring.cli.main import main
from sparring.evaluation.tournament_files import write_payoffs
from sparring.population import PayoffTable

SETTINGS = {
    "population__add_every": "1",
    "population__max_active_lora": "2",
    "population__fixed_opponents": '["random"]',
    "learning__steps": "3",
    "collection__games_per_step": "24",
    "evaluation__every": "0",
    "evaluation__nash_conv": "false",
    "run__save_every": "1",
    "tracking__games_logged": "1000",
}


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("pfsp") / "run"
    run(configure(model, population__sample_mode="pfsp", **SETTINGS), path)
    return path


def exported(source, out) -> dict:
    assert main(["export", str(source), str(out), "--payoffs"]) == 0
    assert {file.name for file in out.iterdir()} == {"payoffs.json", "payoffs.csv"}
    return json.loads((out / "payoffs.json").read_text())


def test_the_payoffs_of_a_run_are_those_of_its_games_seat_by_seat(trained, tmp_path):
    found = exported(trained, tmp_path / "out")
    assert (found["run"], found["update"], found["env_ids"]) == ("run", 3, ["kuhn_poker"])
    played = {}
    for game in games(trained):
        played.setdefault(tuple(game.meta["uids"]), []).append(game)
    assert len(played) > 4
    assert {tuple(row["seating"]) for row in found["payoffs"]} == played.keys()
    for row in found["payoffs"]:
        mine = played[tuple(row["seating"])]
        rewards = [game.extras["final_rewards"][row["seat"]] for game in mine]
        assert row["games"] == len(mine)
        assert row["mean"] == pytest.approx(fmean(rewards))
        assert row["invalid"] == sum(game.extras["invalid_pid"] == row["seat"] for game in mine)
        if len(mine) > 1:
            assert row["variance"] == pytest.approx(variance(rewards))
    assert sum(row["invalid"] for row in found["payoffs"]) > 0, "or the test shows nothing"
    lines = list(csv.DictReader((tmp_path / "out" / "payoffs.csv").open()))
    assert [float(line["mean"]) for line in lines] == [row["mean"] for row in found["payoffs"]]
    place = {uid: row for row, uid in enumerate(found["members"])}
    met = found["matrix"]["games"][place["default"]][place["fixed-random"]]
    both = played.get(("default", "fixed-random"), []) + played.get(("fixed-random", "default"), [])
    assert met == len(both) > 0


def test_an_earlier_checkpoint_has_the_payoffs_of_its_time(trained, tmp_path):
    found = exported(f"{trained}@2", tmp_path / "out")
    assert found["update"] == 2
    assert sum(row["games"] for row in found["payoffs"] if row["seat"] == 0) == 48


@pytest.mark.slow  # test_run_local plays this mode by default
def test_payoffs_of_frozen_members_are_among_those_of_mode_meta_nash(model, tmp_path):
    mode = {"population__sample_mode": "meta-nash", "population__payoff_games": "4"}
    run(configure(model, **SETTINGS | mode), tmp_path / "run")
    rows = exported(tmp_path / "run", tmp_path / "out")["payoffs"]
    frozen = [row for row in rows if row["seating"] == ["ckpt-0", "fixed-random"]]
    assert [row["games"] for row in frozen] == [2, 2]
    assert any("default" in row["seating"] for row in rows)


@pytest.mark.parametrize(("rewards", "against_itself"), [((1.0, -1.0), 0.0), ((1.0, 0.0), None)])
def test_a_game_against_oneself_is_known_only_if_it_was_played_or_pays_nothing(
    rewards, against_itself, tmp_path
):
    table = PayoffTable()
    table.append(("a", "b"), rewards)
    table.append(("b", "a"), rewards)
    write_payoffs(tmp_path, {}, table, ["a", "b", "c"])
    matrix = json.loads((tmp_path / "payoffs.json").read_text())["matrix"]
    assert matrix["mean"][0] == [against_itself, sum(rewards) / 2, None]
    assert matrix["standard_error"][0][0] == against_itself
    assert matrix["games"][0] == [0, 2, 0]


def failing(capsys, *words) -> str:
    capsys.readouterr()
    assert main(["export", *map(str, words), "--payoffs"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_has_no_payoffs_is_a_one_line_error(trained, tmp_path, capsys):
    assert "OUT: " in failing(capsys, trained, tmp_path)
    assert "does not go together with --merge" in failing(capsys, trained, tmp_path / "out", "--merge")
    assert "no checkpoint of update 9" in failing(capsys, f"{trained}@9", tmp_path / "out")
    assert "no member of a pool has played" in failing(capsys, f"{trained}@0", tmp_path / "out")
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "checkpoints" / "step-000003" / "state.json").write_text("{")
    assert "state.json: is damaged" in failing(capsys, copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
