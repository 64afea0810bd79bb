"""Policy-space response oracles: mixtures that come near an equilibrium, kills in the middle, the mixture."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from itertools import product
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from file_limits import files_no_longer_than
from hostile_text import ACTS_ON_A_TERMINAL
from kill_resume import differences, fingerprint
from playing_model import save_playing_model
from psro_runs import OF_THREE, SHORT, SMALL, configuration, psro, state_of
from report_pages import Page, figures_of, heat_map_of
from sparring.cli.main import main
from sparring.commands.best_response import FrozenPolicy, train_to_the_end
from sparring.commands.model_source import MixtureMember, ModelSource
from sparring.commands.psro import best_response_to, check_psro
from sparring.commands.psro_page import psro_html, psro_table
from sparring.config import Config
from sparring.config.loading import dump_config
from sparring.config.model import ModelSettings
from sparring.config.play import EnvSettings
from sparring.config.population import PsroSettings
from sparring.core import InputError, SparringError
from sparring.core.files import lock_directory
from sparring.evaluation.psro import read_state
from sparring.evaluation.venues import GameVenue
from sparring.run.run_directory import RunDirectory
from sparring.view.watch.text import table_text
from terminal_sessions import EndedInput
from tournaments import few_resamples  # noqa: F401 - a fixture

ROCK_PAPER_SCISSORS = "turn_based_simultaneous_game(game=matrix_rps())"
SEATS = EnvSettings(id="kuhn_poker", policies=["first", "second"])
WORDS = ("Rock",) * 8 + ("Paper", "Scissors")
GAME = f"""{SMALL}
steps = 15
[learning.algorithm]
type = "magnet"
alpha = 0.05
[[envs]]
id = "{ROCK_PAPER_SCISSORS}"
[collection]
games_per_step = 32
[evaluation]
every = 3
games = 64
nash_conv = true
[psro]
iterations = 2
payoff_games = 200
start = "first"
"""


@pytest.fixture(scope="module")
def solved(tmp_path_factory) -> Path:
    """Rock, paper, scissors, from a model that mostly says Rock."""
    folder = tmp_path_factory.mktemp("solved")
    model = save_playing_model(folder / "model", ROCK_PAPER_SCISSORS, WORDS)
    assert psro(configuration(folder, GAME, model)) == 0
    return folder / "psro"


@pytest.fixture(scope="module")
def short(playing, tmp_path_factory) -> Path:
    """A short one of Kuhn poker, left alone."""
    folder = tmp_path_factory.mktemp("short")
    assert psro(configuration(folder, SHORT, playing)) == 0
    return folder / "psro"


# Iterations


@pytest.mark.slow
def test_mixtures_come_near_the_equilibrium_of_rock_paper_scissors(solved):
    first, paper, scissors = state_of(solved)["iterations"]
    assert first["mixture"] == {"member-000": 1.0}
    assert first["nash_conv"] > 1
    low, mid, high = paper["gain"]
    assert 0 < low < mid < high
    assert low < first["nash_conv"]
    assert scissors["gain"][0] > 0
    assert all(0.1 < weight < 0.6 for weight in scissors["mixture"].values())
    assert scissors["nash_conv"] < 0.35
    assert scissors["nash_conv"] < first["nash_conv"] / 4


def test_payoffs_are_those_of_every_pair_once(short):
    state = state_of(short)
    assert state["members"] == ["member-000", "member-001", "member-002"]
    assert state["games"] == [[0, 20, 20], [20, 0, 20], [20, 20, 0]]
    assert [one["payoff_games"] for one in state["iterations"]] == [0, 20, 60]
    numbers = [
        json.loads(line)["game"] for line in (short / "payoffs" / "games.jsonl").read_text().splitlines()
    ]
    assert len(numbers) == len({*numbers}) == 60
    for row in range(3):
        for column in range(3):
            assert state["payoffs"][row][column] == -state["payoffs"][column][row]


def test_the_page_shows_the_mixtures_and_the_distance(short):
    text = (short / "psro.html").read_text()
    page = Page(text)
    assert page.open == []
    state, said = state_of(short), "".join(page.text)
    for one in state["iterations"]:
        assert one["member"] in said
        assert f"{state['iterations'][-1]['mixture'][one['member']]:.1%}" in said
    drawn = {
        name for figure in figures_of(text) for name in [trace.get("name") for trace in figure["traces"]]
    }
    assert drawn >= {"NashConv", "gain of the best response to it", *state["members"]}
    exact = [one["nash_conv"] for one in state["iterations"]]
    (drawn,) = [trace for trace in figures_of(text)[0]["traces"] if trace.get("name") == "NashConv"]
    assert drawn["y"] == pytest.approx(exact, rel=1e-5)
    assert heat_map_of(text)["traces"][0]["z"][0][1] == state["payoffs"][0][1]


def test_a_gain_is_what_the_member_earns_against_the_mixture_before(short):
    state = state_of(short)
    before, last = state["iterations"][1:]
    against = sum(before["mixture"][f"member-00{one}"] * state["payoffs"][2][one] for one in (0, 1))
    assert last["gain"][1] == pytest.approx(2 * against)
    squares = [
        (before["mixture"][f"member-00{one}"] * state["standard_error"][2][one]) ** 2 for one in (0, 1)
    ]
    assert last["gain"][2] - last["gain"][1] == pytest.approx(1.96 * 2 * sum(squares) ** 0.5, rel=1e-3)


def test_a_best_response_is_a_run_against_the_mixture(short, capsys):
    mixture = state_of(short)["iterations"][1]["mixture"]
    run = short / "member-002"
    config = tomllib.loads((run / "config.toml").read_text())
    names = config["population"]["fixed_opponents"]
    weights = dict(zip(names, config["population"]["weights"], strict=True))
    renamed = {"base" if name == "member-000" else name: weight for name, weight in mixture.items()}
    assert weights == {name: weight for name, weight in renamed.items() if weight}
    turns = [
        turn
        for file in (run / "rollouts").iterdir()
        for line in file.read_text().splitlines()
        for turn in json.loads(line)["rollout"]["extras"]["turns"]
    ]
    assert {turn["model"] for turn in turns if turn["kind"] == "policy"} == {"default"}
    assert {turn["model"] for turn in turns if turn["kind"] == "model"} == {*names}
    evaluated = (run / "evaluation" / "step-000002-kuhn_poker-mixture.jsonl").read_text().splitlines()
    assert opponents_in(evaluated) <= {*names}
    assert main(["report", str(run)]) == 0
    assert main(["eval", str(run), "--games", "4"]) == 0
    assert "against random" in capsys.readouterr().out


def opponents_in(lines: list[str]) -> set[str]:
    turns = [turn for line in lines for turn in json.loads(line)["rollout"]["extras"]["turns"]]
    return {turn["model"] for turn in turns} - {"default", "average"}


# Three seats


def test_a_psro_of_a_game_for_three_draws_every_seat_from_the_mixture(playing, tmp_path, capsys):
    assert psro(configuration(tmp_path, OF_THREE, playing)) == 0
    assert "nobody gains by changing alone" in " ".join(capsys.readouterr().out.split())
    state = state_of(tmp_path / "psro")
    assert state["games"] == [[[6, 6], [6, 6]], [[6, 6], [6, 6]]]
    first, joined = state["iterations"]
    assert joined["payoff_games"] == 4 * 6
    lines = (tmp_path / "psro" / "payoffs" / "games.jsonl").read_text().splitlines()
    seatings = Counter(tuple(json.loads(line)["players"]) for line in lines)
    assert seatings.keys() == {*product(state["members"], repeat=3)}
    assert {*seatings.values()} == {2, 6}
    assert first["nash_conv"] > 0 < joined["nash_conv"] != first["nash_conv"]
    drawn = heat_map_of((tmp_path / "psro" / "psro.html").read_text())["traces"][0]["z"]
    assert drawn[0][1] == state["payoffs"][0][1][1]


@pytest.mark.parametrize(("solver", "iterations", "other"), [(None, 21, "uniform"), ("alpharank", 5, "prd")])
def test_more_profiles_than_can_be_solved_are_refused_before_anything_is_played(solver, iterations, other):
    env = {"id": "kuhn_poker(players=4)", "num_players": 4}
    config = Config.model_validate(
        {
            "evaluation": {"every": 1},
            "envs": [env],
            "psro": {"iterations": iterations, **({"solver": solver} if solver else {})},
        }
    )
    with pytest.raises(
        InputError, match=rf"profiles of {iterations + 1} members .*\. Choose {other}, or fewer"
    ):
        check_psro(config)
    check_psro(config.model_copy(update={"psro": PsroSettings(iterations=4)}))


def test_seeds_of_best_responses_that_would_be_too_large_are_refused_before_anything_is_played():
    given = {"evaluation": {"every": 1}, "envs": [{"id": "kuhn_poker"}], "psro": {"iterations": 3}}
    check_psro(Config.model_validate(given | {"seed": 2**53 - 3}))
    with pytest.raises(InputError, match=rf"^seed: .* Give at most {2**53 - 3}"):
        check_psro(Config.model_validate(given | {"seed": 2**53 - 2}))


# Going on


def snapshot(directory: Path) -> dict:
    files = ["psro.json", "mixture.json", "payoffs/payoffs.json"]
    games = sorted((directory / "payoffs" / "games.jsonl").read_text().splitlines())
    return {name: (directory / name).read_text() for name in files} | {"games": games}


def kill_when(arguments: list[str], there) -> bool:
    """Run the command in a process and kill it when ``there()``; return whether it was still at work."""
    command = [sys.executable, "-c", "from sparring.cli.main import run; run()", "psro", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
    )
    while process.poll() is None:
        if there():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    return False


@pytest.mark.slow
def test_a_psro_that_is_killed_and_moved_goes_on_and_ends_as_one_left_alone(short, tmp_path):
    """It is killed in both trainings and in both rounds of payoff games, and moved in one of each."""
    folder, other = tmp_path / "here", tmp_path / "there"
    folder.mkdir()
    shutil.copy(short.parent / "game.toml", folder)

    def trains(member: str) -> bool:
        return (folder / "psro" / member / "checkpoints" / "step-000001").exists()

    def has_games(count: int) -> bool:
        games = folder / "psro" / "payoffs" / "games.jsonl"
        return games.is_file() and games.read_bytes().count(b"\n") >= count

    for there, is_moved in (
        (lambda: trains("member-001"), False),
        (lambda: has_games(7), True),
        (lambda: trains("member-002"), True),
        (lambda: has_games(25), False),
    ):
        assert kill_when([str(folder / "game.toml"), "--run.directory", str(folder), "--name", "psro"], there)
        if is_moved:
            folder.rename(other)
            folder, other = other, folder
    assert psro(folder / "game.toml") == 0
    assert snapshot(folder / "psro") == snapshot(short)
    for member in ("member-001", "member-002"):
        assert differences(fingerprint(short / member), fingerprint(folder / "psro" / member)) == []


@pytest.mark.slow
def test_a_psro_that_is_killed_thirty_times_ends_as_one_left_alone(short, tmp_path):
    """Each kill waits for two more lines: of an update's figures, or of a finished payoff game."""
    shutil.copy(short.parent / "game.toml", tmp_path)
    whole = lines_of(short)
    assert whole >= 64

    for kill in range(30):
        least = 1 + 2 * kill
        arguments = [str(tmp_path / "game.toml"), "--run.directory", str(tmp_path), "--name", "psro"]
        assert kill_when(arguments, lambda least=least: lines_of(tmp_path / "psro") >= least), kill
    assert psro(tmp_path / "game.toml") == 0
    assert snapshot(tmp_path / "psro") == snapshot(short)
    assert lines_of(tmp_path / "psro") == whole
    for member in ("member-001", "member-002"):
        assert differences(fingerprint(short / member), fingerprint(tmp_path / "psro" / member)) == []


def lines_of(directory: Path) -> int:
    """Return how many updates and payoff games of a PSRO are written down."""
    files = [directory / "payoffs" / "games.jsonl", *directory.glob("member-*/metrics.jsonl")]
    return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())


def test_a_member_that_has_joined_keeps_no_copies_of_the_others(short):
    assert (short / "member-002" / "checkpoints" / "step-000002").exists()
    assert not [*short.glob("member-*/given")]


def test_a_finished_psro_is_given_further_iterations_and_keeps_what_it_has(short, tmp_path, capsys):
    """In the further one NashConv becomes too slow: it is left out, and the iteration is not lost."""
    shutil.copytree(short.parent, tmp_path / "copy")
    file, directory = tmp_path / "copy" / "game.toml", tmp_path / "copy" / "psro"
    before = state_of(directory)["iterations"]
    assert psro(file) == 0
    assert snapshot(directory) == snapshot(short)
    assert "a best response" not in capsys.readouterr().out
    config = (directory / "psro.toml").read_text()
    (directory / "psro.toml").write_text(config.replace("minutes = 10.0", "minutes = 1e-06"))
    assert psro(file, "--psro.iterations", 3, "--evaluation.nash_conv_minutes", "1e-06") == 0
    assert "NashConv of the mixture is left out: scoring the" in " ".join(capsys.readouterr().out.split())
    after = state_of(directory)["iterations"]
    assert after[:3] == before
    assert after[3]["mixture"] == {f"member-00{number}": 0.25 for number in range(4)}
    assert [one["nash_conv"] is None for one in after] == [False, False, False, True]


def test_a_nash_conv_that_is_too_slow_at_once_is_refused(short, tmp_path, capsys):
    file = tmp_path / "game.toml"
    shutil.copy(short.parent / "game.toml", file)
    assert psro(file, "--evaluation.nash_conv_minutes", "1e-06") == 2
    assert "Allow more time" in capsys.readouterr().err


def test_the_nash_conv_of_a_mixture_that_cannot_be_played_is_marked(short):
    state = read_state(short)
    console = Console(width=200, file=io.StringIO())
    console.print(table_text(psro_table(state)))
    assert "cannot be played" not in console.file.getvalue()
    state.iterations[-1].is_playable = False
    console.print(table_text(psro_table(state)))
    assert f"{state.iterations[-1].nash_conv:.4f} cannot be played" in console.file.getvalue()
    assert "it loses by invalid moves" in console.file.getvalue()


def test_what_a_gain_is_is_said_once_there_is_one(short):
    state = read_state(short)
    begun = msgspec.structs.replace(state, iterations=state.iterations[:1])
    about = "what the member earns more than the mixture"
    assert [any(about in note for note in psro_table(one).notes) for one in (begun, state)] == [False, True]
    assert [about in psro_html(one, 0) for one in (begun, state)] == [False, True]


@pytest.mark.parametrize("change", [["--psro.solver", "nash"], ["--learning.steps", "3"], ["--seed", "1"]])
def test_another_configuration_is_refused(short, change, capsys):
    capsys.readouterr()
    assert psro(short.parent / "game.toml", *change) == 2
    assert f"holds another PSRO, which differs in {change[0][2:]}. Choose" in capsys.readouterr().err


@pytest.mark.slow  # one of a program has its adapters in test_commands_tournament_programs
def test_a_psro_from_an_earlier_adapter_has_it_as_its_first_member(short, tmp_path):
    file = tmp_path / "game.toml"
    shutil.copy(short.parent / "game.toml", file)
    start = short / "member-001"
    options = ["--start.default", start, "--psro.iterations", 1, "--evaluation.nash_conv", "false"]
    assert psro(file, *options) == 0
    adapter = (tmp_path / "psro" / "member-000" / "adapter_model.safetensors").read_bytes()
    assert adapter == (start / "checkpoints" / "step-000002" / "adapter_model.safetensors").read_bytes()
    config = tomllib.loads((tmp_path / "psro" / "member-001" / "config.toml").read_text())
    first = str(tmp_path / "psro" / "member-000")
    assert (config["start"], config["frozen"]) == ({"default": first}, {"member-000": first})
    mixture = json.loads((tmp_path / "psro" / "mixture.json").read_text())
    assert [one["adapter"] for one in mixture["members"]] == [
        "member-000",
        "member-001/checkpoints/step-000002",
    ]
    assert state_of(tmp_path / "psro")["iterations"][1]["nash_conv"] is None


# The runs of best responses


def config_of(**psro_settings) -> Config:
    return Config.model_validate(
        {
            "seed": 5,
            "envs": [{"id": "kuhn_poker"}],
            "population": {"sample_mode": "random", "max_active_lora": 2},
            "evaluation": {"every": 4, "games": 30, "opponents": ["optimal"], "nash_conv": True},
            "learning": {"steps": 7, "momentum": 0.5},
            "run": {"keep_best": "NashConv", "save_every": 3},
            "psro": psro_settings,
        }
    )


MEMBERS = {"member-000": None, "member-001": Path("/a"), "member-002": Path("/b")}


def test_a_best_response_keeps_how_the_configuration_learns_and_nothing_of_its_opponents():
    mixture = {"member-000": 0.5, "member-001": 0.0, "member-002": 0.5}
    made = best_response_to(mixture, MEMBERS, 3, config_of(patience=6))
    assert (made.learning, made.collection, made.seed) == (config_of().learning, config_of().collection, 8)
    assert made.run.save_every == 3
    assert made.run.keep_best is None
    assert made.psro is None
    assert (made.start, made.frozen) == ({"default": "/b"}, {"member-002": "/b"})
    assert made.population.fixed_opponents == ["base", "member-002"]
    assert made.population.weights == [0.5, 0.5]
    assert made.population.max_active_lora == Config(envs=made.envs).population.max_active_lora
    evaluation = made.evaluation
    assert (evaluation.opponents, evaluation.nash_conv, evaluation.patience) == (["mixture"], False, 6)
    assert (evaluation.every, evaluation.games, evaluation.games_during) == (4, 30, 30)


def test_a_best_response_may_start_from_the_first_member():
    mixture = {"member-000": 0.5, "member-001": 0.0, "member-002": 0.5}
    assert best_response_to(mixture, MEMBERS, 3, config_of(start="first")).start == {}


# On a cluster


@pytest.fixture
def joined(monkeypatch) -> list[tuple[str | None, str]]:
    """The address and the namespace of each cluster that was to be joined; none of them is there."""
    clusters = []

    def join(settings, namespace):
        clusters.append((settings.address, namespace))
        raise SparringError("no cluster is joined in this test")

    monkeypatch.setattr("sparring.cluster.run.connected", join)
    return clusters


def test_best_responses_of_two_psros_may_be_trained_on_one_cluster(playing, tmp_path, joined):
    file = configuration(tmp_path, SHORT.replace("nash_conv = true", ""), playing)
    there = ["--runtime", "ray", "--ray.address", "127.0.0.1:1", "--run.directory", str(tmp_path)]
    for name in ("one", "other"):
        assert main(["psro", str(file), *there, "--name", name]) == 1
    assert [namespace for _, namespace in joined] == ["sparring-one-member-001", "sparring-other-member-001"]


@pytest.mark.parametrize("address", [None, "127.0.0.1:2"])
def test_a_best_response_is_continued_at_the_cluster_that_is_named_now(tmp_path, joined, address):
    config = config_of().model_copy(update={"psro": None})
    config = config.model_copy(update={"run": config.run.model_copy(update={"runtime": "ray"})})
    before, now = (
        config.model_copy(update={"ray": config.ray.model_copy(update={"address": one})})
        for one in ("127.0.0.1:1", address)
    )
    begun = RunDirectory.create(tmp_path / "run")
    begun.write_config(dump_config(before))
    begun.unlock()
    with pytest.raises(SparringError, match="no cluster is joined"):
        train_to_the_end(now, tmp_path / "run")
    assert joined == [(address, "sparring-run")]


# The mixture as a model


def test_eval_measures_the_mixture_as_psro_does(short, capsys):
    for name in (short, short / "mixture.json"):
        capsys.readouterr()
        assert main(["eval", str(name), "--games", "40", "--nash-conv", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["games"] == 40
        exact = state_of(short)["iterations"][-1]["nash_conv"]
        assert result["exact"]["nash_conv"] == pytest.approx(exact, abs=1e-5)


def test_mixtures_play_tournaments_and_are_opponents(short, tmp_path, capsys):
    out = tmp_path / "out"
    members = [str(short), str(short / "member-001"), "random"]
    words = ["tournament", *members, "--env", "kuhn_poker", "--games", "40", "--out", str(out)]
    assert main(words) == 0
    assert f"<h3>{short.name} and member-001</h3>" in (out / "tournament.html").read_text()
    agents = {
        agent["model"]
        for file in (out / "games").iterdir()
        for agent in json.loads(file.read_text())["rollout"]["artifact"]["agents"]
    }
    assert agents & {"psro/member-001", "psro/member-002", "base"}
    assert {line["games"] for line in json.loads((out / "payoffs.json").read_text())["payoffs"]} == {20}
    capsys.readouterr()
    words = ["eval", str(short / "member-002"), "--opponent", str(short), "--games", "20", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 0


def test_a_best_response_to_a_mixture_meets_its_members_by_their_weights(short, tmp_path):
    """They may be called like a scripted player, a mixture or what is trained."""
    content, state = json.loads((short / "mixture.json").read_text()), state_of(short)["iterations"][-1]
    base, *members = content["members"]
    names = (("random", "default"), ("optimal", "mixture"))
    content["members"] = [base] + [
        {"name": name, "adapter": str(short / member["adapter"]), "weight": member["weight"] / 2}
        for member, pair in zip(members, names, strict=True)
        for name in pair
    ]
    (tmp_path / "mixture.json").write_text(json.dumps(content))
    out = tmp_path / "answer"
    options = ["--updates", 2, "--games-per-step", 32, "--games", 20, "--out", out]
    assert main([*map(str, ["exploit", tmp_path, "--env", "kuhn_poker", *options])]) == 0
    frozen = [f"policy-{name}" for pair in names for name in pair]
    population = tomllib.loads((out / "config.toml").read_text())["population"]
    assert population["fixed_opponents"] == ["base", *frozen]
    assert population["weights"] == pytest.approx([1 / 3] + 4 * [1 / 6])
    lines = [line for file in (out / "rollouts").iterdir() for line in file.read_text().splitlines()]
    turns = [turn for line in lines for turn in json.loads(line)["rollout"]["extras"]["turns"]]
    met = {(turn["kind"], turn["model"]) for turn in turns}
    assert met <= {("policy", "default"), *(("model", name) for name in ("base", *frozen))}
    assert {name for _, name in met} >= {"base", *frozen[:3]}, (
        "few games are logged, of which most meet these"
    )
    result = json.loads((out / "exploitability.json").read_text())
    assert result["exact"]["nash_conv"] == pytest.approx(state["nash_conv"], abs=1e-5)


def test_several_members_without_an_adapter_are_met_by_the_sum_of_their_weights():
    members = (
        MixtureMember("a", None, 1.0),
        MixtureMember("b", None, 2.0),
        MixtureMember("c", Path("/c"), 4.0),
    )
    source = ModelSource(ModelSettings(name="m"), members=members)
    policy = FrozenPolicy.of(source, GameVenue(EnvSettings(id="kuhn_poker")))
    assert policy.opponents() == {"base": 3.0, "policy-c": 4.0}


def test_a_member_that_plays_every_seat_has_no_place(tmp_path):
    for policy in ("first", "second"):
        (tmp_path / "both" / policy).mkdir(parents=True)
        (tmp_path / "both" / policy / "adapter_config.json").write_text("{}")
    members = (MixtureMember("both", tmp_path / "both", 1.0), MixtureMember("one", tmp_path / "one", 1.0))
    source = ModelSource(ModelSettings(name="m"), envs=(SEATS,), members=members)
    policy = FrozenPolicy.of(source, GameVenue(SEATS), named=str)
    assert policy.opponents().keys() == {"both-first", "both-second", "one"}
    assert policy.places() == {"both-first": "first", "both-second": "second"}


def test_a_person_plays_against_the_mixture(short, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", EndedInput("bet\ny\nbet\n\n"))
    assert main(["play", str(short), "--seat", "0"]) == 0
    said = capsys.readouterr().out
    assert "game 2" in said
    assert not ACTS_ON_A_TERMINAL.search(said)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"members": []}', "members"),
        ('{"members": [{"name": "a", "weight": 0}]}', "no member has a weight"),
        ('{"members": [{"name": "a", "weight": 1}, {"name": "a", "weight": 1}]}', "the same"),
        ('{"members": [{"name": "base", "weight": 1}]}', "not a valid name"),
        ('{"members": [{"name": "a", "adapter": "there", "weight": 1}]}', "is not an adapter"),
        ("[", "Invalid JSON"),
    ],
)
def test_a_damaged_mixture_is_one_line(tmp_path, content, problem, capsys):
    (tmp_path / "mixture.json").write_text(content)
    assert main(["eval", str(tmp_path), "--env", "kuhn_poker"]) == 2
    line = capsys.readouterr().err
    assert problem in line
    assert line.count("\n") == 1


def test_a_member_whose_checkpoints_were_deleted_is_one_line(short, tmp_path, capsys):
    for name in ("psro", "game.toml"):
        source, target = short.parent / name, tmp_path / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.rmtree(tmp_path / "psro" / "member-001" / "checkpoints")
    capsys.readouterr()
    assert psro(tmp_path / "game.toml", "--psro.iterations", 3) == 2
    line = capsys.readouterr().err
    assert "member-001/checkpoints: has no checkpoint of this member. Put it back" in line
    assert line.count("\n") == 1


def test_a_directory_is_written_by_one_process_and_a_failed_write_is_one_line(short, capsys):
    lock = lock_directory(short)
    capsys.readouterr()
    assert psro(short.parent / "game.toml") == 2
    assert "in use by another process" in capsys.readouterr().err
    os.close(lock)
    with files_no_longer_than(10):
        assert psro(short.parent / "game.toml") == 1
    assert "cannot be written" in capsys.readouterr().err
    assert psro(short.parent / "game.toml") == 0
