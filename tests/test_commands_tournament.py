"""Tournaments of runs, scripts and API models; kills in the middle; the page."""

import csv
import functools
import io
import json
import random
import shutil
import statistics
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from rich.console import Console

from evaluation_client import legal_moves
from game_runs import configure, run
from hostile_text import hostile_text
from report_pages import Page
from seat_runs import SIDES, TALK
from sparring.cli.main import main
from sparring.commands.members import environment_of, find_members
from sparring.commands.model_source import ModelSource
from sparring.commands.tournament_page import print_tournament, tournament_html
from sparring.config import load_config
from sparring.config.model import ModelSettings
from sparring.config.play import EnvSettings
from sparring.core.files import PARTIAL
from sparring.envs.catalog import longest_move
from sparring.evaluation.tournament_files import TournamentFiles, TournamentSettings
from sparring.evaluation.venues import GameVenue
from sparring.population import PayoffTable
from sparring.population.rankings import rank
from tournaments import few_resamples, kill_when_it_has, payoffs, play  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def trained(playing, tmp_path_factory) -> Path:
    """A run with three checkpoints."""
    path = tmp_path_factory.mktemp("trained") / "kuhn"
    config = configure(
        playing,
        learning__steps="4",
        learning__learning_rate="0.02",
        evaluation__games="2",
        evaluation__games_during="2",
        evaluation__nash_conv="false",
    )
    run(config, path)
    return path


BASE_FIELDS = (("base_model", "name"), ("dtype", "dtype"), ("quantization", "quantization"))
THREE = "kuhn_poker(players=3)"


# Games


def test_a_tournament_of_checkpoints_and_scripts(trained, tmp_path, capsys):
    play(tmp_path / "out", f"{trained}@all", "random", "optimal", "base", "--games", 8)
    said = capsys.readouterr().out
    found = payoffs(tmp_path / "out")
    members = ["kuhn@0", "kuhn@2", "kuhn@4", "random", "optimal", "base"]
    assert found["members"] == members
    assert {row["games"] for row in found["payoffs"]} == {4}
    assert len(found["payoffs"]) == 2 * 6 * 5
    assert found["failures"] == {}
    mean = found["matrix"]["mean"]
    for row in range(6):
        assert [mean[row][column] for column in range(6)] == [-mean[column][row] for column in range(6)]
    # Its adapter has done no update, so it plays as the base model does, and with the same draws.
    assert mean[0][5] == 0
    rows = list(csv.DictReader((tmp_path / "out" / "payoffs.csv").open()))
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in found["payoffs"]]
    for uid in members:
        assert uid in said
    assert "it is not a confidence interval" in " ".join(said.split())
    page = Page((tmp_path / "out" / "tournament.html").read_text())
    assert page.open == []
    assert len(list((tmp_path / "out" / "games").iterdir())) == 2 * 15
    assert (tmp_path / "out" / "tournament.html").read_text().count('<span class="game-name">') == 2 * 15


@pytest.mark.parametrize("stake", [1, 1000])
def test_no_number_of_the_matrix_is_cut_off(stake):
    table, won = PayoffTable(), random.Random(0)
    games = [
        (pair, won.choice([(stake, -stake), (-stake, stake)])) for pair in 20 * [*permutations("abcd", 2)]
    ]
    for number, (pair, rewards) in enumerate(games):
        table.add(number, pair, rewards)
    rankings = rank(table, "abcd", games)
    printed = {}
    for width in range(20, 101, 8):
        console = Console(width=width, file=io.StringIO())
        print_tournament(rankings, {}, console)
        printed[width] = " ".join(console.file.getvalue().partition("\n\n")[0].split())
        assert "…" not in printed[width]
        assert ("±" in printed[width], "wider than" in printed[width]) != (True, True)
    assert "wider than" in printed[20]
    assert "±" in printed[100]
    assert any("±" not in one and "wider than" not in one for one in printed.values())


def test_payoffs_are_those_of_the_games_seat_by_seat(tmp_path):
    play(tmp_path / "out", "random", "optimal", "--games", 40)
    by_seat = {(row["member"], row["seat"]): row for row in payoffs(tmp_path / "out")["payoffs"]}
    lines = [json.loads(line) for line in (tmp_path / "out" / "games.jsonl").read_text().splitlines()]
    for first, second in (("random", "optimal"), ("optimal", "random")):
        rewards = [line["rewards"] for line in lines if line["players"] == [first, second]]
        assert len(rewards) == by_seat[first, 0]["games"] == 20
        assert by_seat[first, 0]["mean"] == sum(mine for mine, _ in rewards) / 20
        assert by_seat[second, 1]["wins"] == sum(other > mine for mine, other in rewards)
    for file in (tmp_path / "out" / "games").iterdir():
        rollout = json.loads(file.read_text())["rollout"]
        (line,) = [one for one in lines if rollout["id"] == f"game-{one['game']:010d}"]
        assert [agent["model"] for agent in rollout["artifact"]["agents"]] == line["players"]
        assert list(rollout["extras"]["final_rewards"].values()) == line["rewards"]


def test_members_and_games_are_added_to_a_tournament_without_playing_again(tmp_path):
    play(tmp_path / "grown", "random", "optimal", "--games", 10)
    before = (tmp_path / "grown" / "games.jsonl").read_bytes()
    unfinished = tmp_path / "grown" / "games" / f".game-0000000009.jsonl{PARTIAL}"
    unfinished.write_text("what a kill left")
    play(tmp_path / "grown", "random", "optimal", "--games", 20)
    assert not unfinished.exists()
    assert (tmp_path / "grown" / "games.jsonl").read_bytes().startswith(before)
    play(tmp_path / "whole", "random", "optimal", "--games", 20)
    assert payoffs(tmp_path / "grown") == payoffs(tmp_path / "whole")


def test_a_run_with_a_policy_for_each_seat_plays_each_in_its_own(playing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(configure(playing, learning__steps="1", evaluation__games="2", **SIDES), tmp_path / "sides")
    arguments = ["tournament", "sides", "base", "--games", "4", "--out"]
    assert main([*arguments, "out", "--env", TALK]) == 0
    (first, second) = sorted(Path("out", "games").iterdir())
    seated = [
        [agent["model"] for agent in json.loads(file.read_text())["rollout"]["artifact"]["agents"]]
        for file in (first, second)
    ]
    assert seated == [["sides/first", "base"], ["base", "sides/second"]]
    capsys.readouterr()
    assert main([*arguments, "other", "--env", "kuhn_poker"]) == 2
    assert "MEMBER: this run trained several policies" in capsys.readouterr().err
    assert not Path("other").exists()


class Replies(BaseHTTPRequestHandler):
    """A server of OpenAI's API that makes the first legal move."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = legal_moves(asked["messages"][-1]["content"])[0]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        body = json.dumps({"id": "1", "object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_behind_an_api_plays_adapters_and_scripts(address, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", "a-key")
    monkeypatch.setenv("NO_PROXY", "*")
    remote = f"small@{address}"
    play(tmp_path / "out", remote, trained, "random", "--games", 4)
    found = payoffs(tmp_path / "out")
    assert found["members"] == [remote, "kuhn", "random"]
    assert found["failures"] == {}
    assert all(row["invalid"] == 0 for row in found["payoffs"] if row["member"] == remote)


def test_all_checkpoints_of_a_run_have_no_one_rating(trained, capsys):
    words = ["eval", f"{trained}@all", "--env", "kuhn_poker", "--opponent", "@reference", "--games", "2"]
    assert main(words) == 2
    assert "@all may be several models" in capsys.readouterr().err


def test_a_tournament_of_a_game_for_three(trained, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["tournament", f"{trained}@all", "random", "--env", THREE, "--games", "12", "--out", str(out)]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = payoffs(out)
    assert found["failures"] == {}
    assert "matrix" not in found
    assert {tuple(row["seating"]) for row in found["payoffs"]} == {*permutations(found["members"], 3)}
    lines = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * 12
    for row in found["payoffs"]:
        mine = [one for one in lines if one["players"] == row["seating"]]
        assert row["games"] == len(mine) == 2
        assert row["mean"] == statistics.fmean(one["rewards"][row["seat"]] for one in mine)
        assert row["variance"] == statistics.variance(one["rewards"][row["seat"]] for one in mine)
        assert row["invalid"] == sum(one["invalid"] == row["seat"] for one in mine)
    for member in found["rankings"]["members"]:
        rewards = [
            reward
            for one in lines
            for uid, reward in zip(one["players"], one["rewards"], strict=True)
            if uid == member["uid"]
        ]
        low, mid, high = member["score"]
        assert mid == pytest.approx(statistics.fmean(rewards))
        assert low < mid < high
        assert member["games"] == len(rewards) == 36
        assert member["bradley_terry"] is member["nash"] is member["alpharank"] is None
    assert "Bradley-Terry, Nash averaging, α-rank, dominated members and cycles are left out" in said
    assert "Mean reward in seat 0 1 2 1 " in said
    html = (out / "tournament.html").read_text()
    assert Page(html).open == []
    assert "every group in every order of seats" in html
    assert "<h2>By seat</h2>" in html
    assert "Who beats whom" not in html
    header = (out / "payoffs.csv").read_text().splitlines()[0]
    assert header.startswith("seat,member,player_0,player_1,player_2,")
    before = (out / "games.jsonl").read_bytes()
    assert main(words) == 0
    assert (out / "games.jsonl").read_bytes() == before


def test_nash_conv_of_every_model_stands_beside_the_rankings(trained, tmp_path, capsys):
    out = tmp_path / "out"
    members = [str(trained), f"{trained}@2", "random", "--games", 20]
    play(out, *members)
    assert "NashConv" not in capsys.readouterr().out
    play(out, *members, "--nash-conv")
    said = capsys.readouterr().out
    found = {one["uid"]: one["nash_conv"] for one in payoffs(out)["rankings"]["members"]}
    assert main(["eval", f"{trained}@2", "--env", "kuhn_poker", "--games", "2", "--nash-conv", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["exact"]["nash_conv"]
    assert found[f"{trained.name}@2"] == pytest.approx(alone, abs=1e-5)
    assert found["random"] is None
    assert f"{found[trained.name]:.3f}" in said
    page = (out / "tournament.html").read_text()
    assert "Least exploitable" in page
    before = page, (out / "payoffs.json").read_text()
    play(out, *members, "--nash-conv")
    said = capsys.readouterr()
    assert "loading" not in said.out + said.err, "nothing is left to play or to measure"
    assert before == ((out / "tournament.html").read_text(), (out / "payoffs.json").read_text())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--env", "kuhn_poker", "--temperature", "0.5"], "--nash-conv: is that of a temperature of 1"),
        (["--env", "TicTacToe-v0-train"], "--nash-conv: TicTacToe-v0-train is not an OpenSpiel game"),
    ],
)
def test_nash_conv_that_cannot_be_computed_is_refused(options, line, tmp_path, capsys):
    words = ["tournament", "random", "optimal", "--nash-conv", *options]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Kills


def killed(moments: list[int], games: int, trained: Path, tmp_path: Path) -> None:
    """Kill a tournament of adapters when it has so many games; compare it with one left alone."""
    members = [str(trained), f"{trained}@2", "base", "random", "--games", str(games)]
    play(tmp_path / "alone", *members)
    out = tmp_path / "killed"
    arguments = [*members, "--env", "kuhn_poker", "--out", str(out)]
    assert all(kill_when_it_has(played, out, arguments) for played in moments)
    play(out, *members)
    for name in ("payoffs.json", "payoffs.csv"):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    numbers = [json.loads(line)["game"] for line in (out / "games.jsonl").read_text().splitlines()]
    assert len(numbers) == len(set(numbers)) == games * 6


def test_a_tournament_of_adapters_whose_log_was_cut_goes_on_to_the_same_payoffs(trained, tmp_path):
    members = [trained, f"{trained}@2", "base", "random", "--games", 8]
    play(tmp_path / "alone", *members)
    out = shutil.copytree(tmp_path / "alone", tmp_path / "cut")
    lines = (out / "games.jsonl").read_bytes().splitlines(keepends=True)
    (out / "games.jsonl").write_bytes(b"".join(lines[:20]) + lines[20][:9])
    for name in ("payoffs.json", "payoffs.csv"):
        (out / name).unlink()
    play(out, *members)
    for name in ("payoffs.json", "payoffs.csv"):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    numbers = [json.loads(line)["game"] for line in (out / "games.jsonl").read_text().splitlines()]
    assert len(numbers) == len(set(numbers)) == 8 * 6


@pytest.mark.slow  # the log is cut by default above, and anywhere in test_commands_tournament_log
def test_a_tournament_that_is_killed_thirty_times_goes_on_to_the_same_payoffs(trained, tmp_path):
    killed([1 + 11 * number for number in range(30)], 60, trained, tmp_path)


# Errors


def failing(capsys, *arguments: object) -> str:
    """Return the one line that a command with bad input prints on standard error."""
    capsys.readouterr()
    assert main(["tournament", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_member_with_the_short_name_of_another_changes_no_name_and_no_game(trained, tmp_path):
    first, second = (shutil.copytree(trained, tmp_path / place / "kuhn") for place in "ab")
    play(tmp_path / "grown", first, "random", "--games", 4)
    before = (tmp_path / "grown" / "games.jsonl").read_bytes()
    play(tmp_path / "grown", first, "random", second, "--games", 4)
    assert payoffs(tmp_path / "grown")["members"] == ["kuhn", "random", str(second)]
    assert (tmp_path / "grown" / "games.jsonl").read_bytes().startswith(before)


def test_every_member_has_a_name_of_its_own(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("a/kuhn", "kuhn", "random"):
        shutil.copytree(trained, tmp_path / place)
    members = find_members(["a/kuhn", "kuhn", "./kuhn", "./random", "random"], "kuhn_poker")
    assert [one.uid for one in members] == ["kuhn", "kuhn-2", "./kuhn", "./random", "random"]


def test_a_model_has_room_for_the_moves_of_a_game_that_it_did_not_train_in():
    rules = "board_width=2,board_height=2,ship_sizes=[1],ship_values=[1],num_shots=2"
    battleship = f"battleship({rules},allow_repeated_shots=False)"
    for env_id, least in ((battleship, longest_move(battleship, 2)), ("kuhn_poker", 16)):
        base, _ = find_members(["base", "random"], env_id)
        (agent, _) = base.agents(GameVenue(environment_of([base], env_id, None)))
        assert agent.max_tokens == least
    source = ModelSource(ModelSettings(), max_tokens=8, envs=(EnvSettings(id=battleship, num_players=2),))
    assert source.for_game(battleship) == source, "it plays as it trained"
    assert source.for_game("kuhn_poker") == source, "its answers are long enough"
    assert source.for_game("hanabi").max_tokens == longest_move("hanabi", 2) > 8


def test_a_directory_of_something_else_or_another_tournament_is_refused(tmp_path, capsys, trained):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").touch()
    out = ("--env", "kuhn_poker", "--out")
    assert "exists and is not a tournament" in failing(capsys, "random", "optimal", *out, tmp_path / "else")
    play(tmp_path / "one", "random", "optimal", "--games", 4)
    refused = failing(capsys, "random", "optimal", "--seed", 3, *out, tmp_path / "one")
    assert "has the seed 0, not 3" in refused
    refused = failing(capsys, "optimal", "random", *out, tmp_path / "one")
    assert "has a tournament of random, optimal, not of optimal, random" in refused
    (tmp_path / "one" / "games.jsonl").write_text('{"game": 1}\n')
    assert "line 1: the line is damaged" in failing(capsys, "random", "optimal", *out, tmp_path / "one")


def test_models_join_a_tournament_of_scripts_whatever_their_base_is(trained, tmp_path, capsys):
    play(tmp_path / "out", "random", "optimal", "--games", 4)
    play(tmp_path / "out", "random", "optimal", trained, "--games", 4)
    settings = json.loads((tmp_path / "out" / "tournament.json").read_text())
    model = tomllib.loads((trained / "config.toml").read_text())["model"]
    assert settings["base"] == {name: model[key] for name, key in BASE_FIELDS}
    shutil.copytree(trained, tmp_path / "kuhn")
    config = tmp_path / "kuhn" / "config.toml"
    other = "bfloat16" if model["dtype"] == "float32" else "float32"
    config.write_text(config.read_text().replace(f'dtype = "{model["dtype"]}"', f'dtype = "{other}"'))
    members = ("random", "optimal", tmp_path / "kuhn")
    refused = failing(capsys, *members, "--env", "kuhn_poker", "--games", 4, "--out", tmp_path / "out")
    assert f"has the dtype {model['dtype']}, not {other}" in refused


def test_a_checkpoint_whose_weights_are_gone_is_one_line(trained, tmp_path, capsys):
    run_directory = tmp_path / "kuhn"
    shutil.copytree(trained, run_directory)
    for weights in run_directory.rglob("adapter_model.safetensors"):
        weights.unlink()
    refused = failing(capsys, run_directory, "random", "--env", "kuhn_poker", "--out", tmp_path / "out")
    assert "MEMBER: the weights of" in refused
    assert "cannot be read" in refused


def test_a_member_that_has_learned_since_is_refused(trained, tmp_path, capsys):
    run_directory = tmp_path / "kuhn"
    shutil.copytree(trained, run_directory)
    play(tmp_path / "out", run_directory, "random", "--games", 4)
    shutil.rmtree(run_directory / "checkpoints" / "step-000004")
    refused = failing(
        capsys, run_directory, "random", "--env", "kuhn_poker", "--out", tmp_path / "out", "--games", 4
    )
    assert "member kuhn of the tournament in" in refused
    assert "now has other weights, another limit of tokens or another sampling" in refused


def test_further_members_change_no_limit_of_an_answer(trained):
    """The base model has that of the first other model, here a run; a model that no run limits has 16."""
    names = ["base", str(trained)]
    source = load_config(str(trained / "config.toml"), {})
    own, model = source.inference.max_tokens, source.model.name
    assert own != 16
    for more, limits in (
        (names, [own, own]),
        ([*names, model], [own, own, 16]),
        (["base", "random"], [16, None]),
    ):
        members = find_members(more, "kuhn_poker")
        assert [one.max_tokens for one in members] == limits
        env = environment_of(members, "kuhn_poker", None)
        agents = [one.agents(GameVenue(env)) for one in members if one.kind == "model"]
        assert [{seat.max_tokens for seat in seats} for seats in agents] == [{one} for one in limits if one]


def test_a_tournament_in_use_is_refused(tmp_path, capsys):

    files = TournamentFiles.open(tmp_path / "out", TournamentSettings({}, {}, 0, [], 4))
    refused = failing(capsys, "random", "optimal", "--env", "kuhn_poker", "--out", tmp_path / "out")
    assert "is in use by another process" in refused
    files.close()


# The page


def page_of(name: str) -> Page:
    table, games = PayoffTable(), []
    for first, second in ((name, "b"), ("b", "c"), ("c", name)):
        games.append(((first, second), (1.0, -1.0)))
        table.add(len(games), *games[-1])
    rankings = rank(table, [name, "b", "c"], games)
    return Page(tournament_html(name, 0, table, rankings, {}))


@functools.cache
def harmless_page() -> Page:
    return page_of("x")


@settings(max_examples=8, deadline=None)
@given(text=hostile_text(whole_characters=True))
def test_hostile_names_and_answers_stay_text(text):
    if text in ("b", "c"):
        return
    page, harmless = page_of(text), harmless_page()
    assert page.open == []
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_the_page_shows_a_cycle_and_who_is_dominated():
    table, games = PayoffTable(), []
    wins = [("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")]
    wins += [(one, "last") for one in ("rock", "paper", "scissors")]
    for winner, loser in wins:
        for seating, reward in (((winner, loser), 1.0), ((loser, winner), -1.0)):
            for noise in (1, 1, 1, 1, -1) * 4:
                games.append((seating, (noise * reward, -noise * reward)))
                table.add(len(games), *games[-1])
    html = tournament_html("rps", 0, table, rank(table, ["rock", "paper", "scissors", "last"], games), {})
    assert "A cycle: rock beats scissors beats paper beats rock." in html
    assert "dominates last: nowhere worse, and somewhere better beyond noise" in html
    # Once below the table, and once below each of two charts.
    assert html.count("resampled range, in which the shares of 95% of 60 resampled matrices lie") == 3
