"""Whole runs of a league in one process, with a tiny model and real games."""

import functools
import json
import shutil
from collections import Counter

import pytest

from game_runs import configure, cut_back, metrics_of, resumed, run
from kill_resume import accounts_balance, differences, fingerprint
from league_kills import PLACES, acting, train_and_kill
from league_runs import LEAGUE, copy_of, games, learner_of, same
from matrices import first_of
from program_runs import adapter
from seat_runs import SIDES as TALK
from seat_runs import match
from sparring.cli.main import main
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config
from sparring.config.loading import dump_config
from sparring.core import InputError
from sparring.run.checks import check_config

STEPS = 7


@pytest.fixture(scope="module")
def config(model):
    return configure(model, **LEAGUE)


COPIED = {"freeze": 5, "update": 5, "keep": 5}
"""The places in which the run's directory is copied, and in which of their calls."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Where ``league`` puts the copies of its directory."""
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def league(config, copies, tmp_path_factory):
    """A finished run; its exploiters are frozen after updates 2, 4 and 6."""
    path = tmp_path_factory.mktemp("league") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for place, call in COPIED.items():
            copy = functools.partial(shutil.copytree, dst=copies / place)
            patch.setattr(PLACES[place], place, acting(place, call, copy))
        run(config, path)
    return path


def test_one_player_learns_in_each_game_and_in_both_seats_if_it_meets_itself(league):
    kinds = Counter()
    for game in games(league):
        uids = game.meta["uids"]
        trained = {step.policy for step in game.steps if step.policy}
        (player,) = trained or {None}
        assert player is None or player in uids
        acted = {step.pid for step in game.steps}
        if uids[0] == uids[1]:
            assert uids[0] == "default"
            kinds["itself"] += 1
        elif player is not None:
            assert {uids[pid] for pid in acted if any(s.pid == pid and s.policy for s in game.steps)} == {
                player
            }
            kinds[player] += 1
    assert kinds.keys() == {"itself", "default", "attacker", "finder"}


def test_exploiters_meet_whom_their_roles_say(league):
    met = {"attacker": set(), "finder": set()}
    for game in games(league):
        for player, others in met.items():
            if player in game.meta["uids"]:
                others |= {uid for uid in game.meta["uids"] if uid != player}
    assert met["attacker"] == {"default"}, "it is not rated after so few games"
    assert {"ckpt-0", "attacker-ckpt-2"} < met["finder"]
    assert not met["finder"] & {"default", "attacker"}


def test_copies_join_by_the_rules_of_their_roles(league):
    names = {name for line in metrics_of(league) for name in line if name.endswith("/drawn")}
    drawn = {name.split("/")[1] for name in names}
    assert {"ckpt-0", "default"} < drawn
    assert "attacker-ckpt-0" not in drawn, (
        "only what main players start from is in the pool from the beginning"
    )
    assert "attacker-ckpt-2" in drawn


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_main_exploiter_that_was_frozen_starts_again_with_an_empty_optimizer(league, step):
    start = adapter(league, 0, "attacker")
    assert same(adapter(league, step, "attacker"), start), "this is its average"
    tensors = learner_of(league, step, "attacker")
    assert not any(name.startswith("optimizer") for name in tensors)
    own = {name.removeprefix("weights."): one for name, one in tensors.items() if name.startswith("weights.")}
    assert same(own, start)
    assert not same(copy_of(league, f"attacker-ckpt-{step}"), start), "the copy is what it had become"


def test_between_its_copies_an_exploiter_learns(league):
    assert not same(adapter(league, 3, "attacker"), adapter(league, 0, "attacker"))
    assert any(name.startswith("optimizer") for name in learner_of(league, 3, "attacker"))


def test_main_players_never_start_again(league):
    for step in (2, 4, 6):
        assert any(name.startswith("optimizer") for name in learner_of(league, step, "default"))


def test_metrics_count_the_games_of_every_player(league):
    last = metrics_of(league)[-1]
    counted = {name.removeprefix("league/"): value for name, value in last.items() if "/games/" in name}
    assert sum(counted.values()) == last["accounts/started"] == STEPS * 60
    assert {name.partition("/")[0] for name in counted} == {"default", "attacker", "finder"}
    assert 0 < metrics_of(league)[0]["league/attacker/win_rate/default"] < 1


def test_the_main_player_is_what_the_run_is_evaluated_and_played_by(league):
    results = [json.loads(path.read_text()) for path in (league / "evaluation").glob("step-000007-*.json")]
    assert {result["model"] for result in results} == {"average"}, "that of default"
    assert match(league, "random", "kuhn_poker").games == 4


def resume_and_compare(path, league):
    """Continue a run that was killed; it must end as the whole one."""
    assert not (path / "report.html").exists()
    resumed(path)
    assert differences(fingerprint(league), fingerprint(path)) == []
    assert accounts_balance(path)
    assert (league / "standings.jsonl").read_bytes() == (path / "standings.jsonl").read_bytes()
    for player in ("default", "attacker", "finder"):
        once, again = (learner_of(one, STEPS, player) for one in (league, path))
        assert once.keys() == again.keys()
        assert same(once, again)


@pytest.mark.parametrize("place", first_of(["update", "freeze", "keep"]))
def test_a_league_that_was_killed_goes_on_as_if_it_had_not_been(league, copies, tmp_path, place):
    """A copy of the run's directory from that moment is what a kill leaves."""
    shutil.copytree(copies / place, tmp_path / "run")
    resume_and_compare(tmp_path / "run", league)


@pytest.mark.slow
def test_a_league_whose_process_was_killed_goes_on_as_if_it_had_not_been(config, league, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(dump_config(config))
    train_and_kill(file, tmp_path / "run", "start_again", 1)
    resume_and_compare(tmp_path / "run", league)


SIDES = """{
    first = {role = "main", seats = [0]},
    second = {role = "main", seats = [1]},
    attacker = {role = "main_exploiter", seats = [1]}
}""".replace("\n", "")


def test_players_of_one_seat_learn_it_alone(model, tmp_path):
    changes = LEAGUE | TALK | {"league__players": SIDES, "learning__steps": "1", "evaluation__every": "0"}
    changes["collection__games_per_step"] = "20"
    run(configure(model, **changes), tmp_path / "run")
    seats = {
        (step.policy, step.pid) for game in games(tmp_path / "run") for step in game.steps if step.policy
    }
    assert seats == {("first", 0), ("second", 1), ("attacker", 1)}


THREE = """{
    default = {role = "main"},
    attacker = {role = "main_exploiter", seats = [0, 2]},
    finder = {role = "league_exploiter"}
}""".replace("\n", "")


def of_three(model, **changes):
    envs = '[{id = "kuhn_poker(players=3)", num_players = 3}]'
    more = {"league__players": THREE, "evaluation__every": "0", "evaluation__games": "3", "envs": envs}
    return configure(model, **LEAGUE | more | changes)


def test_three_players_meet_each_with_a_draw_of_its_own(model, tmp_path):
    less = {"learning__steps": "2", "collection__games_per_step": "20", "learning__average_decay": "0"}
    run(of_three(model, **less), tmp_path / "run")
    met = Counter()
    for game in games(tmp_path / "run"):
        uids = game.meta["uids"]
        assert len(uids) == 3
        assert not uids[1].startswith("attacker")
        learning = {(step.policy, uids[step.pid]) for step in game.steps if step.policy}
        assert len(learning) <= 1
        assert all(policy == uid for policy, uid in learning)
        met[len({*uids})] += 1
    assert met.keys() == {1, 2}
    assert not same(adapter(tmp_path / "run", 1, "attacker"), adapter(tmp_path / "run", 0, "attacker"))
    assert same(adapter(tmp_path / "run", 2, "attacker"), adapter(tmp_path / "run", 0, "attacker"))


@pytest.mark.slow
def test_a_league_of_three_seats_is_resumed_as_if_it_had_not_been_killed(model, tmp_path):
    run(of_three(model), tmp_path / "run")
    met = {len({*game.meta["uids"]}) for game in games(tmp_path / "run")}
    assert met == {1, 2, 3}
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    cut_back(tmp_path / "again", to=3)
    resumed(tmp_path / "again")
    assert differences(fingerprint(tmp_path / "run"), fingerprint(tmp_path / "again")) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"league": "{}"}, "league.players: is empty"),
        ({"league.players": '{a = {role = "main"}}'}, "no main player default plays seat 0 of kuhn_poker"),
        (
            {"league.players": '{default = {role = "league_exploiter"}}'},
            "no main player default plays seat 0",
        ),
        ({"league.players": '{default = {role = "main", seats = [0]}}'}, "plays seat 1 of kuhn_poker"),
        (
            {"league.players": '{default = {role = "main", seats = [2]}}'},
            "players.default.seats: there is no seat 2. There are: 0, 1",
        ),
        ({"league.players": '{"a b" = {role = "main"}}'}, "'a b' is not a valid name"),
        ({"league.self_play": "0.9", "league.forgotten": "0.2"}, "league.forgotten: and league.self_play"),
        ({"population.sample_mode": "pfsp"}, r"population.sample_mode: is not for \[league\]"),
        ({"collection.max_staleness": "1"}, "collection.max_staleness: is not for"),
        (
            {"envs": '[{id = "Sudoku-v0", num_players = 1}]'},
            "league: its players meet each other, but Sudoku-v0 has one seat",
        ),
        (
            {"league.players": '{default = {role = "main", seats = [0, 0]}}'},
            "players.default.seats: names a seat twice",
        ),
        (
            {"league.players": '{default = {role = "main", seats = ["solver"]}}'},
            "players.default.seats: there is no seat solver",
        ),
        ({"frozen": '{default = "x"}'}, "league.players: default is in"),
    ],
)
def test_an_impossible_league_is_one_line(changes, line):
    with pytest.raises(InputError, match=line):
        load_config("quickstart", {"league.players": '{default = {role = "main"}}'} | changes)


def test_a_league_passes_the_checks_of_a_dry_run(config):
    assert any("kuhn_poker" in line for line in check_config(config))


def test_the_payoffs_of_a_league_are_exported(league, tmp_path):
    assert main(["export", str(league), str(tmp_path / "out"), "--payoffs"]) == 0
    found = json.loads((tmp_path / "out" / "payoffs.json").read_text())
    played = Counter(tuple(rollout.meta["uids"]) for _, rollout in RolloutLog(league / "rollouts"))
    assert {tuple(row["seating"]): row["games"] for row in found["payoffs"]} == played
    assert {"default", "attacker", "finder", "ckpt-0"} <= {*found["members"]}


def test_the_report_shows_shares_win_rates_and_who_beats_whom(league):
    page = (league / "report.html").read_text()
    titles = ("Games of each player", "Whom default met", "Win rates between players", "Who beats whom")
    assert [title for title in titles if title not in page] == []
    figures = json.loads(page.split('id="figures" type="application/json">')[1].split("</script>")[0])
    (cells,) = [one["traces"][0] for one in figures if one["traces"][0]["type"] == "heatmap"]
    assert {"default", "finder"} <= {*cells["y"]}
    assert {"attacker-ckpt-2", "attacker-ckpt-4"} & {*cells["x"]}
