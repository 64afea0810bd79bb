"""``sparring runs``: what a directory of runs says about each, whole or damaged."""

import io
import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from hostile_text import ACTS_ON_A_TERMINAL, RICH_MARKUP, TERMINAL
from run_files import PROGRAM, match, nash, write_run
from sparring.cli.main import main
from sparring.collection.start_log import note_failure, note_session
from sparring.commands.list_runs import age_text, list_runs, read_run, runs_table
from sparring.commands.psro_files import PsroDirectory
from sparring.config import load_config
from sparring.core import InputError
from sparring.core.files import lock_directory
from sparring.evaluation.psro import Iteration, PsroState, member_name, read_state, write_state
from sparring.evaluation.results import MeasureResult
from sparring.run.run_directory import RunDirectory

RANDOM = "kuhn_poker-random"


def table(runs, width=80) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width).print(runs_table(runs, datetime.now(UTC)))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_a_finished_run_has_its_games_model_progress_and_last_figures(tmp_path):
    results = {"kuhn_poker-optimal": match(90, 200, opponent="optimal"), RANDOM: match(98, 200)}
    evaluations = {0: {RANDOM: match(1, 200)}, 4: {**results, "kuhn_poker-nash-conv": nash(0.1234)}}
    path = write_run(tmp_path / "mine", evaluations)
    run = read_run(path)
    assert (run.kind, run.plays, run.model) == ("games", ["kuhn_poker"], "smollm2-135m")
    assert (run.updates, run.total, run.state, run.problem) == (4, 4, "finished", "")
    won, exact = run.figures
    assert won.interval == match(98, 200).win_rate
    assert exact.value == 0.1234
    assert table([run]) == [
        "Run         State         Updates",
        "trains on   model         wrote, ago  Last evaluation",
        "mine        finished      4/4         won 49.0% (42.2 to 55.9) vs random",
        "kuhn_poker  smollm2-135m  now         NashConv 0.1234",
    ]


@pytest.mark.parametrize(("patience", "state"), [(1, "finished"), (2, "stopped")])
def test_a_run_that_settled_is_finished_before_its_last_update(tmp_path, patience, state):
    evaluations = {step: {RANDOM: match(98, 200)} for step in (0, 4)}
    changes = {"learning__steps": "9", "evaluation__every": "4", "evaluation__patience": str(patience)}
    run = read_run(write_run(tmp_path / "run", evaluations, finished=False, **changes))
    assert (run.updates, run.total, run.state) == (4, 9, state)


def test_the_figure_by_which_the_best_is_kept_comes_first(tmp_path):
    results = {"kuhn_poker-optimal": match(90, 200, opponent="optimal"), RANDOM: match(98, 200)}
    path = write_run(tmp_path / "run", {4: results}, run__keep_best="loss rate against optimal")
    assert [figure.name.name for figure in read_run(path).figures] == [
        "loss rate against optimal",
        "win rate against random",
    ]


def test_the_first_environment_speaks_for_a_run_in_several(tmp_path):
    results = {f"{env}-random": match(5, 10, env_id=env) for env in ("kuhn_poker", "leduc_poker")}
    envs = "[{id = 'leduc_poker'}, {id = 'kuhn_poker'}]"
    run = read_run(write_run(tmp_path / "run", {4: results}, envs=envs))
    assert run.plays == ["leduc_poker", "kuhn_poker"]
    assert "won 50.0% (23.7 to 76.3) vs random in leduc_poker" in " ".join(
        " ".join(table([run], 160)).split()
    )


def test_a_run_whose_games_were_all_draws_has_its_mean_reward(tmp_path):
    results = {"kuhn_poker-optimal": match(9, 10, opponent="optimal"), RANDOM: match(0, 10, draws=10)}
    run = read_run(write_run(tmp_path / "run", {4: results}))
    assert [str(figure.name) for figure in run.figures] == ["mean reward against random in kuhn_poker"]
    assert "mean reward against random +0.00" in " ".join(table([run], 120)[2].split())


def test_a_program_has_its_measures(tmp_path):
    (tmp_path / "debate.toml").write_text(PROGRAM)
    results = {name: MeasureResult(name, [1.0, 2.0, 3.0]) for name in ("words a turn", "unjudged", "a", "b")}
    path = write_run(
        tmp_path / "run", {4: results}, preset=str(tmp_path / "debate.toml"), run__keep_best="words a turn"
    )
    run = read_run(path)
    assert (run.kind, run.plays) == ("program", ["debate"])
    assert [figure.name.name for figure in run.figures] == ["words a turn", "a", "b"]
    assert any("words a turn +2.00 (+0.87 to +3.13)" in line for line in table([run]))


def test_a_run_that_ended_early_is_stopped_and_its_last_evaluation_says_when_it_was(tmp_path):
    path = write_run(tmp_path / "run", {0: {RANDOM: match(1, 10)}}, updates=28, finished=False)
    run = read_run(path)
    assert (run.state, run.updates, run.total) == ("stopped", 28, 200)
    assert "at update 0" in table([run], 120)[2]


def test_a_run_is_running_while_a_process_holds_its_lock(tmp_path):
    path = write_run(tmp_path / "run", finished=False)
    directory = RunDirectory.open(path)
    directory.lock()
    assert read_run(path).state == "running"
    assert read_run(path).state == "running", "looking takes nothing from the process that trains"
    directory.unlock()
    assert read_run(path).state == "stopped"
    directory.lock()
    directory.unlock()


def test_a_run_that_had_to_stop_has_failed_until_it_is_started_again(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "report.html").unlink()
    note_session(path)
    said = RunDirectory.open(path).after_failure("the engine is lost")
    assert "continue with: sparring train --resume" in str(said)
    run = read_run(path)
    assert (run.state, run.problem) == ("failed", "the engine is lost")
    assert "the engine is lost" in table([run])[2]
    note_session(path)
    assert read_run(path).state == "stopped"
    sessions = json.loads((path / "sessions.json").read_text())
    assert [one.get("failure") for one in sessions] == ["the engine is lost", None]


def cut(file):
    os.truncate(file, file.stat().st_size - 4)


DAMAGES = {
    "no configuration": (lambda path: (path / "config.toml").unlink(), "config.toml: there is no such file"),
    "half a configuration": (
        lambda path: (path / "config.toml").write_text("seed ="),
        "config.toml: is not valid TOML",
    ),
    "a configuration of another version": (
        lambda path: (path / "config.toml").write_text("sede = 3"),
        "sede: there is no such field",
    ),
    "half an evaluation": (
        lambda path: cut(path / "evaluation" / f"step-000004-{RANDOM}.json"),
        f"evaluation/step-000004-{RANDOM}.json: is not an evaluation, or is damaged",
    ),
    "metrics that are no JSON": (
        lambda path: (path / "metrics.jsonl").write_text("{}\n\0\0\0\0\n"),
        "metrics.jsonl: its last line is damaged",
    ),
    "metrics without a step": (
        lambda path: (path / "metrics.jsonl").write_text("{}\n"),
        "metrics.jsonl: its last line is damaged",
    ),
    "metrics that are nested too deeply": (
        lambda path: (path / "metrics.jsonl").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n"),
        "metrics.jsonl: its last line is damaged",
    ),
    "a directory for a file": (
        lambda path: ((path / "metrics.jsonl").unlink(), (path / "metrics.jsonl").mkdir()),
        "metrics.jsonl: is not a regular file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_a_row_that_says_so_and_the_others_stay(tmp_path, damage):
    change, said = DAMAGES[damage]
    change(write_run(tmp_path / "runs" / "torn", {4: {RANDOM: match(5, 10)}}))
    write_run(tmp_path / "runs" / "whole", {4: {RANDOM: match(5, 10)}})
    runs = {run.path.name: run for run in list_runs(tmp_path / "runs")}
    assert runs["whole"].state == "finished"
    assert runs["torn"].state == "damaged"
    assert said in runs["torn"].problem
    assert str(tmp_path) not in runs["torn"].problem
    lines = " ".join(table(list(runs.values()), 200))
    assert "damaged" in lines
    assert said in lines


def test_a_half_written_last_line_is_not_damage(tmp_path):
    path = write_run(tmp_path / "run", finished=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "wall_')
    assert (read_run(path).updates, read_run(path).state) == (4, "stopped")
    (path / "metrics.jsonl").write_text('{"step": 5, "wall_')
    assert read_run(path).updates == 0


def test_the_last_line_of_a_long_file_is_found_however_long_it_is(tmp_path):
    path = write_run(tmp_path / "run", finished=False)
    long = {"padding": "x" * 300_000}
    (path / "metrics.jsonl").write_text("".join(json.dumps({"step": s, **long}) + "\n" for s in (1, 2)))
    assert read_run(path).updates == 2


def test_the_run_that_wrote_last_comes_first_and_other_directories_are_left_out(tmp_path):
    for age, name in enumerate(("new", "old")):
        path = write_run(tmp_path / name)
        for file in [path, *path.iterdir()]:
            os.utime(file, (1e9 - age, 1e9 - age))
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert [run.path.name for run in list_runs(tmp_path)] == ["new", "old"]
    assert list_runs(tmp_path)[0].last_written == datetime.fromtimestamp(1e9, UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "now"), (59, "now"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (86400 * 12 + 1, "12 d")],
)
def test_ages_are_in_their_largest_unit(seconds, text):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age_text(now, now - timedelta(seconds=seconds)) == text


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_a_terminal_and_long_names_are_folded_not_cut(tmp_path, width):
    name, results = f"a-run-with-a-{'very-' * 9}long-name", {4: {RANDOM: match(98, 200)}}
    write_run(tmp_path / name, results, model__name=str(tmp_path))
    write_run(tmp_path / "short", results, envs="[{id = 'TicTacToe-v0-train'}]")
    lines = table(list_runs(tmp_path), width)
    assert max(map(len, lines)) <= width
    assert name in "".join(line.split(" ")[0] for line in lines)


def test_hostile_names_neither_control_the_terminal_nor_are_markup(tmp_path):
    program = tmp_path / "debate.toml"
    program.write_text(PROGRAM)
    names = [text for text in (*TERMINAL, *RICH_MARKUP) if "\0" not in text and "\ud800" not in text]
    results = {f"m{place}": MeasureResult(f"{text}[red]", [1.0]) for place, text in enumerate(names[:3])}
    path = write_run(tmp_path / "runs" / "run\x1b[2J[bold]", {4: results}, preset=str(program))
    note_session(path)
    (path / "report.html").unlink()
    lines = "\n".join(table(list_runs(tmp_path / "runs"), 200))
    assert not ACTS_ON_A_TERMINAL.search(lines)
    assert "run·[2J[bold]" in lines
    assert "[red]" in lines
    RunDirectory.open(path).after_failure("[/bold]\x1b]0;title\x07")
    lines = "\n".join(table(list_runs(tmp_path / "runs"), 200))
    assert "[/bold]·]0;title·" in lines


def test_the_list_is_machine_readable(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "mine", {4: {RANDOM: match(98, 200)}})
    write_run(tmp_path / "runs" / "torn")
    (tmp_path / "runs" / "torn" / "config.toml").write_text("seed =")
    assert main(["runs", "--json"]) == 0
    runs = {run["name"]: run for run in json.loads(capsys.readouterr().out)}
    assert runs["mine"]["state"] == "finished"
    assert runs["mine"]["path"] == "runs/mine"
    assert runs["mine"]["measured_at"] == 4
    (figure,) = runs["mine"]["figures"]
    assert figure["name"] == "win rate against random"
    assert figure["value"] == 0.49
    assert figure["count"] == 200
    assert datetime.fromisoformat(runs["mine"]["last_written"]) <= datetime.now(UTC) + timedelta(seconds=1)
    assert runs["torn"]["state"] == "damaged"
    assert runs["torn"]["figures"] == []
    assert runs["torn"]["measured_at"] is None


def test_an_empty_directory_has_no_runs(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    assert main(["runs", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out == "there are no runs here\n"
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


# A PSRO


def write_psro(path, iterations):
    """Write a PSRO of two iterations that has so many, the newest with the NashConv 0.25."""
    directory = PsroDirectory.open(path)
    directory.write_config(load_config("quickstart", {"psro.iterations": "2"}))
    names = [member_name(number) for number in range(iterations + 1)]
    found = [Iteration(name, 5, 40, 100, None, {name: 1.0}, 0.25) for name in names]
    zeros = [[0.0] * len(names) for _ in names]
    games = [[100] * len(names) for _ in names]
    write_state(path, PsroState("kuhn_poker", "nash", names, zeros, zeros, games, found))
    directory.close()


def test_a_list_of_runs_has_a_row_for_a_psro(tmp_path):
    write_psro(tmp_path / "psro", 2)
    (listed,) = list_runs(tmp_path)
    assert (listed.kind, listed.state, listed.plays) == ("psro", "finished", ["kuhn_poker"])
    assert (listed.updates, listed.total) == (2, 2)
    assert [(one.name.name, one.value) for one in listed.figures] == [("NashConv", 0.25)]


def test_the_list_says_how_far_a_psro_came(tmp_path):
    write_psro(tmp_path / "psro", 1)
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.updates) == ("stopped", 1)
    lock = lock_directory(tmp_path / "psro")
    assert list_runs(tmp_path)[0].state == "running"
    os.close(lock)
    (tmp_path / "psro" / "psro.json").write_text("{")
    assert (list_runs(tmp_path)[0].state, list_runs(tmp_path)[0].kind) == ("damaged", "psro")


def test_no_flipped_bit_and_no_cut_in_what_a_psro_found_goes_unnoticed(tmp_path):
    write_psro(tmp_path, 1)
    state = tmp_path / "psro.json"
    whole = state.read_bytes()
    assert read_state(tmp_path).iterations[-1].nash_conv == 0.25
    flips = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in [*flips, *(whole[:at] for at in range(len(whole)))]:
        state.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            read_state(tmp_path)


def test_a_psro_wrote_when_its_best_response_did_and_failed_when_that_failed(tmp_path):
    write_psro(tmp_path / "psro", 1)
    member = tmp_path / "psro" / member_name(2)
    member.mkdir()
    note_session(member)
    for path in [tmp_path / "psro", *(tmp_path / "psro").rglob("*")]:
        os.utime(path, (1000, 1000))
    assert list_runs(tmp_path)[0].last_written.timestamp() == 1000
    os.utime(member / "sessions.json", (2000, 2000))
    assert list_runs(tmp_path)[0].last_written.timestamp() == 2000
    note_failure(member, "the disk is full")
    assert (list_runs(tmp_path)[0].state, list_runs(tmp_path)[0].problem) == ("failed", "the disk is full")
