"""Ladders whose cells are played at once, with figures and weights of choice."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from run_files import nash
from sparring.config.loading import dump_config, load_config
from sparring.core.adapters import ADAPTER_FILE
from sparring.core.manifest import seal
from sparring.evaluation import write_evaluation

FILE = """
seeds = [0, 1]

[base]
config = "kuhn"
collection.games_per_step = 10
learning.steps = 4
evaluation.every = 2
evaluation.opponents = []

[games.kuhn]

[recipes.magnet]
recipe = "magnet"

[recipes.neurd]
recipe = "neurd"
learning.algorithm.alpha = 0.5
"""

Curve = Mapping[int, float]
"""NashConv by update."""


def write_ladder(directory: Path, text: str = FILE) -> Path:
    """Write a ladder's file."""
    path = directory / "ladder.toml"
    path.write_text(text)
    return path


def played_at_once(
    curve: Callable[[str, int], Curve], played: list[list[str]] | None = None
) -> Callable[[Sequence[str], Sequence[int]], str]:
    """What plays a cell: its run has the ``curve`` of its name and seed, and its name as its weights.

    An update takes three seconds of playing and as many of learning. Commands are added to ``played``.
    """

    def play(words: Sequence[str], inherited: Sequence[int]) -> str:
        if played is not None:
            played.append(list(words))
        given = dict(zip(words[3::2], words[4::2], strict=False))
        fields = dict(one.removeprefix("--").split("=", 1) for one in words if "=" in one)
        config = load_config(words[2], fields | {"seed": given["--seed"]}, given.get("--recipe"))
        path = Path(fields["run.directory"]) / given["--name"]
        points = curve(given["--name"].rpartition(".seed-")[0], int(given["--seed"]))
        path.mkdir(parents=True)
        (path / "config.toml").write_text(dump_config(config))
        games, env_id = config.collection.games_per_step, config.envs[0].id
        lines = [
            {
                "step": step,
                "accounts/finished": step * games,
                "time/play_seconds": 3.0,
                "time/learn_seconds": 3.0,
            }
            for step in range(1, max(points) + 1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for update, value in points.items():
            write_evaluation(path / "evaluation", update, "nash-conv", nash(value, env_id=env_id))
        checkpoint = path / "checkpoints" / f"step-{max(points):06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / ADAPTER_FILE).write_bytes(given["--name"].encode())
        seal(checkpoint)
        (path / "report.html").write_text("")
        return ""

    return play
