"""The run's directory, and what is logged in addition."""

from typing import Literal

from pydantic import Field

from selfplay.config.base import FilePath, Line, Name, Settings


class TrackingSettings(Settings):
    """Logs in addition to metrics.jsonl."""

    games_logged: int = Field(default=8, ge=0, le=10_000_000)
    """Number of games of each update that are saved in `rollouts/`, to which failed games are always added,
    and of each match in `evaluation/`."""
    wandb_project: Name | None = None
    """Weights & Biases project; needs the extra `wandb`."""
    tensorboard: bool = False
    """Write TensorBoard files; needs the extra `tensorboard`."""


class RunSettings(Settings):
    """The run's directory, its checkpoints and its runtime."""

    runtime: Literal["local", "ray"] = "local"
    """One process, or a Ray cluster (see `[ray]`)."""
    directory: FilePath = "runs"
    """Directory in which each run gets its own directory; relative to the working directory."""
    save_every: int = Field(default=10, ge=1, le=10_000_000)
    """Number of updates between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=1, le=1_000_000)
    """Number of newest checkpoints to keep; checkpoints of active opponents are kept in addition."""
    keep_best: Line | None = None
    """Figure of the evaluations by which the best adapter is kept in addition, in `best/`: such as `win rate
    against random` or `NashConv`, followed by ` in ENV` where several environments have it, or a program's
    measure by its name. More is better, except for NashConv, loss rates and invalid moves; `smallest NAME`
    asks for the smallest value of a program's measure."""
