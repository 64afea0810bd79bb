"""Reads games from a run's rollout logs, and their rewards at each stage from its batch logs."""

import gzip
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

Prompt = list[dict[str, str]]
"""Messages with their role and content."""
GAMES_PER_STEP = 6
"""The number of games that the report shows of each chosen step."""


class Turn(msgspec.Struct):
    """One move of a game by any player; ``kind`` is "policy" for a trained seat."""

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
    """The fields that a game adds to its rollout; player ids are strings because JSON keys are."""

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
        """Whether a player made a move that the game rejected."""
        return self.extras.invalid_pid is not None or any(turn.invalid for turn in self.extras.turns)


class _Line(msgspec.Struct):
    rollout: LoggedRollout


class _ExtrasLine(msgspec.Struct):
    """A log line of which only the extras are decoded, which is fast enough to search a whole log."""

    class _Rollout(msgspec.Struct):
        extras: Extras = msgspec.field(default_factory=Extras)

    rollout: _Rollout


class _BatchLine(msgspec.Struct):
    """A step of a training batch: its rollout, seat and index, and its reward at each stage."""

    rollout_id: str = ""
    pid: int = 0
    step_index: int = 0
    rewards: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass
class Game:
    """A logged game for the report, with its step and its line in the log."""

    step: int
    index: int
    rollout: LoggedRollout


def add_reward_stages(games: list[Game], batch_logs: list[Path]) -> None:
    """Copy the reward stages from the batch logs into the games' steps, as ``info["reward_stages"]``.

    Batches are numbered from 1, so in a lockstep run the games of a step are in the batch of the same number
    or in a neighbouring one; only those files are read. A step that was never sampled gets no stages.
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
    """Return the lines of a compressed file; empty if it is truncated."""
    try:
        return gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error):
        return []


def select_games(logs: list[Path]) -> list[Game]:
    """Choose games of the first, middle and last step, including one with an invalid move if there is any."""
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
    """Return the games on the given lines (from 0); lines that are not rollouts are skipped."""
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
