"""What a model writes has two parts: its reasoning, and what it says.

Only what is said reaches other players, judges, parsers and games. The reasoning is trained, counted and
shown to its owner. :func:`split` is the only place that tells the two apart.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sparring.core.errors import InputError, shown

Tags = tuple[str, str]
"""The texts that begin and end a thought."""

ReasoningTags = Literal["auto", "none"] | Tags
"""How a role's answers are split: by the tags that models are known to use (``auto``), not at all (``none``),
or by a pair of one's own."""

CHANNEL = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
KNOWN_TAGS: tuple[Tags, ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    CHANNEL,
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("◁think▷", "◁/think▷"),
)
"""The tags of published models; docs/howto-reasoning.md says whose they are."""


def checked_tags(given: object) -> ReasoningTags:
    """Return a setting of a configuration or of a program's own code, whose pair may be a list. Raises
    InputError."""
    if given == "auto" or given == "none":
        return given
    pair = tuple(given) if isinstance(given, list | tuple) else ()
    if len(pair) == 2 and pair[0] != pair[1] and all(isinstance(one, str) and one.strip() for one in pair):
        return pair
    fix = 'Write "auto", "none" or a pair of different tags, such as ("<plan>", "</plan>")'
    raise InputError("reasoning", f"{shown(given)} says nothing of a role's thoughts", fix)


def tags_for(reasoning: ReasoningTags, known: tuple[Tags, ...] = KNOWN_TAGS) -> tuple[Tags, ...]:
    """Return the pairs of tags by which a role's answers are split; ``known`` are those of ``auto``."""
    if reasoning == "auto":
        return known
    return () if reasoning == "none" else (reasoning,)


@dataclass(frozen=True)
class Reasoning:
    """What a model thought before it spoke, without its tags.

    ``ended`` is whether the model ended it: a thought that was cut has nothing said after it. ``tokens`` are
    those of the thought and its tags, ``None`` where the client gives no ids.
    """

    text: str
    ended: bool = True
    tokens: int | None = None


@dataclass(frozen=True)
class Parts:
    """The parts of an answer. ``said_at`` is the place in the whole where the last thought ends, -1 without
    one that ended; ``inside`` are the tags of the thought in which the answer stops, if it does."""

    said: str
    reasoning: Reasoning | None = None
    said_at: int = -1
    inside: Tags | None = None


def split(written: str, tags: Sequence[Tags] = KNOWN_TAGS, *, opened: Tags | None = None) -> Parts:
    """Return the parts of an answer.

    A thought goes from the first of its tags to the second; a first tag inside it is part of it. A second tag
    outside a thought ends one that the prompt began, so that everything before it is reasoning. A thought
    without an end has nothing after it. White space around thoughts is left out.

    Args:
        written: the whole answer.
        tags: the pairs of tags that may appear.
        opened: the pair whose first tag ends the prompt, so that the answer begins inside a thought.
    """
    said: list[str] = []
    thoughts: list[str] = []
    inside, at, said_at = opened, 0, -1
    for found in _pattern(_marks_of(tuple(tags))).finditer(written):
        mark, before = found[0], written[at : found.start()]
        begun = next((pair for pair in tags if pair[0] == mark), None)
        if inside is None and begun is not None:
            inside = begun
            said.append(before.lstrip() if thoughts else before)
        elif inside is None:
            thoughts.append("".join([*said, before]))
            said, said_at = [], found.end()
        elif mark == inside[1]:
            thoughts.append(before)
            inside, said_at = None, found.end()
        else:
            continue
        at = found.end()
    if inside is None and not thoughts:
        return Parts(written)
    if inside is None:
        said.append(written[at:].lstrip())
    else:
        thoughts.append(written[at:])
    text = "\n\n".join(filter(None, map(str.strip, thoughts)))
    return Parts("".join(said), Reasoning(text, inside is None), said_at, inside)


class PartsStream:
    """Tells what is said from reasoning while an answer is written.

    It gives what :func:`split` gives of the whole, but for a thought that the prompt began with a tag which
    is not known: nobody can tell it from what is said before it ends.
    """

    def __init__(self, tags: Sequence[Tags], opened: Tags | None) -> None:
        self._tags = tuple(tags)
        self._inside = opened
        self._held = self._space = ""
        self._begun = opened is None
        self._has_thought = False

    def add(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the texts that are certain, each with whether it is reasoning."""
        self._held += text
        while (found := _pattern(self._wanted()).search(self._held)) is not None:
            yield from self._told(self._held[: found.start()])
            self._held = self._held[found.end() :]
            self._turn(found[0])
        keep = beginning_of(self._wanted(), self._held)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        yield from self._told(ready)

    def finish(self) -> Iterator[tuple[str, bool]]:
        """Yield what was held back."""
        text, self._held = self._held, ""
        yield from self._told(text)

    def _wanted(self) -> tuple[str, ...]:
        if self._inside is not None:
            return (self._inside[1],)
        return _marks_of(self._tags)

    def _turn(self, mark: str) -> None:
        self._space, self._begun = "\n\n" * self._has_thought, False
        if self._inside is None:
            self._inside = next((pair for pair in self._tags if pair[0] == mark), None)
        else:
            self._inside = None

    def _told(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield a text without the white space around thoughts."""
        is_thought = self._inside is not None
        if not self._begun:
            text = text.lstrip()
        if not text:
            return
        self._begun = True
        if is_thought:
            self._has_thought = True
            text = self._space + text
            kept = text.rstrip()
            text, self._space = kept, text[len(kept) :]
        if text:
            yield text, is_thought


def beginning_of(wanted: Sequence[str], text: str) -> int:
    """Return the number of a text's last characters that may begin one of the wanted texts."""
    longest = min(len(text), max((len(one) - 1 for one in wanted), default=0))
    return next((n for n in range(longest, 0, -1) if any(one.startswith(text[-n:]) for one in wanted)), 0)


def opened_by(prompt_end: str, tags: Sequence[Tags] = KNOWN_TAGS) -> Tags | None:
    """Return the pair whose first tag ends a prompt, but for white space."""
    end = prompt_end.rstrip()
    return next((pair for pair in tags if end.endswith(pair[0])), None)


@lru_cache(maxsize=64)
def _marks_of(tags: tuple[Tags, ...]) -> tuple[str, ...]:
    return tuple(sorted({mark for pair in tags for mark in pair}, key=len, reverse=True))


@lru_cache(maxsize=64)
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Match any of the marks, of two at one place the longer; without marks, nothing."""
    return re.compile("|".join(map(re.escape, marks)) or "(?!)")
