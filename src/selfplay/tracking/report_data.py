"""Reads a run directory for the report. What is missing or damaged is left out, never fatal."""

import gzip
import re
import tomllib
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError
from selfplay.tracking.sinks import read_metrics

GAMES_PER_STEP = 6
"""How many games the report shows of each step it looks into."""


class Evaluation(msgspec.Struct):
    """One file of ``evaluation/``: a match (``kind`` "match") or an exact measure, which has ``nash_conv``.

    ``policy`` gives probabilities of actions by information state; ``observations`` the text read there.
    """

    step: int = -1
    env_id: str = ""
    kind: str = ""
    opponent: str = ""
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    invalid: dict[str, int] = {}
    nash_conv: float | None = None
    legal_mass: float | None = None
    policy: dict[str, dict[str, float]] = {}
    observations: dict[str, str] = {}


class Turn(msgspec.Struct):
    """One move of a game, by whichever player; ``kind`` is "policy" for a trained seat."""

    pid: int = 0
    kind: str = ""
    model: str = ""
    observation: str | None = None
    text: str | None = None
    action: str | None = None
    well_formed: bool | None = None
    invalid: bool = False


class LoggedStep(msgspec.Struct):
    """One model call of a trained seat."""

    role_id: str = ""
    prompt: list[dict[str, str]] = []
    completion: list[dict[str, str]] = []
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    completion_logprobs: list[float] | None = None
    reward: float = 0.0
    advantage: float = 0.0
    info: dict[str, Any] = {}
    pid: int = 0
    env_id: str = ""
    policy_version: int = 0


class Extras(msgspec.Struct):
    """What a game adds to its rollout; player ids are text because JSON keys are."""

    turns: list[Turn] = []
    final_rewards: dict[str, float] = {}
    num_turns: int | None = None
    invalid_pid: int | None = None
    truncated: bool = False


class LoggedRollout(msgspec.Struct):
    """One game of the rollout log."""

    episode_type: str = ""
    id: str = ""
    artifact: Any = None
    meta: dict[str, Any] = {}
    steps: list[LoggedStep] = []
    extras: Extras = msgspec.field(default_factory=Extras)
    rewards: dict[str, float] = {}

    @property
    def env_id(self) -> str:
        """The environment of the play specification or of the steps, or else the episode type."""
        if isinstance(self.artifact, dict) and self.artifact.get("env_id"):
            return str(self.artifact["env_id"])
        return next((step.env_id for step in self.steps if step.env_id), self.episode_type)

    @property
    def has_invalid_move(self) -> bool:
        """Whether a player made a move that the game refused."""
        return self.extras.invalid_pid is not None or any(turn.invalid for turn in self.extras.turns)


class _Line(msgspec.Struct):
    rollout: LoggedRollout


class _ExtrasLine(msgspec.Struct):
    """A line of which only the extras are read, which is fast enough to search a whole log."""

    class _Rollout(msgspec.Struct):
        extras: Extras = msgspec.field(default_factory=Extras)

    rollout: _Rollout


class _BatchLine(msgspec.Struct):
    """A step of a training batch: which one it is, and its reward at each stage."""

    rollout_id: str = ""
    pid: int = 0
    step_index: int = 0
    rewards: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass
class Game:
    """A logged game that the report shows, and the step and line it came from."""

    step: int
    index: int
    rollout: LoggedRollout


@dataclass
class RunData:
    """Everything a report is made from."""

    name: str
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    games_in_log: int = 0

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return the steps and values of a metric where it is a number."""
        points = [
            (line["step"], line[name])
            for line in self.metrics
            if isinstance(line.get(name), int | float) and isinstance(line.get("step"), int | float)
        ]
        return [step for step, _ in points], [value for _, value in points]

    def metric_names(self) -> list[str]:
        """Return every metric's name, sorted."""
        return sorted({name for line in self.metrics for name in line} - {"step", "wall_time"})

    def env_ids(self) -> list[str]:
        """Return every environment that evaluations, games or metrics name, sorted."""
        found = {evaluation.env_id for evaluation in self.evaluations}
        found |= {game.rollout.env_id for game in self.games}
        for name in self.metric_names():
            if match := re.match(r"collection-(.+)/", name):
                found.add(match.group(1))
        return sorted(found - {""})


def load_run(run_dir: Path) -> RunData:
    """Read a run directory.

    Raises:
        InputError: it is not a directory, or its metrics are damaged before their last line.
    """
    if not run_dir.is_dir():
        raise InputError(str(run_dir), "is not a run directory", "Name a directory under runs/.")
    run = RunData(name=run_dir.resolve().name)
    config_path = run_dir / "config.toml"
    if config_path.exists():
        run.config_text = config_path.read_text(encoding="utf-8", errors="replace")
        try:
            run.config = tomllib.loads(run.config_text)
        except tomllib.TOMLDecodeError:
            run.config = {}
    run.metrics = read_metrics(run_dir / "metrics.jsonl")
    run.evaluations = load_evaluations(run_dir / "evaluation")
    logs = sorted((run_dir / "rollouts").glob("step-*.jsonl"), key=number_of)
    sizes = [count_lines(path) for path in logs]
    run.games_in_log = sum(sizes)
    run.games = select_games([path for path, size in zip(logs, sizes, strict=True) if size])
    add_reward_stages(run.games, sorted(run_dir.glob("*/batch-*.jsonl.gz")))
    return run


def load_evaluations(directory: Path) -> list[Evaluation]:
    """Return the evaluations of a directory by step; files that are no evaluation are passed over."""
    evaluations = []
    for path in sorted(directory.glob("*.json")):
        try:
            evaluation = msgspec.json.decode(path.read_bytes(), type=Evaluation)
        except msgspec.DecodeError:
            continue
        if evaluation.step < 0:
            evaluation.step = number_of(path)
        evaluations.append(evaluation)
    return sorted(evaluations, key=lambda evaluation: evaluation.step)


def add_reward_stages(games: list[Game], batch_logs: list[Path]) -> None:
    """Write the reward stages that batch logs recorded into the games' steps, as ``info["reward_stages"]``.

    Batches count from 1, so in a lockstep run the games of a step are in the batch of the same number, or
    of the one beside it; only those files are read. A step that was never drawn keeps no stages.
    """
    near = {game.step + distance for game in games for distance in (-1, 0, 1)}
    stages = {}
    for path in batch_logs:
        if number_of(path) in near:
            for line in _unzipped_lines(path):
                try:
                    entry = msgspec.json.decode(line, type=_BatchLine)
                except msgspec.DecodeError:
                    continue
                stages[(entry.rollout_id, entry.pid, entry.step_index)] = entry.rewards
    for game in games:
        taken: defaultdict[int, int] = defaultdict(int)
        for step in game.rollout.steps:
            key = (game.rollout.id, step.pid, taken[step.pid])
            taken[step.pid] += 1
            if key in stages:
                step.info["reward_stages"] = stages[key]


def _unzipped_lines(path: Path) -> list[bytes]:
    """The lines of a compressed file; none if it was cut off."""
    try:
        return gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error):
        return []


def select_games(logs: list[Path]) -> list[Game]:
    """Choose games of the first, middle and last step, and one with an invalid move if there is any."""
    chosen = sorted({0, len(logs) // 2, len(logs) - 1}) if logs else []
    games = [game for index in chosen for game in spread_games(logs[index], GAMES_PER_STEP)]
    if not any(game.rollout.has_invalid_move for game in games):
        games += first_invalid_game(logs)
    return sorted(games, key=lambda game: (game.step, game.index))


def spread_games(path: Path, count: int) -> list[Game]:
    """Return up to ``count`` games of a log, evenly spaced."""
    total = count_lines(path)
    wanted = {position * total // count for position in range(count)}
    return read_games(path, wanted)


def read_games(path: Path, wanted: set[int]) -> list[Game]:
    """Return the games on the given lines (from 0); lines that are no rollout are passed over."""
    games = []
    with path.open("rb") as file:
        for index, line in enumerate(file):
            if index not in wanted:
                continue
            try:
                games.append(Game(number_of(path), index, msgspec.json.decode(line, type=_Line).rollout))
            except msgspec.DecodeError:
                continue
    return games


def first_invalid_game(logs: list[Path]) -> list[Game]:
    """Return the first game of a run in which a player made an invalid move, if there is one."""
    for path in logs:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                try:
                    extras = msgspec.json.decode(line, type=_ExtrasLine).rollout.extras
                except msgspec.DecodeError:
                    continue
                if extras.invalid_pid is not None or any(turn.invalid for turn in extras.turns):
                    return read_games(path, {index})
    return []


def count_lines(path: Path) -> int:
    """Count the complete lines of a file."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def number_of(path: Path) -> int:
    """Return the number in a file name such as ``step-000020-random.json``; 0 without one."""
    match = re.match(r"[a-z]+-(\d+)", path.name)
    return int(match.group(1)) if match else 0
