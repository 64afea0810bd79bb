"""Runs to watch: real ones of a tiny model, and files written by hand where something is to be wrong."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from program_files import write_program
from sparring.config import load_config
from sparring.run.single_process import train
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource
from tiny_models import roomy_model

SMALL = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "learning.steps": "3",
    "evaluation.every": "1",
    "run.save_every": "1",
}
GAMES = {
    "evaluation.games": "4",
    "evaluation.games_during": "4",
    "collection.games_per_step": "8",
    "evaluation.opponents": "['random', 'optimal']",
    "population.sample_mode": "random",
    "population.add_every": "1",
    "population.fixed_opponents": "['random']",
}


def train_games(path: Path) -> Path:
    """Three updates of Kuhn poker against a pool."""
    return _train("quickstart", SMALL | GAMES | {"model.name": str(roomy_model())}, path)


def train_program(path: Path) -> Path:
    """Three updates of two policies, with sub-episodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config = path.parent / f"{path.name}.toml"
    config.write_text(f'[program]\ntype = "python"\npath = "{write_program(path.parent)}:HideAndSeek"\n')
    overrides = SMALL | {"model.name": str(roomy_model()), "learning.algorithm.regulariser": "none"}
    return _train(str(config), overrides, path)


def _train(config: str, overrides: dict[str, str], path: Path) -> Path:
    train(load_config(config, overrides), path, Console(file=io.StringIO(), width=100))
    return path


def run_of(path: Path, *, steps: int = 100, **metrics: Any) -> Path:
    """A directory with a configuration, and a line of metrics if any are given."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(
        f'[model]\nname = "tiny"\n\n[learning]\nsteps = {steps}\n\n[[envs]]\nid = "kuhn_poker"\n'
    )
    if metrics:
        append(path, metrics)
    return path


def append(path: Path, metrics: dict[str, Any]) -> None:
    """Append a line of metrics."""
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics) + "\n")


def read_all(path: Path) -> RunView:
    """Read a run's directory to its end."""
    source = RunDirectorySource(path)
    view = source.read()
    while view.share_read < 1:
        view = source.read()
    return view


def text_of(drawn: RenderableType | None, width: int = 80) -> str:
    """Return what a terminal of this width shows of a panel."""
    shown = io.StringIO()
    if drawn is not None:
        Console(file=shown, width=width).print(drawn)
    return shown.getvalue()


def write_log(path: Path, step: int, rollouts: list[dict[str, Any]]) -> None:
    """Write a rollout log."""
    (path / "rollouts").mkdir(exist_ok=True)
    lines = (json.dumps({"rollout": rollout}) + "\n" for rollout in rollouts)
    (path / "rollouts" / f"step-{step:06d}.jsonl").write_text("".join(lines))


def said(*texts: str, **more: Any) -> dict[str, Any]:
    """An episode in which one role said something."""
    transcript = [{"author": "Solver", "to": "", "text": text} for text in texts]
    return {"episode_type": "solve", "id": texts[0], "extras": {"transcript": transcript}, "meta": {}, **more}
