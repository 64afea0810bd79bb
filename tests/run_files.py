"""Runs on disk with results of choice, without training."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from sparring.config import load_config
from sparring.config.loading import dump_config
from sparring.core.manifest import seal
from sparring.evaluation import GameRecord, MatchResult, NashConvResult, write_evaluation

PROGRAM = '[program]\ntype = "debate"\ntopics = ["Cats are better than dogs."]\n'


def match(
    wins: int,
    games: int,
    *,
    draws: int = 0,
    invalid: int = 0,
    opponent: str = "random",
    env_id: str = "kuhn_poker",
):
    """A match with so many wins, each worth 1, and draws; the rest is lost, so many by an invalid move."""
    seats = 2 if opponent else 1
    result = MatchResult(
        env_id=env_id, num_players=seats, model="default", opponent=opponent, seed=0, requested_games=games
    )
    for number in range(games):
        outcome = "win" if number < wins else "draw" if number < wins + draws else "loss"
        reward = {"win": 1.0, "draw": 0.0, "loss": -1.0}[outcome]
        side = "model" if number >= games - invalid else None
        result.add(GameRecord(number % seats, reward, outcome, side, False, 3, 0))
    return result


def nash(
    value: float, *, mass: float = 0.9, env_id: str = "kuhn_poker", policy=None, observations=None
) -> NashConvResult:
    """A NashConv."""
    return NashConvResult(
        env_id=env_id,
        model="default",
        nash_conv=value,
        exploitability=[value / 2] * 2,
        values=[0.0, 0.0],
        best_response_values=[value / 2] * 2,
        legal_mass=mass,
        min_legal_mass=mass,
        policy=policy or {},
        observations=observations or {},
    )


def write_run(
    path: Path,
    evaluations: Mapping[int, Mapping[str, object]] | None = None,
    *,
    updates: int = 4,
    finished: bool = True,
    preset: str = "quickstart",
    metrics: Mapping[str, float] | None = None,
    **changes: str,
) -> Path:
    """Write a run.

    Args:
        path: its directory.
        evaluations: by update and name.
        updates: how many are done.
        finished: whether those are all, and nothing is left to do.
        preset: its configuration, or a file.
        metrics: values of each update.
        changes: fields of the configuration, with ``__`` for the dot.
    """
    total = {} if not finished else {"learning.steps": str(updates)}
    config = load_config(preset, total | {name.replace("__", "."): one for name, one in changes.items()})
    path.mkdir(parents=True)
    (path / "config.toml").write_text(dump_config(config))
    lines = [{"step": step, "wall_time": float(step), **(metrics or {})} for step in range(1, updates + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, results in (evaluations or {}).items():
        for name, result in results.items():
            write_evaluation(path / "evaluation", step, name, result)
    if finished:
        checkpoint = path / "checkpoints" / f"step-{updates:06d}"
        checkpoint.mkdir(parents=True)
        seal(checkpoint)
        (path / "report.html").write_text("")
    return path


Weights = dict[str, dict[str, torch.Tensor]]
"""Tensors by name, by file."""


def same_weights(one: Weights, other: Weights, rounding: float) -> bool:
    """Whether two runs have kept the same files with the same tensors, which may differ by ``rounding``."""
    return one.keys() == other.keys() and all(
        torch.allclose(tensor, other[file][name], rtol=0, atol=rounding)
        for file, tensors in one.items()
        for name, tensor in tensors.items()
    )
