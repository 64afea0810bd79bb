"""Whole runs of leagues of programs in one process, with a tiny model."""

import functools
import json
import shutil
from collections import Counter

import pytest

from game_runs import cut_back, metrics_of
from league_kills import PLACES, acting
from league_runs import copy_of, learner_of, same
from program_leagues import BUNDLED, league_of, resume_and_compare
from program_runs import adapter, logged, run, uids_of
from sparring.cli.main import main
from sparring.core import InputError

STEPS = 3
MAINS = {"hider": "Hider", "seeker": "Seeker"}


@pytest.fixture(scope="module")
def config(model, tmp_path_factory):
    """A league of a program of one's own."""
    more = {"program__options": "{batch_size = 10}", "learning__steps": str(STEPS)}
    return league_of("own", model, tmp_path_factory.mktemp("program"), **more)


@pytest.fixture(scope="module")
def runs(config, tmp_path_factory):
    """A finished run, whose exploiters are frozen after update 2, and what a kill would have left."""
    path = tmp_path_factory.mktemp("league")
    with pytest.MonkeyPatch.context() as patch:
        copy = functools.partial(shutil.copytree, dst=path / "killed")
        patch.setattr(PLACES["start_again"], "start_again", acting("start_again", 1, copy))
        run(config, path / "run")
    return path


@pytest.fixture(scope="module")
def league(runs):
    return runs / "run"


def test_one_player_learns_in_each_episode_in_a_role_that_it_holds(league):
    learned, roots = set(), uids_of(league)
    for rollout in logged(league):
        uids = roots[rollout.id.partition(".")[0]]
        players = {step.policy for step in rollout.steps} - {""}
        assert len(players) <= 1
        for step in rollout.steps:
            assert step.policy in ("", uids[step.role_id])
            learned |= {(step.policy, step.role_id)} - {("", step.role_id)}
    assert learned == {
        ("hider", "Hider"),
        ("seeker", "Seeker"),
        ("attacker", "Hider"),
        ("finder", "Hider"),
        ("finder", "Seeker"),
    }


def test_players_meet_whom_their_roles_say_in_the_roles_that_those_hold(league):
    met = {name: set() for name in ("hider", "seeker", "attacker", "finder")}
    for uids in uids_of(league).values():
        for role, uid in uids.items():
            (other,) = {*uids} - {role}
            if uid in met:
                met[uid].add((uids[other], other))
    assert met["attacker"] == {("seeker", "Seeker")}, "it is not rated after so few games"
    assert not met["finder"] & {*MAINS.items()}
    assert ("hider-ckpt-0", "Hider") in met["finder"]
    roles = {(uid.partition("-ckpt-")[0], role) for some in met.values() for uid, role in some}
    assert {("hider", "Hider"), ("seeker", "Seeker")} <= roles
    assert not roles & {("hider", "Seeker"), ("seeker", "Hider"), ("attacker", "Seeker")}


def test_a_main_exploiter_that_was_frozen_starts_again_with_an_empty_optimizer(league):
    start = adapter(league, 0, "attacker")
    assert same(adapter(league, 2, "attacker"), start)
    assert not any(name.startswith("optimizer") for name in learner_of(league, 2, "attacker"))
    assert not same(copy_of(league, "attacker-ckpt-2"), start), "the copy is what it had become"
    assert not same(adapter(league, 2, "hider"), adapter(league, 0, "hider"))


def test_metrics_count_the_groups_of_every_player(league):
    last = metrics_of(league)[-1]
    counted = {name.removeprefix("league/"): value for name, value in last.items() if "/games/" in name}
    assert sum(counted.values()) == len(uids_of(league)) == STEPS * 10
    assert {name.partition("/")[0] for name in counted} == {"hider", "seeker", "attacker", "finder"}


def test_what_each_role_earned_against_whom_is_exported(league, tmp_path):
    assert main(["export", str(league), str(tmp_path / "out"), "--payoffs"]) == 0
    found = json.loads((tmp_path / "out" / "payoffs.json").read_text())
    assert found["roles"] == ["Hider", "Seeker"]
    played = Counter((uids["Hider"], uids["Seeker"]) for uids in uids_of(league).values())
    assert {tuple(row["seating"]): row["games"] for row in found["payoffs"]} == played
    earned = Counter()
    for rollout in logged(league):
        if rollout.id in uids_of(league):
            earned[tuple(rollout.meta["uids"][role] for role in found["roles"])] += rollout.rewards["Hider"]
    for row in found["payoffs"]:
        if row["seat"] == 0:
            assert row["mean"] * row["games"] == pytest.approx(earned[tuple(row["seating"])])


@pytest.mark.slow  # one of a game is killed by default in test_run_league
def test_a_league_that_was_killed_as_exploiters_began_again_goes_on_as_if_it_had_not_been(runs, league):
    resume_and_compare(runs / "killed", league)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUNDLED)
def test_every_bundled_program_of_two_roles_has_leagues(model, tmp_path, kind):
    config = league_of(kind, model, tmp_path)
    run(config, tmp_path / "run")
    exploiters = config.league.exploiters
    for step in (2, 4):
        for name in exploiters:
            assert copy_of(tmp_path / "run", f"{name}-ckpt-{step}")
    (first, *_) = exploiters
    if config.league.players[first].role == "main_exploiter":
        assert same(adapter(tmp_path / "run", 4, first), adapter(tmp_path / "run", 0, first))
    learned = {step.policy for rollout in logged(tmp_path / "run") for step in rollout.steps} - {""}
    assert learned == {*config.league.players}
    shutil.copytree(tmp_path / "run", tmp_path / "cut" / "run")
    cut_back(tmp_path / "cut" / "run", to=3)
    resume_and_compare(tmp_path / "cut" / "run", tmp_path / "run")


def test_an_update_in_which_the_player_in_turn_does_not_speak_passes(model, tmp_path):
    two = '{hider = {role = "main"}, seeker = {role = "main"}}'
    changes = {"league__players": two, "league__at_once": "1", "learning__steps": "4"}
    config = league_of("own", model, tmp_path, **changes)
    own = config.program.model_copy(update={"path": config.program.path.replace("HideAndSeek", "OftenQuiet")})
    run(config.model_copy(update={"program": own}), tmp_path / "run")
    records = {"learner/hider/records", "learner/seeker/records"}
    learned = [len(line.keys() & records) for line in metrics_of(tmp_path / "run")]
    assert sorted(learned) == [0, 1, 1, 1], "a turn of the seeker after the first update has nothing"


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        ("own", {"league__players": '{hider = {role = "main"}}'}, "no main player seeker plays seat Seeker"),
        ("own", {"league__players__attacker__seats": '["Finder"]'}, "there is no seat Finder. There are: H"),
        ("own", {"league__players__attacker__seats": "[0]"}, "seats: there is no seat 0. There are: Hider"),
        ("own", {"roles__Seeker__policy": "base"}, "league: its players meet each other, but"),
        ("own", {"collection__max_staleness": "1"}, "collection.max_staleness: is not for"),
        ("own", {"start__nobody": "somewhere"}, "start: there is no policy nobody. There are: hider, seeker"),
    ],
)
def test_an_impossible_league_of_a_program_is_one_line(model, tmp_path, kind, changes, line):
    with pytest.raises(InputError, match=line) as raised:
        run(league_of(kind, model, tmp_path, **changes), tmp_path / "run")
    assert "\n" not in str(raised.value)
