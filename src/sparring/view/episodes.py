"""Finds games and conversations, with their sub-episodes, in a rollout log and reads them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparring.core import Rollout, Step
from sparring.core.play import GameSummary, GameTurn, played_steps
from sparring.view.files import converted, decoded, number_of

EPISODES_PER_STEP = 6
"""The number of games or conversations chosen of a step."""
MAX_DEPTH = 8
"""Sub-episodes that are nested deeper than this are counted but not read."""


@dataclass
class LoggedEpisode:
    """A game or conversation of a log, with the sub-episodes that it spawned.

    ``index`` is its line in the file, from 0. ``depth`` is 0 at the top; ``left_out`` counts the sub-episodes
    that are in the log but not among the ``children``, such as those below ``MAX_DEPTH``.
    """

    step: int
    index: int
    rollout: Rollout
    depth: int = 0
    children: list["LoggedEpisode"] = field(default_factory=list)
    left_out: int = 0

    def all_rollouts(self) -> list[Rollout]:
        """Return this rollout and those of all descendants, parents first."""
        return [self.rollout, *(one for child in self.children for one in child.all_rollouts())]


@dataclass
class Outline:
    """Where one top-level episode and its descendants are in a log: line numbers and offsets in bytes."""

    path: Path
    lines: list[tuple[int, int]]
    failed: bool = False


class _Line(msgspec.Struct):
    rollout: Rollout


class _Head(msgspec.Struct):
    """A log line decoded only as far as the outline requires, which is fast enough for a whole log."""

    class _Rollout(msgspec.Struct):
        id: str = ""
        meta: dict[str, Any] = {}

    rollout: _Rollout


class _Moves(msgspec.Struct):
    """A log line of which only the moves are decoded, to search a log for an invalid one."""

    class _Rollout(msgspec.Struct):
        extras: GameSummary

    rollout: _Rollout


def game_of(rollout: Rollout) -> GameSummary | None:
    """Return what a finished game has left; ``None`` for any other episode."""
    return converted(rollout.extras, GameSummary)


def turns_of(rollout: Rollout, game: GameSummary) -> Iterator[tuple[GameTurn, Step | None]]:
    """Yield the moves of a game, each with the model call behind it; scripts have none.

    The moves of a random opening are a script's too, whoever has the seat. Of several answers at one turn,
    the one that was played is there.
    """
    waiting: defaultdict[int, list[Step]] = defaultdict(list)
    for step in reversed(played_steps(rollout)):
        waiting[step.pid].append(step)
    for turn in game["turns"]:
        calls = waiting[turn["pid"]]
        yield turn, calls.pop() if calls and turn["kind"] != "script" else None


def has_invalid_move(game: GameSummary | None) -> bool:
    """Return whether a player made a move that the game rejected."""
    return game is not None and (
        game["invalid_pid"] is not None or any(turn["invalid"] for turn in game["turns"])
    )


def outlines_of(path: Path, start: int = 0) -> list[Outline]:
    """Return the outlines of a log. Children follow their parent; one without a parent is at the top.

    Args:
        path: the log. Damaged lines are skipped.
        start: read only what begins at this offset in bytes or later.
    """
    found: list[Outline] = []
    outline_of: dict[str, Outline] = {}
    for index, offset, line in _lines(path, start):
        head = decoded(line, _Head)
        if head is None:
            continue
        meta = head.rollout.meta
        outline = outline_of.get(str(meta.get("parent_id")))
        if outline is None:
            outline = Outline(path, [])
            found.append(outline)
        outline.lines.append((index, offset))
        outline.failed = outline.failed or bool(meta.get("error"))
        if head.rollout.id:
            outline_of[head.rollout.id] = outline
    return found


def read_outline(outline: Outline) -> list[LoggedEpisode]:
    """Read an outline's episodes; damaged ones are skipped, and their children come to the top."""
    tops: list[LoggedEpisode] = []
    by_id: dict[str, LoggedEpisode] = {}
    with outline.path.open("rb") as file:
        for index, offset in outline.lines:
            file.seek(offset)
            line = decoded(file.readline(), _Line)
            if line is None:
                continue
            rollout = line.rollout
            parent = by_id.get(str(rollout.meta.get("parent_id")))
            if parent is not None and parent.depth == MAX_DEPTH:
                parent.left_out += 1
                by_id[rollout.id] = parent
                continue
            depth = 0 if parent is None else parent.depth + 1
            episode = LoggedEpisode(number_of(outline.path), index, rollout, depth)
            siblings = tops if parent is None else parent.children
            siblings.append(episode)
            if rollout.id:
                by_id[rollout.id] = episode
    return tops


def first_episodes(path: Path, most: int) -> list[LoggedEpisode]:
    """Return the first ``most`` top-level episodes of a log."""
    return [one for outline in outlines_of(path)[:most] for one in read_outline(outline)]


def last_episode(path: Path, tail_bytes: int) -> LoggedEpisode | None:
    """Return the last episode of a log that was played to its end, or else the last failed one.

    Args:
        path: the log.
        tail_bytes: read at most this much of its end.

    Raises:
        OSError: the file cannot be read.
    """
    outlines = outlines_of(path, max(0, path.stat().st_size - tail_bytes))[::-1]
    for outline in sorted(outlines, key=lambda one: one.failed):
        for episode in read_outline(outline):
            return episode
    return None


def select_episodes(logs: list[Path], *, of_program: bool) -> tuple[list[LoggedEpisode], int]:
    """Choose episodes of the first, the middle and the last step, and one of interest if none of them is.

    The one of interest is a game with an invalid move or, in a program's run, an episode that failed.

    Returns:
        the chosen episodes in the order of the log, and the number of top-level episodes in all logs.
    """
    sizes: dict[Path, int] = {}
    failed: list[Outline] = []
    for path in logs:
        outlines = outlines_of(path)
        if outlines:
            sizes[path] = len(outlines)
        failed = failed or [outline for outline in outlines if outline.failed][:1]
    paths = list(sizes)
    chosen: list[Outline] = []
    for place in sorted({0, len(paths) // 2, len(paths) - 1}) if paths else []:
        chosen += _spread(outlines_of(paths[place]))
    if of_program and not any(outline.failed for outline in chosen):
        chosen += failed
    episodes = [one for outline in chosen for one in read_outline(outline)]
    if not of_program and not any(has_invalid_move(game_of(one.rollout)) for one in episodes):
        episodes += _first_invalid(paths)
    return sorted(episodes, key=lambda one: (one.step, one.index)), sum(sizes.values())


def _spread(outlines: list[Outline]) -> list[Outline]:
    places = {place * len(outlines) // EPISODES_PER_STEP for place in range(EPISODES_PER_STEP)}
    return [outlines[place] for place in sorted(places)]


def _first_invalid(logs: list[Path]) -> list[LoggedEpisode]:
    """Return the first game of a run in which a player made an invalid move, if there is one."""
    for path in logs:
        for index, offset, text in _lines(path):
            line = decoded(text, _Moves)
            if line is not None and has_invalid_move(line.rollout.extras):
                return read_outline(Outline(path, [(index, offset)]))
    return []


def _lines(path: Path, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines that begin at ``start`` or later, each with its number and its offset in bytes."""
    with path.open("rb") as file:
        offset = start
        if start > 0:
            file.seek(start - 1)
            offset += len(file.readline()) - 1
        for index, line in enumerate(file):
            yield index, offset, line
            offset += len(line)
