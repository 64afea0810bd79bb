"""What the command on Ray does around a run."""

import socket

import pytest
from rich.console import Console

from selfplay.cli.main import main
from selfplay.core import InputError
from selfplay.runtime.ray.train import _has_learned, resume

CONFIG = """
[[envs]]
id = "kuhn_poker"
[run]
runtime = "{runtime}"
"""


@pytest.mark.parametrize(
    ("saved", "learned"),
    [([], False), (["000000"], False), ([".000001.partial"], False), (["000000", "000001"], True)],
)
def test_a_run_has_learned_when_an_update_is_saved(tmp_path, saved, learned):
    for name in saved:
        (tmp_path / "learner" / name).mkdir(parents=True)
    assert _has_learned(tmp_path) == learned


def a_run(tmp_path, runtime):
    run_dir = tmp_path / "runs" / "moved"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(CONFIG.format(runtime=runtime))
    return run_dir


def test_a_run_whose_cluster_has_moved_is_looked_for_there(tmp_path):
    run_dir = a_run(tmp_path, "ray")
    before = (run_dir / "config.toml").read_text()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nowhere = f"127.0.0.1:{bound.getsockname()[1]}"
    with pytest.raises(InputError, match=f"the cluster at {nowhere} cannot be joined"):
        resume(run_dir, Console(), nowhere)
    assert (run_dir / "config.toml").read_text() == before


def test_a_run_of_one_process_has_no_address(tmp_path, monkeypatch, capsys):
    a_run(tmp_path, "local")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "moved", "--address", "auto"]) == 2
    assert "error: --address: runs/moved is a run of one process" in capsys.readouterr().err
