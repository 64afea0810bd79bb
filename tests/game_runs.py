"""Whole runs of games with a tiny model."""

import io
import json
import shutil
from pathlib import Path

from rich.console import Console

from sparring.collection import BatchLog, RolloutLog
from sparring.config import Config, load_config
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import resume, train

SMALL = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "collection.games_per_step": "8",
    "learning.steps": "4",
    "learning.max_batch_tokens": "4096",
    "evaluation.every": "2",
    "evaluation.games": "4",
    "evaluation.games_during": "4",
    "evaluation.opponents": "['random']",
    "run.save_every": "2",
    "run.keep_checkpoints": "5",
}


FEWER_GAMES = {"collection__games_per_step": "4", "evaluation__games": "2"}


def configure(model: Path, preset: str = "quickstart", **changes: str) -> Config:
    """A small run, which computes NashConv only where the changes say so."""
    small = SMALL | {"model.name": str(model), "evaluation.nash_conv": "false"}
    return load_config(preset, small | {k.replace("__", "."): v for k, v in changes.items()})


def run(config: Config, path: Path) -> str:
    text = io.StringIO()
    train(config, path, Console(file=text, width=100))
    return text.getvalue()


def metrics_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def returns_learned(path: Path) -> dict[tuple[str, int, int], float]:
    """The return from each turn on, by rollout, seat and number, that a run has learned from."""
    batches = [BatchLog(path / "batches").read(number) for number in range(1, len(metrics_of(path)) + 1)]
    return {
        (line["rollout_id"], line["pid"], line["step_index"]): line["rewards"]["final_transformed"]
        for batch in batches
        for line in batch
    }


def returns_played(path: Path, discount: float) -> dict[tuple[str, int, int], float]:
    """The same of all turns that were played, by what was paid for them."""
    found = {}
    for _, rollout in RolloutLog(path / "rollouts"):
        for pid in rollout.extras["final_rewards"]:
            total, turns = 0.0, [turn for turn in rollout.extras["turns"] if turn["pid"] == pid]
            for number, turn in reversed([*enumerate(turns)]):
                total = found[rollout.id, pid, number] = turn["reward"] + discount * total
    return found


MAGNET = {"learning__algorithm": '{type = "magnet"}', "learning__momentum": "0.8"}


def cut_back(path: Path, to: int) -> None:
    """Return a run that was killed before it saved its end."""
    directory = RunDirectory.open(path)
    directory.report_file.unlink()
    for step in directory.saved_steps():
        if step > to:
            shutil.rmtree(directory.checkpoint(step))


def resumed(path: Path) -> str:
    text = io.StringIO()
    resume(path, Console(file=text, width=100))
    return text.getvalue()


GAMES = {"collection__games_per_step": "4", "evaluation__games": "6", "evaluation__games_during": "2"}


CONSTANT = {"learning__schedule": "constant"} | GAMES | MAGNET


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)
