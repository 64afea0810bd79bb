"""Reads conversations, with their sub-episodes, from the rollout logs of a program's run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from selfplay.read.rollouts import GAMES_PER_STEP, LoggedStep, number_of

MAX_DEPTH = 8
"""Sub-episodes that are nested deeper than this are counted but not shown."""


class Said(msgspec.Struct):
    """One line of a transcript; an empty ``author`` is the environment, an empty ``to`` is everybody."""

    author: str = ""
    to: str = ""
    text: str = ""


class ProgramRollout(msgspec.Struct):
    """One episode of the rollout log; ``extras`` contains whatever the program writes into it."""

    episode_type: str = ""
    id: str = ""
    artifact: Any = None
    meta: dict[str, Any] = {}
    steps: list[LoggedStep] = []
    extras: dict[str, Any] = {}
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}

    @property
    def error(self) -> str:
        """The reason for the episode's failure; empty if it did not fail."""
        return str(self.meta.get("error") or "")

    @property
    def transcript(self) -> list[Said]:
        """The lines of the conversation in order; empty if the episode is not a chat."""
        try:
            return msgspec.convert(self.extras.get("transcript"), list[Said])
        except msgspec.ValidationError:
            return []


@dataclass
class Conversation:
    """A logged episode for the report, with the sub-episodes that it spawned.

    ``depth`` is 0 at the top; ``too_deep`` counts the sub-episodes below ``MAX_DEPTH``.
    """

    step: int
    rollout: ProgramRollout
    depth: int = 0
    children: list["Conversation"] = field(default_factory=list)
    too_deep: int = 0

    def all_rollouts(self) -> list[ProgramRollout]:
        """Return this rollout and those of all descendants, parents first."""
        return [self.rollout, *(one for child in self.children for one in child.all_rollouts())]


class _Line(msgspec.Struct):
    rollout: ProgramRollout


class _HeadLine(msgspec.Struct):
    """A log line decoded only as far as the tree requires, which is fast enough for a whole log."""

    class _Rollout(msgspec.Struct):
        id: str = ""
        meta: dict[str, Any] = {}

    rollout: _Rollout


@dataclass
class _Tree:
    """The line numbers (from 0) of one top-level episode and of its descendants."""

    path: Path
    lines: list[int]
    failed: bool = False


def load_conversations(logs: list[Path]) -> tuple[list[Conversation], int]:
    """Choose top-level episodes of the first, middle and last step, and a failed one if there is any.

    Returns:
        the chosen episodes in the order of the log, and the number of top-level episodes in the log.
    """
    outlines = [outline for outline in map(_outline, logs) if outline]
    chosen = []
    for index in sorted({0, len(outlines) // 2, len(outlines) - 1}) if outlines else []:
        trees = outlines[index]
        chosen += [trees[place] for place in _spread(len(trees))]
    if not any(tree.failed for tree in chosen):
        chosen += [tree for outline in outlines for tree in outline if tree.failed][:1]
    chosen.sort(key=lambda tree: (number_of(tree.path), tree.lines))
    conversations = [one for tree in chosen for one in _read(tree)]
    return conversations, sum(map(len, outlines))


def read_conversations(path: Path, most: int) -> list[Conversation]:
    """Return the first ``most`` top-level episodes of a log file, with their sub-episodes."""
    return [one for tree in _outline(path)[:most] for one in _read(tree)]


def _spread(total: int) -> list[int]:
    """Return up to ``GAMES_PER_STEP`` evenly spaced indices below ``total``."""
    return sorted({place * total // GAMES_PER_STEP for place in range(GAMES_PER_STEP)}) if total else []


def _outline(path: Path) -> list[_Tree]:
    """Return the trees of a log file. Children follow their parent; one without a parent starts a tree."""
    trees: list[_Tree] = []
    tree_of: dict[str, _Tree] = {}
    with path.open("rb") as file:
        for index, line in enumerate(file):
            try:
                rollout = msgspec.json.decode(line, type=_HeadLine).rollout
            except msgspec.DecodeError:
                continue
            tree = tree_of.get(str(rollout.meta.get("parent_id")))
            if tree is None:
                tree = _Tree(path, [])
                trees.append(tree)
            tree.lines.append(index)
            tree.failed = tree.failed or bool(rollout.meta.get("error"))
            if rollout.id:
                tree_of[rollout.id] = tree
    return trees


def _read(tree: _Tree) -> list[Conversation]:
    """Read the lines of a tree; lines that are not rollouts are skipped, and their children become roots."""
    tops: list[Conversation] = []
    by_id: dict[str, Conversation] = {}
    wanted = set(tree.lines)
    with tree.path.open("rb") as file:
        for index, line in enumerate(file):
            if index not in wanted:
                continue
            try:
                rollout = msgspec.json.decode(line, type=_Line).rollout
            except msgspec.DecodeError:
                continue
            parent = by_id.get(str(rollout.meta.get("parent_id")))
            if parent is not None and parent.depth == MAX_DEPTH:
                parent.too_deep += 1
                by_id[rollout.id] = parent
                continue
            depth = 0 if parent is None else parent.depth + 1
            conversation = Conversation(number_of(tree.path), rollout, depth)
            siblings = tops if parent is None else parent.children
            siblings.append(conversation)
            if rollout.id:
                by_id[rollout.id] = conversation
    return tops
