"""``sparring watch`` as a user types it: its one-line errors, and a whole session in a terminal."""

import os
import subprocess
import sys

import pytest

from sparring.cli.main import main
from sparring.cli.runs import newest_run
from terminal_sessions import in_terminal, pretend_a_terminal
from watched_runs import append, run_of


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new", "begun"):
        run_of(tmp_path / "runs" / name)
    for age, name in enumerate(("new", "old")):
        append(tmp_path / "runs" / name, {"step": 1, "wall_time": 1.0})
        os.utime(tmp_path / "runs" / name / "metrics.jsonl", (1000 - age, 1000 - age))
    os.utime(tmp_path / "runs" / "begun" / "config.toml", (500, 500))
    return tmp_path / "runs"


def error_of(*arguments, capsys):
    assert main(["watch", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_output_that_is_not_a_terminal_is_one_line(capsys):
    assert "this is not a terminal. Run it in a terminal, or use: sparring report runs/old" in error_of(
        "old", capsys=capsys
    )


def test_a_missing_package_is_one_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "textual", None)
    assert "pip install 'sparring[watch]'" in error_of("old", capsys=capsys)


def test_without_ray_a_cluster_is_a_one_line_error(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = error_of("--address", "127.0.0.1:6379", capsys=capsys)
    assert "--address: the package ray is not installed. Run: pip install 'sparring[ray]'" in said


def test_a_missing_cluster_is_one_line(capsys, monkeypatch):
    pretend_a_terminal(monkeypatch)
    said = error_of("demo", "--address", "127.0.0.1:1", capsys=capsys)
    assert "--address: the cluster at 127.0.0.1:1 cannot be joined (Connection refused)" in said
    assert "'elsewhere' is not an address" in error_of("--address", "elsewhere", capsys=capsys)


def test_without_a_name_the_run_that_was_written_to_last_is_watched(runs, capsys):
    assert newest_run() == runs.relative_to(runs.parent) / "new"
    os.utime(runs / "begun" / "config.toml", (2000, 2000))
    assert newest_run().name == "begun"
    assert "sparring report runs/begun" in error_of(capsys=capsys)


def test_without_any_run_the_error_says_how_to_get_one(runs, capsys):
    runs.rename(runs.with_name("elsewhere"))
    assert "there is no run here. Train one first: sparring train kuhn" in error_of(capsys=capsys)


def test_the_command_loads_nothing_heavy(runs):
    code = "import sys; from sparring.cli.main import main; main(['watch', 'old']); "
    code += "import sparring.view.watch.terminal_interface, sparring.view.source; "
    code += "print([m for m in ('torch', 'transformers', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_session_in_a_terminal_draws_and_ends_by_a_key(runs):
    command = [sys.executable, "-c", "from sparring.cli.main import run; run()", "watch", "old"]
    shown = in_terminal(command, (b"update 1 of 100", b"q"))
    assert shown.endswith(b"\x1b[?1006l") or b"\x1b[?1049l" in shown, "the screen is given back"
