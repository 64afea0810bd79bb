"""The parts of the command on Ray before and after a run."""

import io
import socket

import pytest
import ray
from rich.console import Console

from game_runs import CONSTANT, configure, metrics_of, returns_learned, returns_played
from sparring.cli.main import main
from sparring.cluster.run import resume, train
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.run.run_directory import RunDirectory

CONFIG = """
[[envs]]
id = "kuhn_poker"
[run]
runtime = "{runtime}"
"""


@pytest.mark.parametrize(
    ("saved", "stays"),
    [([], False), (["000000"], False), ([".000001.partial"], False), (["000000", "000001"], True)],
)
def test_a_failed_run_is_kept_if_an_update_is_saved(tmp_path, saved, stays):
    directory = RunDirectory.create(tmp_path / "run")
    for name in saved:
        (tmp_path / "run" / "learner" / name).mkdir(parents=True)
    said = str(directory.after_failure("the learner is lost"))
    directory.unlock()
    assert said.startswith("the learner is lost. ")
    assert ("--resume" in said) == ("up to update 1 is saved" in said) == stays
    assert ("No update is saved yet" in said) != stays
    assert (tmp_path / "run").exists() == stays


def test_a_directory_that_is_gone_is_not_removed_again(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    assert directory.remove_new()
    assert not directory.remove_new()
    directory.unlock()


def test_a_run_that_fails_at_its_start_ends_with_one_line_and_leaves_no_directory(
    tmp_path, monkeypatch, loopback
):
    """Its cluster is gone before the first actor is started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ray, "init", lambda **options: None)
    (tmp_path / "config.toml").write_text(CONFIG.format(runtime="ray"))
    config = load_config(str(tmp_path / "config.toml"), {"model.threads": "1"})
    with pytest.raises(SparringError) as caught:
        train(config, tmp_path / "run", Console())
    assert str(caught.value).endswith("No update is saved yet, so nothing is kept")
    assert "Ray has not been started yet" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def a_run(tmp_path, runtime):
    run_dir = tmp_path / "runs" / "moved"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(CONFIG.format(runtime=runtime))
    return run_dir


def test_a_resumed_run_uses_the_new_address_of_its_cluster(tmp_path):
    run_dir = a_run(tmp_path, "ray")
    before = (run_dir / "config.toml").read_text()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nowhere = f"127.0.0.1:{bound.getsockname()[1]}"
    with pytest.raises(InputError, match=f"the cluster at {nowhere} cannot be joined"):
        resume(run_dir, Console(), {"ray.address": nowhere})
    assert (run_dir / "config.toml").read_text() == before


def test_a_run_of_one_process_has_no_address(tmp_path, monkeypatch, capsys):
    a_run(tmp_path, "local")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "moved", "--address", "auto"]) == 2
    assert "error: --address: runs/moved is a run of one process" in capsys.readouterr().err


class ResumedWhileJoining(io.StringIO):
    """Standard output of a command; when it says that it joins the cluster, the run is resumed elsewhere."""

    def __init__(self, run) -> None:
        super().__init__()
        self.run = run

    def write(self, text):
        if "joining Ray" in text:
            Epoch.begin(self.run)
        return super().write(text)


def test_a_run_that_was_resumed_elsewhere_while_it_joined_the_cluster_writes_nothing(tmp_path, cluster):
    config = load_config("quickstart", {"run.runtime": "ray", "ray.address": cluster, "model.threads": "1"})
    run = tmp_path / "run"
    with pytest.raises(SparringError, match=r"was resumed by another process, so this one stops$"):
        train(config, run, Console(file=ResumedWhileJoining(run)))
    assert sorted(path.name for path in run.iterdir() if path.is_file()) == [".epoch", ".lock"]


@pytest.mark.slow
def test_a_finished_run_on_ray_goes_on_to_more_updates(model, tmp_path, cluster):
    path, changes = tmp_path / "run", {"run__runtime": "ray", "ray__collectors": "1", "ray__address": cluster}
    watched = '[{id = "leduc_poker", opponents = ["base"], games = 2}, {id = "kuhn_poker"}]'
    changes |= {"evaluation__envs": watched, "evaluation__games_alongside": "4"}
    train(configure(model, **changes, **CONSTANT, learning__steps="2"), path, Console(quiet=True))
    resume(path, Console(quiet=True), {"learning.steps": "4"})
    lines = metrics_of(path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["learner/packed_tokens"] > 0
    assert lines[-1]["accounts/finished"] == 4 * 4
    assert (path / "checkpoints" / "step-000004").is_dir()
    assert (path / "evaluation" / "step-000004-leduc_poker-base.json").is_file()
    assert (path / "evaluation" / "step-000004-kuhn_poker-random.json").is_file()
    assert {"evaluation-leduc_poker/Win Rate", "evaluation-kuhn_poker/Win Rate"} <= lines[-1].keys()


WALK = '''
from sparring.envs.environment import Environment, Situation


class Walk(Environment):
    """Five steps; a 1 is paid after the next one."""

    num_players = 1

    def rules(self, player):
        return "Walk."

    async def reset(self, seed):
        self.said, self.left = "", 5
        return Situation({0: "Go."})

    async def step(self, answers):
        paid, self.said, self.left = {0: float(len(self.said) - self.left)}, answers[0], self.left - 1
        return Situation({0: "Go."}, {}, paid) if self.left else Situation({}, {}, paid, {0: "terminated"})
'''


@pytest.mark.slow
def test_a_run_on_ray_learns_from_what_an_environment_pays_on_the_way(model, tmp_path, cluster):
    (tmp_path / "walk.py").write_text(WALK)
    (tmp_path / "walk.toml").write_text(
        '[[envs]]\nid = "walk.py:Walk"\nnum_players = 1\n[rewards]\ndiscount = 0.5\n[run]\nruntime = "ray"\n'
    )
    few = {"learning__steps": "2", "evaluation__opponents": "[]", "ray__address": cluster}
    train(configure(model, str(tmp_path / "walk.toml"), **few), tmp_path / "run", Console(file=io.StringIO()))
    learned = returns_learned(tmp_path / "run")
    assert learned.items() <= returns_played(tmp_path / "run", 0.5).items()
    assert {number for _, _, number in learned} == {*range(5)}
