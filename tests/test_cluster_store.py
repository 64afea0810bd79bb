"""A run on Ray goes on from its store alone, in another directory."""

import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from game_runs import CONSTANT, FEWER_GAMES, configure, metrics_of, quiet
from program_runs import OPPONENTS
from program_runs import configure as configure_program
from sparring.cluster.run import resume, train
from sparring.run.start import fetch_run

NEWEST = {"run__save_every": "1", "evaluation__every": "0"}
GAMES = {
    **CONSTANT,
    **FEWER_GAMES,
    **NEWEST,
    "population__sample_mode": "random",
    "population__add_every": "1",
}


def adapters(run: Path) -> dict[str, torch.Tensor]:
    files = sorted((run / "checkpoints/step-000004").rglob("adapter_model.safetensors"))
    return {f"{file.parent.name}/{name}": one for file in files for name, one in load_file(file).items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["games", "program"])
def test_a_run_on_ray_whose_host_is_gone_is_continued_in_another_directory(
    kind, model, tmp_path, cluster, monkeypatch
):
    on_ray = {"run__runtime": "ray", "ray__address": cluster, "ray__collectors": "1", "learning__steps": "4"}

    def config(**changes):
        if kind == "games":
            return configure(model, **GAMES | on_ray | changes)
        constant = {"learning__schedule": "constant"}
        return configure_program(model, tmp_path, **OPPONENTS | NEWEST | constant | on_ray | changes)

    store = {"run__store": f"file://{tmp_path}/bucket", "learning__steps": "2"}
    train(config(), tmp_path / "whole" / "run", quiet())
    train(config(**store), tmp_path / "gone" / "run", quiet())
    shutil.rmtree(tmp_path / "gone")
    monkeypatch.chdir(tmp_path)
    path = fetch_run(f"file://{tmp_path}/bucket/run", quiet())
    resume(path, Console(quiet=True), {"learning.steps": "4"})
    whole, continued = adapters(tmp_path / "whole" / "run"), adapters(path)
    assert whole
    assert continued.keys() == whole.keys()
    for name, one in whole.items():
        torch.testing.assert_close(continued[name], one, rtol=1e-4, atol=1e-6)
    assert [line["step"] for line in metrics_of(path)] == [1, 2, 3, 4]
    counts = ("accounts/started", "accounts/finished")
    last, wanted = metrics_of(path)[-1], metrics_of(tmp_path / "whole" / "run")[-1]
    assert [last[name] for name in counts] == [wanted[name] for name in counts]
