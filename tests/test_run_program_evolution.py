"""Whole runs of leagues of programs whose worst players are replaced, with a tiny model."""

import pytest

from game_runs import metrics_of
from program_leagues import league_of
from program_runs import run
from sparring.core import InputError
from sparring.run.programs import build_program

ASKERS = """{
    proposer = {role = "main"},
    solver = {role = "main"},
    second = {role = "main", seats = ["Solver"]}
}""".replace("\n", "")


def asking(model, directory, **changes):
    """A league of proposers and solvers, of whom the solvers are compared."""
    more = {
        "league__players": ASKERS,
        "league__evolution__every": "1",
        "league__evolution__measures": '{Solver = "solver exact match"}',
        "learning__steps": "2",
    }
    return league_of("proposer-solver", model, directory, **more | changes)


def hiding(model, directory, measure, kind="HideAndSeek"):
    """A league of a program of one's own, of whose hiders two are compared."""
    players = """{
        hider = {role = "main"},
        second = {role = "main", seats = ["Hider"]},
        seeker = {role = "main"},
        third = {role = "main", seats = ["Seeker"]}
    }""".replace("\n", "")
    changes = {
        "league__players": players,
        "league__evolution__every": "2",
        "league__evolution__measures": f'{{Hider = "{measure}"}}',
        "learning__steps": "2",
        "program__options": "{batch_size = 12}",
    }
    path = f"{directory / 'hide_and_seek.py'}:{kind}"
    return league_of("own", model, directory, **changes, program__path=path)


def test_players_of_a_measured_role_are_compared_and_a_measure_of_few_items_is_a_warning(model, tmp_path):
    said = run(hiding(model, tmp_path, "odd letters"), tmp_path / "run")
    assert "odd letters has 3 items; players are compared by 20 or more, so nobody is replaced" in said
    last = metrics_of(tmp_path / "run")[-1]
    compared = {name.split("/")[1] for name in last if name.endswith("/measure")}
    assert compared == {"hider", "second"}
    assert not any("/parents/" in name for name in last)


def test_a_measure_that_has_no_value_before_the_training_is_waited_for(model, tmp_path):
    said = run(hiding(model, tmp_path, "odd letters", kind="Late"), tmp_path / "run")
    assert "odd letters has 0 items" in said
    assert metrics_of(tmp_path / "run")[-1]["league/hider/measure"] >= 0


@pytest.mark.slow
def test_players_of_a_measured_role_are_compared_by_it_and_others_are_not(model, tmp_path):
    run(asking(model, tmp_path), tmp_path / "run")
    lines = metrics_of(tmp_path / "run")
    compared = [{name.split("/")[1] for name in line if name.endswith("/measure")} for line in lines]
    assert compared == [set(), {"solver", "second"}], (
        "after the first update, one of them has not learned yet"
    )
    assert all(0 <= lines[1][f"league/{player}/measure"] <= 1 for player in compared[1])


@pytest.mark.parametrize(
    ("measures", "line"),
    [
        ("{}", "league.evolution.measures: is missing"),
        ('{Judge = "solver exact match"}', "league.evolution.measures: there is no role Judge"),
        ('{Proposer = "proposer valid"}', "measures: has none for .* compared. Name one for Solver"),
    ],
)
def test_a_measure_of_no_role_is_one_line(model, tmp_path, measures, line):
    with pytest.raises(InputError, match=line):
        build_program(asking(model, tmp_path, league__evolution__measures=measures))


def test_a_measure_that_the_program_has_not_ends_the_run_before_it_trains(model, tmp_path):
    with pytest.raises(InputError, match=r"Hider: the program does not measure 'luck'. Name one of: odd le"):
        run(hiding(model, tmp_path, "luck"), tmp_path / "run")
