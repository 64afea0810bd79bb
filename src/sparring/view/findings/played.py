"""PlayedGames: what recent updates played and what it earned, read back from a run's rollouts and batches."""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from sparring.collection.start_log import last_session
from sparring.core.text import counted
from sparring.view.files import decoded, number_of, read_json

RECENT = 10
"""At most this many of the newest updates say how a run is now: enough that one bad update is no finding, and
few enough that they are alike."""
MOST_LOGS = 200
"""At most this many files are searched for questions, spread over the run."""
HUGE = 1e100
QUESTIONS = ("claim", "question", "topic", "prompt", "problem", "task")
"""The keys under which an artifact may have what is asked."""


@dataclass(frozen=True)
class GameOutcome:
    """What an episode of training paid those who played it, all of whom learn; ``metrics`` are the values of
    its reward functions, as ``FUNCTION/ROLE``. ``invalid`` is who ended a game by an invalid move; empty if
    nobody did."""

    where: str
    rewards: Mapping[str, float]
    metrics: Mapping[str, float]
    invalid: str


@dataclass(frozen=True)
class Earned:
    """What an answer of a batch earned by the game, before and after the step transforms."""

    game: float
    step: float


@dataclass(frozen=True)
class PlayedGames:
    """What recent updates played.

    Attributes:
        outcomes: the logged episodes.
        earned: the answers of the recent batches, by game and seat.
        trained_on: the logged questions whose answers were trained on, in the whole run.
        asked: the logged questions of each evaluation of a program and of each task.
        failure: why the run had to stop; empty if it did not.
        store: what the run's store lacks; empty if it lacks nothing.
        damaged: the files, or lines of them, that could not be read.
    """

    outcomes: list[GameOutcome] = field(default_factory=list)
    earned: dict[str, list[Earned]] = field(default_factory=dict)
    trained_on: frozenset[str] = frozenset()
    asked: dict[str, frozenset[str]] = field(default_factory=dict)
    failure: str = ""
    store: str = ""
    damaged: list[str] = field(default_factory=list)


class _Step(msgspec.Struct):
    policy: str = ""


class _Extras(msgspec.Struct, frozen=True):
    invalid_pid: int | None = None


class _Rollout(msgspec.Struct):
    """The part of a logged rollout that is read."""

    episode_type: str = ""
    artifact: Any = None
    meta: dict[str, Any] = {}
    id: str = ""
    steps: list[_Step] = []
    extras: _Extras = _Extras()
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}


class _Line(msgspec.Struct):
    rollout: _Rollout


class _Asked(msgspec.Struct):
    task: str


class _Batch(msgspec.Struct):
    """The part of a batch's line that is read."""

    pid: int
    env_id: str
    rewards: dict[str, float]


def read_played(run_dir: Path) -> PlayedGames:
    """Read what the newest updates of a run played; damaged lines are left out and named.

    Raises:
        OSError: a file exists but cannot be read.
    """
    damaged: list[str] = []
    logs = _newest_last(run_dir.glob("rollouts/step-*.jsonl"))
    recent = [one for path in logs[-RECENT:] for one in _rollouts(path, damaged)]
    batches = _newest_last(run_dir.glob("batches/batch-*.jsonl.gz"))
    earned: dict[str, list[Earned]] = {}
    for path in batches[-RECENT:]:
        for line in _answers(path, damaged):
            if {"final_transformed", "step"} <= _sized(line.rewards).keys():
                found = Earned(line.rewards["final_transformed"], line.rewards["step"])
                earned.setdefault(f"{line.env_id}, seat {line.pid}", []).append(found)
    asked = {
        name: frozenset(filter(None, (question_of(one.artifact) for one in _rollouts(path, damaged))))
        for name, path in _asked(run_dir)
    }
    older = logs[: -RECENT : max(1, len(logs) // MOST_LOGS)] if any(asked.values()) else []
    learned = [*recent, *(one for path in older for one in _rollouts(path, damaged))]
    questions = (question_of(one.artifact) for one in learned if any(step.policy for step in one.steps))
    session = last_session(run_dir)
    return PlayedGames(
        outcomes=[
            GameOutcome(
                _where(one),
                _sized(one.rewards),
                _sized(one.metrics),
                _who(one.rewards, one.extras.invalid_pid),
            )
            for one in recent
            if _is_of_learners(one)
        ],
        earned=earned,
        trained_on=frozenset(filter(None, questions)),
        asked=asked,
        failure=session.failure or "",
        store=session.store or "",
        damaged=damaged,
    )


def question_of(artifact: Any) -> str:
    """Return what an artifact asks, without case and line breaks; empty if it is no text."""
    if isinstance(artifact, Mapping):
        artifact = next((artifact[key] for key in QUESTIONS if isinstance(artifact.get(key), str)), None)
    return " ".join(artifact.split()).casefold() if isinstance(artifact, str) else ""


def _newest_last(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=number_of)


def _rollouts(path: Path, damaged: list[str]) -> Iterator[_Rollout]:
    lines = path.read_bytes().splitlines()
    read = [one.rollout for line in lines if (one := decoded(line, _Line)) is not None]
    if len(read) < len(lines):
        damaged.append(f"{path.parent.name}/{path.name} ({counted(len(lines) - len(read), 'line')})")
    return iter(read)


def _answers(path: Path, damaged: list[str]) -> list[_Batch]:
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        lines = [b""]
    read = [one for line in lines if (one := decoded(line, _Batch)) is not None]
    if len(read) < len(lines):
        damaged.append(f"{path.parent.name}/{path.name}")
    return read


def _asked(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield the last log of a program's evaluation and of each task, with a name."""
    conversations = _newest_last(run_dir.glob("evaluation/step-*-conversations.jsonl"))
    if conversations:
        yield "the evaluation", conversations[-1]
    tasks = {}
    for path in _newest_last(run_dir.glob("tasks/step-*.jsonl")):
        about = read_json(path.with_suffix(".json"), _Asked)
        tasks[path.stem.split("-", 2)[-1] if about is None else about.task] = path
    for name, path in sorted(tasks.items()):
        yield f"the task {name}", path


def _sized(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values but for those of a foreign file whose squares are no numbers."""
    return {name: value for name, value in values.items() if abs(value) < HUGE}


def _where(one: _Rollout) -> str:
    env_id = one.artifact.get("env_id") if isinstance(one.artifact, dict) else None
    return str(env_id or one.episode_type)


def _who(rewards: Mapping[str, float], seat: int | None) -> str:
    """Return who plays a seat: rewards are logged by seat."""
    return "" if seat is None else next(islice(rewards, max(seat, 0), None), "unknown")


def _is_of_learners(one: _Rollout) -> bool:
    """Whether an episode ended, and everybody who acted in it learns from it."""
    agents = one.artifact.get("agents", []) if isinstance(one.artifact, dict) else []
    kinds = {agent.get("kind") for agent in agents if isinstance(agent, dict)}
    own = bool(one.steps) and all(step.policy for step in one.steps) and kinds <= {"policy"}
    return own and not one.meta.get("error")
