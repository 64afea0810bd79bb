"""Reads a run directory for the report. Missing or damaged files are left out and are never fatal."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError
from selfplay.read.conversations import Conversation, load_conversations, read_conversations
from selfplay.read.rollouts import (
    Game,
    add_reward_stages,
    count_lines,
    number_of,
    read_games,
    select_games,
)
from selfplay.record.sinks import read_metrics

MAX_TRANSCRIPT = 8
"""The number of games or conversations shown of an evaluation."""


class Evaluation(msgspec.Struct):
    """One file of ``evaluation/``, of one of three kinds.

    A match (``kind`` "match") counts games. An exact evaluation has ``nash_conv``; ``policy`` gives the
    probabilities of actions by information state and ``observations`` the text that a player reads there.
    A program's measure (``kind`` "measure") has a name, one entry of ``values`` for each item, and their
    mean with its 95% interval; it is a share if the values are successes and failures.
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
    name: str = ""
    count: int = 0
    is_share: bool = False
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    values: list[float] = []
    is_playable: bool = True


class Session(msgspec.Struct):
    """One start of the run: its time (UTC), the versions in use and the kind of machine."""

    started: str = ""
    selfplay: str = ""
    python: str = ""
    torch: str = ""
    system: str = ""
    cpus: int | None = None
    gpus: list[str] = []


@dataclass
class Transcript:
    """The logged games of one evaluation against an opponent or, for a program, its conversations."""

    step: int
    env_id: str = ""
    opponent: str = ""
    games: list[Game] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)


@dataclass
class RunData:
    """Everything that a report is made from. A run has games or, if it trains on a program, conversations."""

    name: str
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    games: list[Game] = field(default_factory=list)
    games_in_log: int = 0
    conversations: list[Conversation] = field(default_factory=list)
    conversations_in_log: int = 0
    sessions: list[Session] = field(default_factory=list)
    transcripts: list[Transcript] = field(default_factory=list)

    @property
    def is_program(self) -> bool:
        """Whether the run trains on a program, by its configuration or, without one, by its metrics."""
        if self.config:
            return "program" in self.config
        return any(name.startswith("program/") for name in self.metric_names())

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return the steps and values of a metric, for the lines in which it is a number."""
        points = [
            (line["step"], line[name])
            for line in self.metrics
            if isinstance(line.get(name), int | float) and isinstance(line.get("step"), int | float)
        ]
        return [step for step, _ in points], [value for _, value in points]

    def metric_names(self) -> list[str]:
        """Return every metric's name, sorted."""
        return sorted({name for line in self.metrics for name in line} - {"step", "wall_time"})

    def seconds(self) -> float:
        """Return the wall-clock time from the first evaluation to the last metrics; 0 without metrics."""
        return seconds_between(self.metrics[0], self.metrics[-1]) if self.metrics else 0.0

    def env_ids(self) -> list[str]:
        """Return every environment that evaluations, games or metrics name, sorted."""
        found = {evaluation.env_id for evaluation in self.evaluations}
        found |= {game.rollout.env_id for game in self.games}
        for name in self.metric_names():
            if match := re.match(r"collection-(.+)/", name):
                found.add(match.group(1))
        return sorted(found - {""})

    def policies(self) -> list[str]:
        """Return the policies of a program with learners of their own, sorted; empty if there is only one."""
        if not self.is_program:
            return []
        parts = [name.split("/") for name in self.metric_names() if name.startswith("learner/")]
        return sorted({"/".join(one[1:-1]) for one in parts if len(one) > 2})

    def roles(self) -> list[str]:
        """Return every role of a program that metrics or conversations name, sorted."""
        found = {
            name.removeprefix("program/reward/")
            for name in self.metric_names()
            if name.startswith("program/reward/")
        }
        read = [one for transcript in self.transcripts for one in transcript.conversations]
        for conversation in [*self.conversations, *read]:
            for rollout in conversation.all_rollouts():
                found |= {step.role_id for step in rollout.steps} | set(rollout.rewards)
                found |= {said.author for said in rollout.transcript}
        return sorted(found - {""})


def seconds_between(first: Mapping[str, Any], last: Mapping[str, Any]) -> float:
    """Return the wall-clock time of a run by its first and its last line of metrics.

    The first line is written at the end of its step, so the seconds that it records are added. Values that
    are not numbers are left out.
    """
    named = (value for name, value in first.items() if name.startswith("time/") and name.endswith("_seconds"))
    ends = [line.get("wall_time") for line in (first, last)]
    before, after = (float(end) if isinstance(end, int | float) else 0.0 for end in ends)
    return after - before + sum(value for value in named if isinstance(value, int | float))


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
    run.sessions = load_sessions(run_dir / "sessions.json")
    run.transcripts = load_transcripts(run_dir / "evaluation", is_program=run.is_program)
    logs = sorted((run_dir / "rollouts").glob("step-*.jsonl"), key=number_of)
    if run.is_program:
        run.conversations, run.conversations_in_log = load_conversations(logs)
        return run
    sizes = [count_lines(path) for path in logs]
    run.games_in_log = sum(sizes)
    run.games = select_games([path for path, size in zip(logs, sizes, strict=True) if size])
    add_reward_stages(run.games, sorted(run_dir.glob("*/batch-*.jsonl.gz")))
    return run


def load_sessions(path: Path) -> list[Session]:
    """Return the starts of a run, oldest first; empty if the file is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Session])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def load_transcripts(directory: Path, *, is_program: bool) -> list[Transcript]:
    """Return the logged games or conversations of the first and the last evaluation, by step."""
    paths = sorted(directory.glob("step-*.jsonl"), key=lambda path: (number_of(path), path.name))
    ends = {number_of(path) for path in (*paths[:1], *paths[-1:])}
    found = []
    for path in paths:
        if number_of(path) not in ends:
            continue
        transcript = Transcript(number_of(path))
        if is_program:
            transcript.conversations = read_conversations(path, MAX_TRANSCRIPT)
        else:
            transcript.games = read_games(path, set(range(MAX_TRANSCRIPT)))
            try:
                match = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Evaluation)
            except (FileNotFoundError, msgspec.DecodeError):
                match = Evaluation(opponent=path.stem)
            transcript.env_id, transcript.opponent = match.env_id, match.opponent
        found.append(transcript)
    return found


def load_evaluations(directory: Path) -> list[Evaluation]:
    """Return the evaluations of a directory by step; files that are not evaluations are skipped."""
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
