"""The command line as a user meets it. Commands that need a model are tested with the runtime."""

import io
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from hostile_text import ACTS_ON_A_TERMINAL, TERMINAL
from loaded_modules import loaded_by
from program_files import write_program
from run_files import match, write_run
from sparring import __version__
from sparring.cli.main import main
from sparring.cli.options import split_arguments
from sparring.config import load_config, preset_names
from sparring.core import InputError
from sparring.envs.catalog import list_environments, make_game
from sparring.run.checks import checked_seats
from terminal_sessions import IN_BACKGROUND, in_terminal
from tiny_models import roomy_model, tiny_model

HEAVY = ("torch", "transformers", "textarena")


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_help_loads_nothing_heavy():
    assert loaded_by("--help", heavy=(*HEAVY, "pydantic", "pyspiel", "numpy")) == []


def test_the_command_runs_as_a_module_too():
    done = subprocess.run(
        [sys.executable, "-m", "sparring", "train", "kuhn", "--sede", "3"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --sede: there is no such option")


@pytest.mark.parametrize(
    "arguments",
    [
        ["envs"],
        pytest.param(["envs", "SimpleNegotiation-v0"], marks=pytest.mark.slow),
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_output_that_nobody_reads_ends_a_command_without_a_word(arguments):
    with subprocess.Popen(
        [sys.executable, "-m", "sparring", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", ["envs", "config kuhn", "--version"])
@pytest.mark.parametrize(
    ("output", "status", "said"),
    [(">/dev/full", 1, "error: the output cannot be written: No space left on device\n"), (">&-", 0, "")],
)
def test_output_that_cannot_be_written_is_one_line_at_most(arguments, output, status, said, tmp_path):
    command = f"{shlex.quote(sys.executable)} -m sparring {arguments} {output}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (status, said)


def test_options_of_a_server_on_a_cluster_load_nothing_heavy():
    heavy = (*HEAVY, "ray", "fastapi")
    assert loaded_by("serve smollm2-135m --address auto", heavy=heavy, status=2) == []


def test_a_list_of_runs_loads_nothing_heavy(tmp_path):
    write_run(tmp_path / "runs" / "mine", {4: {"kuhn_poker-random": match(5, 10)}})
    assert loaded_by("runs", "runs --json", heavy=(*HEAVY, "pyspiel", "plotly")) == []


@pytest.mark.slow  # test_dry_run and test_envs_catalog look at it
@pytest.mark.parametrize(("preset", "plays"), [("quickstart", []), ("tictactoe", ["textarena"])])
def test_a_dry_run_loads_nothing_heavy_but_the_library_of_the_game_that_it_plays(preset, plays):
    assert loaded_by(f"train {preset} --dry-run", heavy=HEAVY) == plays


def test_a_wrong_name_and_a_finished_run_are_refused_before_torch_is_loaded(tmp_path):
    write_run(tmp_path / "runs" / "mine", {4: {"kuhn_poker-random": match(5, 10)}})
    commands = (
        "serve nosuch",
        "eval nosuch --env kuhn_poker",
        "play nosuch --env kuhn_poker",
        "export nosuch out",
        "tournament nobody random --env kuhn_poker",
        "train --resume mine",
    )
    assert loaded_by(*commands, heavy=("torch", "transformers"), status=2) == []


def test_the_installed_command_exits_with_the_status(monkeypatch, capsys):
    (command,) = entry_points(group="console_scripts", name="sparring")
    for argument, status in (("--version", 0), ("--nothing", 2)):
        monkeypatch.setattr(sys, "argv", ["sparring", argument])
        with pytest.raises(SystemExit) as exit_:
            command.load()()
        assert exit_.value.code == status
    assert capsys.readouterr().out == f"sparring {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for command in ("train", "eval", "envs", "play", "report", "runs", "compare", "export"):
        assert command in printed


def test_help_of_train_names_every_preset(capsys):
    assert main(["train", "--help"]) == 0
    words = re.findall(r"[\w-]+", capsys.readouterr().out)
    assert {one for one in preset_names() if "/" not in one} <= set(words)


def test_a_dry_run_prints_the_resolved_configuration_which_trains_the_same(tmp_path, capsys):
    arguments = ["--learning.steps", "3", "--seed", "5", "--model.threads=1", "--dry-run"]
    assert main(["train", "quickstart", *arguments]) == 0
    printed = capsys.readouterr()
    saved = tmp_path / "saved.toml"
    saved.write_text(printed.out)
    overrides = {"learning.steps": "3", "seed": "5", "model.threads": "1"}
    assert load_config(str(saved), {}) == load_config("quickstart", overrides)
    assert "ok environment kuhn_poker, 2 players, template fewshot-chat" in printed.err
    assert "ok run directory runs/quickstart\n" in printed.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("envs.0.id", "kuhn_pokr"), ("lora.target_modules", "[]"), ("model.device", "cuda:99")],
)
def test_a_dry_run_of_an_invalid_configuration_prints_only_the_error(field, value, capsys):
    assert main(["train", "quickstart", f"--{field}", value, "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {field}: ")
    assert printed.err.count("\n") == 1


def test_a_dry_run_names_the_default_opponent_of_evaluations(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('[[envs]]\nid = "LiarsDice-v0-small-train"\n')
    assert main(["train", "mine.toml", "--dry-run"]) == 0
    assert "note: LiarsDice-v0-small-train does not list its legal moves" in capsys.readouterr().err


def test_options_may_come_before_the_configuration(capsys):
    assert main(["train", "--dry-run", "--learning.steps", "3", "--seed", "2", "quickstart"]) == 0
    resolved = tomllib.loads(capsys.readouterr().out)
    assert resolved["learning"]["steps"] == 3
    assert resolved["seed"] == 2


def test_a_run_is_named_after_its_configuration_with_the_first_free_number(tmp_path, capsys):
    for taken in ("quickstart", "quickstart-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    main(["train", "quickstart", "--dry-run"])
    assert "run directory runs/quickstart-3\n" in capsys.readouterr().err
    main(["train", "quickstart", "--dry-run", "--name", "mine", "--run.directory", "elsewhere"])
    assert "run directory elsewhere/mine\n" in capsys.readouterr().err


def test_overrides_and_words_are_distinguished():
    words, overrides = split_arguments(["a", "--x.y", "1", "--z.w=b=c", "b", "--loss.v", "-5", "--e.f="])
    assert words == ["a", "b"]
    assert overrides == {"x.y": "1", "z.w": "b=c", "loss.v": "-5", "e.f": ""}


@pytest.mark.parametrize("arguments", [["--x"], ["-v"], ["--x.y"], ["--x.y", "--z.w", "3"], ["-x.y", "3"]])
def test_arguments_that_are_neither_word_nor_override_are_rejected(arguments):
    with pytest.raises(InputError):
        split_arguments(arguments)


def test_envs_lists_every_environment_and_the_reason_of_each_that_cannot_be_played(capsys):
    assert main(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line}
    infos = list_environments()
    for info in infos:
        assert info.library in rows[info.env_id] if info.playable else info.reason in rows[info.env_id]
    playable = sum(info.playable for info in infos)
    assert lines[-1].startswith(f"{playable} of {len(infos)} can be played here")


def test_envs_shows_one_environment_with_its_prompt(capsys):
    assert main(["envs", "kuhn_poker"]) == 0
    printed = capsys.readouterr().out
    assert "players  2\n" in printed
    assert "moves    check, bet\n" in printed
    assert "Legal moves: check, bet." in printed


def test_a_prompt_of_a_library_cannot_control_the_terminal(capsys, monkeypatch):
    def make_hostile(*arguments, **options):
        game = make_game(*arguments, **options)
        monkeypatch.setattr(game, "observation", lambda pid: "".join(TERMINAL))
        return game

    monkeypatch.setattr("sparring.envs.catalog.make_game", make_hostile)
    assert main(["envs", "kuhn_poker"]) == 0
    said = capsys.readouterr().out
    assert "·[2J" in said
    assert not ACTS_ON_A_TERMINAL.search(said)


def test_envs_gives_the_reason_why_an_environment_cannot_be_played(capsys):
    assert main(["envs", "goofspiel"]) == 2
    assert "at the same time" in capsys.readouterr().err
    assert main(["envs", "Klondike-v0-train"]) == 0
    assert "playable no: TextArena's code for it has a syntax error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("env_id", "seats"), [("kuhn_poker", 2), ("2048-v0-train", 1), ("ThreePlayerTicTacToe-v0-train", 3)]
)
def test_without_a_number_of_players_two_play_where_they_can(env_id, seats):
    assert checked_seats(env_id, None, "fewshot-chat") == seats


def test_a_run_that_had_to_stop_is_one_line_and_status_1(tmp_path, capsys):
    program = write_program(tmp_path)
    (tmp_path / "mine.toml").write_text(
        f'[program]\ntype = "python"\npath = "{program}:HideAndSeek"\n[inference]\nmax_context = 16\n'
    )
    model = str(tiny_model("llama"))
    capsys.readouterr()
    assert main(["train", "mine.toml", "--model.name", model, "--model.threads", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "exceed the context of 16" in said
    assert said.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []


class Interrupted(io.StringIO):
    """Standard input at which the user presses Ctrl-C."""

    def readline(self, *arguments):
        raise KeyboardInterrupt


def test_an_interrupt_is_status_130_and_no_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Interrupted())
    model = str(roomy_model())
    capsys.readouterr()
    assert main(["play", model, "--env", "kuhn_poker", "--seat", "0"]) == 130
    assert capsys.readouterr().err == ""


def test_sigterm_is_as_ctrl_c_also_in_own_code_and_in_the_background_of_a_script():
    Path("own.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('went on')\n")
    Path("own.toml").write_text('[[envs]]\nid = "own.py:Game"\nnum_players = 1\n')
    command = [*IN_BACKGROUND, sys.executable, "-m", "sparring", "train", "own.toml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@pytest.mark.slow
def test_the_first_ctrl_c_at_a_question_of_play_ends_the_session():
    play = "from sparring.cli.main import run; run()"
    command = [sys.executable, "-c", play, "play", str(roomy_model()), "--env", "kuhn_poker", "--seat", "0"]
    in_terminal(command, (b"your move", b"\x03"), status=130)
