"""The command line as a user meets it. Commands that need a model are tested with the runtime."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points

import pytest

from selfplay import __version__
from selfplay.cli import main as command_line
from selfplay.cli.environments import players_text
from selfplay.cli.main import main
from selfplay.cli.runs import checked_seats
from selfplay.cli.train import split_arguments
from selfplay.config import load_config
from selfplay.core import InputError, SelfplayError
from selfplay.envs.catalog import list_environments

HEAVY = ("torch", "transformers", "textarena")
MODULES_LEFT = (
    "import sys; from selfplay.cli.main import main; status = main(sys.argv[1:]); "
    "print('loaded', *(m for m in {heavy!r} if m in sys.modules), file=sys.stderr); sys.exit(status)"
)


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def loaded_by(*arguments, heavy):
    done = subprocess.run(
        [sys.executable, "-c", MODULES_LEFT.format(heavy=heavy), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()[-1].split()[1:]


def test_help_loads_nothing_heavy():
    assert loaded_by("--help", heavy=(*HEAVY, "pydantic", "pyspiel", "numpy")) == []


@pytest.mark.parametrize("preset", ["quickstart", "tictactoe"])
def test_a_dry_run_loads_nothing_heavy(preset):
    assert loaded_by("train", preset, "--dry-run", heavy=HEAVY) == []


def test_the_installed_command_exits_with_the_status(monkeypatch, capsys):
    (command,) = entry_points(group="console_scripts", name="selfplay")
    for argument, status in (("--version", 0), ("--nothing", 2)):
        monkeypatch.setattr(sys, "argv", ["selfplay", argument])
        with pytest.raises(SystemExit) as exit_:
            command.load()()
        assert exit_.value.code == status
    assert capsys.readouterr().out == f"selfplay {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for command in ("train", "eval", "envs", "play", "report"):
        assert command in printed


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


def test_overrides_and_words_are_told_apart():
    words, overrides = split_arguments(["a", "--x.y", "1", "--z.w=b=c", "b", "--loss.v", "-5", "--e.f="])
    assert words == ["a", "b"]
    assert overrides == {"x.y": "1", "z.w": "b=c", "loss.v": "-5", "e.f": ""}


@pytest.mark.parametrize("arguments", [["--x"], ["-v"], ["--x.y"], ["--x.y", "--z.w", "3"], ["-x.y", "3"]])
def test_what_is_neither_word_nor_override_is_refused(arguments):
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


def test_envs_says_why_one_cannot_be_played(capsys):
    assert main(["envs", "goofspiel"]) == 2
    assert "at the same time" in capsys.readouterr().err
    assert main(["envs", "Klondike-v0-train"]) == 0
    assert "playable no: TextArena's code for it has a syntax error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("env_id", "seats"), [("kuhn_poker", 2), ("2048-v0-train", 1), ("ThreePlayerTicTacToe-v0-train", 3)]
)
def test_without_a_number_of_players_two_play_where_they_can(env_id, seats):
    assert checked_seats(env_id, None, "fewshot-chat") == seats


def test_numbers_of_players_are_brief():
    assert players_text([2]) == "2"
    assert players_text([2, 3, 4]) == "2-4"
    assert players_text([2, 4]) == "2, 4"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("field", "is wrong", "Mend it."), 2, "error: field: is wrong. Mend it\n"),
        (SelfplayError("the run\n  had to stop"), 1, "error: the run had to stop\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line_and_an_exit_status(error, status, line, capsys, monkeypatch):
    def failing(arguments, **options):
        raise error

    monkeypatch.setattr(command_line, "app", failing)
    assert main(["report", "x"]) == status
    assert capsys.readouterr().err == line
