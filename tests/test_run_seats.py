"""Games whose seats train different policies."""

import io
import json
import shutil

import pytest
from rich.console import Console

from game_runs import configure, cut_back, metrics_of, resumed, run
from matrices import first_of
from program_runs import adapter
from seat_runs import OPPONENTS, SIDES, TALK, games, match
from sparring.cli.main import main
from sparring.commands.persons_games import PersonsGames
from sparring.commands.play import play_games
from sparring.config import load_config
from sparring.core import InputError, MockInferenceClient
from sparring.evaluation.match import Progress


@pytest.fixture(scope="module")
def sides(model, tmp_path_factory):
    """A run with an adapter for each seat, both of which play every game."""
    path = tmp_path_factory.mktemp("sides") / "run"
    run(configure(model, tracking__games_logged="1000", run__save_every="1", **SIDES), path)
    return path


def test_each_seat_plays_and_trains_its_own_policy(sides):
    acted = {(step.pid, step.policy) for game in games(sides) for step in game.steps}
    assert acted == {(0, "first"), (1, "second")}
    for policy in ("first", "second"):
        before, after = adapter(sides, 0, policy), adapter(sides, 4, policy)
        assert any((before[name] != after[name]).any() for name in before)
    last = metrics_of(sides)[-1]
    assert last["learner/first/records"] == last["learner/second/records"] == 8 * 2, "two turns in each game"


def test_evaluations_play_each_policy_in_its_seat_and_rate_it(sides):
    state = json.loads((sides / "checkpoints" / "step-000004" / "state.json").read_text())
    members = {one["uid"]: one for one in state["source"]["pool"]["models"]}
    evaluated = [members[uid]["games"] for uid in members if uid.startswith(("first", "second"))]
    assert sum(evaluated) > 0
    results = [json.loads(path.read_text()) for path in (sides / "evaluation").glob("step-000004-*.json")]
    assert {result["model"] for result in results} <= {"first, second", "first-average, second-average"}


@pytest.mark.slow  # test_run_programs resumes two policies
def test_a_resumed_run_equals_an_uninterrupted_one(sides, tmp_path):
    shutil.copytree(sides, tmp_path / "run")
    cut_back(tmp_path / "run", to=2)
    resumed(tmp_path / "run")
    for policy in ("first", "second"):
        once, again = adapter(sides, 4, policy), adapter(tmp_path / "run", 4, policy)
        assert once.keys() == again.keys() != set()
        assert all((once[name] == again[name]).all() for name in once)


def test_a_fixed_opponent_plays_only_in_the_seats_of_its_policy(model, tmp_path):
    places = {
        "envs": '[{id = "kuhn_poker", policies = ["first", "second"]}]',
        "population__sample_mode": "fixed",
        "population__fixed_opponents": "['base', 'random']",
        "population__places": "{base = 'first', random = 'second'}",
        "learning__steps": "1",
        "evaluation__every": "0",
    }
    run(configure(model, tracking__games_logged="1000", **SIDES | places), tmp_path / "run")
    met = {tuple(game.meta["uids"]) for game in games(tmp_path / "run")}
    assert met == {("fixed-base", "second"), ("first", "fixed-random")}


class Asked(MockInferenceClient):
    """Notes which models are asked."""

    def __init__(self):
        super().__init__(["hello"])
        self.models = []

    async def complete(self, *arguments, **options):
        self.models.append(options["model"])
        return await super().complete(*arguments, **options)


@pytest.mark.parametrize(("seat", "policy", "typed"), [(1, "first", ""), (0, "second", "hello\n\n")])
def test_a_person_plays_against_the_policy_of_the_other_seat(sides, monkeypatch, seat, policy, typed):
    client = Asked()
    monkeypatch.setattr("sparring.commands.persons_games.build_engine", lambda *_: client)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    games = PersonsGames(str(sides), TALK, template=None, seat=seat, seed=0, progress=Progress())
    play_games(games, Console(file=io.StringIO()))
    assert client.models == [f"model/{policy}"]


def test_the_command_that_the_run_prints_plays_its_policies(sides, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["play", str(sides), "--env", TALK, "--seat", "1"]) == 0
    assert "player 0 (model):" in capsys.readouterr().out


def test_the_policies_of_a_run_play_those_of_another_checkpoint_in_their_seats(sides):
    result = match(sides, f"{sides}@0")
    assert result.games == 4
    assert (result.model, result.opponent) == (str(sides), f"{sides}@0")
    assert match(sides, "base").games == 4


def test_a_game_for_whose_seats_a_run_has_no_policies_is_one_line(sides):
    line = r"MODEL_OR_RUN: .*not for the 2 seats of kuhn_poker\. Name one: .*step-000004/first or .*/second"
    with pytest.raises(InputError, match=line):
        match(sides, "base", "kuhn_poker")


@pytest.mark.slow  # test_cluster_seats meets them, in one process and on Ray
def test_each_side_meets_copies_of_the_other(model, tmp_path):
    changes = SIDES | OPPONENTS | {"learning__steps": "2", "evaluation__every": "0"}
    run(configure(model, **changes), tmp_path / "run")
    met = set()
    for game in games(tmp_path / "run"):
        (trained,) = [pid for pid, uid in enumerate(game.meta["uids"]) if uid in ("first", "second")]
        other = game.meta["uids"][1 - trained]
        assert game.meta["uids"][trained] == ("first", "second")[trained]
        assert other == "fixed-base" or other.startswith(f"{('first', 'second')[1 - trained]}-ckpt-")
        assert {step.policy for step in game.steps} <= {("first", "second")[trained]}
        met.add(other)
    assert {"fixed-base", "first-ckpt-0", "second-ckpt-0"} < met


def test_a_policy_that_misses_updates_is_trained_again(model, tmp_path):
    """With one game an update, one side learns and the other stays a version behind."""
    run(
        configure(model, **SIDES | OPPONENTS | {"collection__games_per_step": "1", "evaluation__every": "0"}),
        tmp_path / "run",
    )
    learned = [
        name.split("/")[1] for line in metrics_of(tmp_path / "run") for name in line if "/loss" in name
    ]
    assert len(learned) == 4
    assert set(learned) == {"first", "second"}


@pytest.mark.parametrize(
    ("policies", "line"),
    [
        ('["first"]', r"^envs\.0\.policies: must name a policy for each of the 2 seats"),
        ('["first", "base"]', r"^envs\.0\.policies\.1: 'base' is not a valid name"),
    ],
)
def test_impossible_policies_are_one_line(policies, line):
    with pytest.raises(InputError, match=line):
        load_config("quickstart", {"envs": f'[{{id = "kuhn_poker", policies = {policies}}}]'})


@pytest.mark.parametrize("mode", first_of(["random", "mirror"]))
def test_a_frozen_seat_plays_every_game_and_is_not_trained(sides, model, tmp_path, mode):
    """Beside one policy that is trained; in a game for three, the pool's copies take the other's seat."""
    teacher = sides / "checkpoints" / "step-000004" / "second"
    trained = ["first"] if mode == "mirror" else ["first", "second"]
    game = f"kuhn_poker(players={len(trained) + 1})"
    seats = json.dumps([*trained, "teacher"])
    envs = f'[{{id = "{game}", num_players = {len(trained) + 1}, policies = {seats}}}]'
    changes = SIDES | (OPPONENTS if mode == "random" else {}) | {"learning__steps": "2"}
    changes |= {"envs": envs, "frozen__teacher": str(teacher), "tracking__games_logged": "1000"}
    run(configure(model, **changes), tmp_path / "run")
    uids = [one.meta["uids"] for one in games(tmp_path / "run")]
    assert {one[-1] for one in uids} == {"fixed-teacher"}
    assert {step.policy for one in games(tmp_path / "run") for step in one.steps} <= {*trained, ""}
    if mode == "random":
        assert {sum(uid in trained for uid in one) for one in uids} == {1}, "one seat learns"
        assert {uid for one in uids for uid in one if "-ckpt-" in uid}, "a copy plays the other"
    (file,) = (tmp_path / "run" / "evaluation").glob("step-000002-*.json")
    result = json.loads(file.read_text())
    assert result["model"] == ", ".join(f"{one}-average" for one in trained)
    assert [*result["by_seat"]] == [str(seat) for seat in range(len(trained))], (
        "in every game, one is measured"
    )
    saved = {path.parent.name for path in (tmp_path / "run/checkpoints/step-000002").glob("*/adapter_*.json")}
    assert saved == {*trained}
    assert match(tmp_path / "run", "base", game).games > 0


@pytest.mark.slow  # a frozen one holds a seat of all games above
def test_a_frozen_adapter_can_hold_a_seat_in_evaluations_only(sides, model, tmp_path):
    teacher = sides / "checkpoints" / "step-000004" / "second"
    game = '[{id = "kuhn_poker(players=2)", policies = ["first", "teacher"]}]'
    changes = SIDES | {"learning__steps": "1", "frozen__teacher": str(teacher), "evaluation__envs": game}
    run(configure(model, **changes), tmp_path / "run")
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-000001" / "state.json").read_text())
    rated = {one["uid"]: one["games"] for one in state["source"]["pool"]["models"]}
    (file,) = (tmp_path / "run" / "evaluation").glob("step-000001-*.json")
    games_of_seat = {seat: one["games"] for seat, one in json.loads(file.read_text())["by_seat"].items()}
    assert games_of_seat == {"0": int(json.loads(file.read_text())["requested_games"])}
    assert rated["first-average"] > 0 == rated["fixed-teacher"]
    assert match(tmp_path / "run", "base", "kuhn_poker(players=2)").games > 0


def test_a_game_in_which_every_seat_is_frozen_is_one_line():
    with pytest.raises(InputError, match=r"^envs\.policies: every seat is in \[frozen\]"):
        load_config("quickstart", {"frozen.default": "x"})
