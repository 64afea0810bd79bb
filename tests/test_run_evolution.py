"""Whole runs of a league in one process whose worst players are replaced, with a tiny model."""

import functools
import json
import shutil

import msgspec
import pytest

from evolution_runs import EVOLUTION, PLAYERS, STEPS, given_adapters, state_of
from game_runs import configure, metrics_of, resumed, run
from kill_resume import accounts_balance, differences, fingerprint
from league_kills import PLACES, acting
from league_runs import copy_of, learner_of, same
from program_runs import adapter
from sparring.config import load_config
from sparring.core import InputError
from sparring.learn.adapter_evolution import child_of
from sparring.population import TrueSkillRatings
from sparring.population.evolution import Child, replaced
from sparring.population.pool_members import checkpoint_uid
from sparring.run.checks import check_config

KILLED = "start_again"
"""The place of which the run's directory is copied, as the first child has taken its place."""


@pytest.fixture(scope="module")
def config(model, tmp_path_factory):
    return configure(model, **given_adapters(model, tmp_path_factory.mktemp("given")))


@pytest.fixture(scope="module")
def evolved(config, tmp_path_factory):
    """A finished run, a copy of its directory from the moment of a kill, and what it printed."""
    path = tmp_path_factory.mktemp("evolved")
    with pytest.MonkeyPatch.context() as patch:
        copy = functools.partial(shutil.copytree, dst=path / "killed")
        patch.setattr(PLACES[KILLED], KILLED, acting(KILLED, 1, copy))
        printed = run(config, path / "run")
    return path / "run", path / "killed", printed


def children(path):
    """Return the children after each update, by update."""
    states = {step: json.loads(state_of(path, step)) for step in range(1, STEPS + 1)}
    turns = {step: state["source"]["games"]["turn"]["children"] for step, state in states.items()}
    return {step: msgspec.convert(found, list[Child]) for step, found in turns.items() if found}


def test_the_worst_player_is_replaced_by_a_child_of_better_ones(evolved):
    path, _, _ = evolved
    lines = {line["step"]: line for line in metrics_of(path)}
    born = children(path)
    assert born
    for step, (child,) in born.items():
        found = {player: lines[step][f"league/{player}/measure"] for player in PLAYERS}
        assert found[child.player] == min(found.values())
        assert found[child.parents[0]] == max(found.values())
        assert replaced(lines[step]) == {f"league/{child.player}": sorted(child.parents)}
    assert {step for step, line in lines.items() if "league/default/measure" in line} == {2}


def test_a_child_has_its_parents_weights_crossed_and_an_empty_optimizer(evolved):
    path, _, _ = evolved
    for step, (child,) in children(path).items():
        parents = [adapter(path, step, parent) for parent in child.parents]
        weights = child_of(parents, child.noise, child.seed)
        assert same(adapter(path, step, child.player), weights), "this is its average"
        tensors = learner_of(path, step, child.player)
        assert same({name: tensors[f"weights.{name}"] for name in weights}, weights)
        assert not any(name.startswith("optimizer") for name in tensors)
        later = learner_of(path, step + 1, child.player)
        assert any(name.startswith("optimizer") for name in later), "it learns on"


def test_the_copies_of_who_was_replaced_stay_and_its_rating_is_that_of_a_beginner(evolved):
    path, _, _ = evolved
    step, (child,) = next(iter(children(path).items()))
    members = {one["uid"]: one for one in json.loads(state_of(path, step))["source"]["pool"]["models"]}
    copy = checkpoint_uid(step, child.player)
    assert members.keys() >= {copy, checkpoint_uid(0, child.player)}
    assert not same(copy_of(path, copy), adapter(path, step, child.player)), (
        "it is what the player had become"
    )
    assert tuple(members[child.player]["rating"]) == TrueSkillRatings().default
    assert tuple(members[child.parents[0]]["rating"]) != TrueSkillRatings().default


def test_the_console_and_the_report_say_who_was_replaced(evolved):
    path, _, printed = evolved
    step, (child,) = next(iter(children(path).items()))
    assert f"update {step:>4}: {child.player} is now a child of " in printed
    page = (path / "report.html").read_text()
    assert "Players compared" in page
    assert f"{child.player} is a child of {' and '.join(sorted(child.parents))} (update {step})" in page


def test_games_of_comparisons_count_as_no_games_of_training(evolved):
    path, _, _ = evolved
    last = metrics_of(path)[-1]
    assert accounts_balance(path)
    assert last["accounts/started"] == STEPS * int(EVOLUTION["collection__games_per_step"])


def test_a_run_that_was_killed_as_a_child_took_its_place_ends_as_if_it_had_not_been(evolved):
    path, killed, _ = evolved
    resumed(killed)
    assert differences(fingerprint(path), fingerprint(killed)) == []
    for player in PLAYERS:
        once, again = (learner_of(one, STEPS, player) for one in (path, killed))
        assert same(once, again)
    assert children(path) == children(killed)


TWO = '{default = {role = "main"}, b = {role = "main"}}'


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"league.players": '{default = {role = "main"}}'}, "league.evolution: compares players, but no two"),
        ({"league.evolution.games": "3"}, "league.evolution.games: must be at least 20"),
        ({"league.evolution.noise": "2"}, "league.evolution.noise: must be at most 1"),
        (
            {"evaluation.opponents": "[]"},
            "league.evolution: needs an evaluation opponent that stays the same",
        ),
        (
            {"evaluation.opponents": '["api"]', "frozen": '{api = "some@http://127.0.0.1:1/v1"}'},
            "league.evolution: needs an evaluation opponent that stays the same",
        ),
    ],
)
def test_an_impossible_evolution_is_one_line(changes, line):
    with pytest.raises(InputError, match=line):
        check_config(
            load_config("quickstart", {"league.players": TWO, "league.evolution.every": "5"} | changes)
        )
