"""AnswerMemory: what the answers to a prompt earned, in this batch and, where that helps, in earlier ones.

Where few games of a batch meet a position, most of its answers were given once or not at all, and what one
game says of an answer is mostly chance. Self-play changes slowly, so games of the last updates still tell
what an answer is worth. Before a batch is added, what is known of each prompt is multiplied by

    min(``DECAY``, most / n)

where n is the number of its remembered answers. So about five batches count where a position is rare, and
where many games meet it the batch decides alone: old games would make the policy follow opponents that no
longer exist. In tables (``benchmarks/magnet_in_tables.py``) a memory of 16 lowers magnet's NashConv by 38% in
Leduc poker and 22% in liar's dice; without a bound it doubles that in Kuhn poker.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DECAY = 0.8
"""The greatest share of what is known of a prompt that the next batch finds."""
FORGOTTEN = 0.01
"""Answers that count for less are dropped."""
KEY_BYTES = 16
"""Length of a key."""
STATE = ("prompts", "steps", "owners", "answers", "tallies")
"""The names of the tensors of :meth:`AnswerMemory.state`."""


class ListedStep(NamedTuple):
    """A step at a prompt with legal answers. ``game`` is its environment's id, or a program's type.

    ``asked`` is the key of the prompt, ``drawn`` that of the answer; ``legal`` is whether this is one of the
    legal ones, and ``chance`` the probability with which it was drawn.
    """

    game: str
    asked: bytes
    drawn: bytes
    advantage: float
    legal: bool
    chance: float


@dataclass
class Tally:
    """The number of steps that gave an answer, and the sums of their advantages and chances."""

    count: float = 0.0
    advantage: float = 0.0
    chance: float = 0.0


@dataclass
class AtPrompt:
    """What is known of a prompt: the number of its steps, and a tally of each legal answer by its key."""

    steps: float = 0.0
    answers: dict[bytes, Tally] = field(default_factory=dict)

    @property
    def count(self) -> float:
        """The number of legal answers."""
        return sum(one.count for one in self.answers.values())

    @property
    def advantage(self) -> float:
        """The sum of their advantages."""
        return sum(one.advantage for one in self.answers.values())

    def add(self, step: ListedStep) -> None:
        """Count a step."""
        self.steps += 1
        if step.legal:
            tally = self.answers.setdefault(step.drawn, Tally())
            tally.count += 1
            tally.advantage += step.advantage
            tally.chance += step.chance

    def fade(self, most: float) -> None:
        """Make room for the next batch."""
        share = min(DECAY, most / self.count) if self.count else 0.0
        self.steps *= share
        for tally in self.answers.values():
            tally.count *= share
            tally.advantage *= share
            tally.chance *= share
        self.answers = {key: one for key, one in self.answers.items() if one.count > FORGOTTEN}


@dataclass
class AnswerMemory:
    """The memory that the module's docstring describes.

    Attributes:
        most: the greatest number of earlier answers to a prompt that count; 0 for the batch alone.
    """

    most: float = 0.0
    _known: dict[bytes, AtPrompt] = field(default_factory=dict)

    def add(self, steps: Iterable[ListedStep]) -> dict[bytes, AtPrompt]:
        """Add a batch; return what is known of each of its prompts, by the prompt's key."""
        for known in self._known.values():
            known.fade(self.most)
        self._known = {asked: known for asked, known in self._known.items() if known.answers}
        met = {}
        for step in steps:
            met[step.asked] = known = self._known.setdefault(step.asked, AtPrompt())
            known.add(step)
        return met

    def state(self) -> dict[str, Tensor]:
        """Return what is known, as tensors by name; nothing if nothing is remembered."""
        if not self.most or not self._known:
            return {}
        known = list(self._known.values())
        owners = [owner for owner, one in enumerate(known) for _ in one.answers]
        tallies = [tally for one in known for tally in one.answers.values()]
        numbers = [[one.count, one.advantage, one.chance] for one in tallies]
        return {
            "prompts": _bytes_tensor(self._known),
            "steps": torch.tensor([one.steps for one in known], dtype=torch.float64),
            "owners": torch.tensor(owners, dtype=torch.int64),
            "answers": _bytes_tensor(key for one in known for key in one.answers),
            "tallies": torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`state`."""
        self._known = {}
        if not state:
            return
        known = [AtPrompt(steps) for steps in state["steps"].tolist()]
        tallies = (Tally(*numbers) for numbers in state["tallies"].tolist())
        for owner, key, tally in zip(state["owners"].tolist(), _keys(state["answers"]), tallies, strict=True):
            known[owner].answers[key] = tally
        self._known = dict(zip(_keys(state["prompts"]), known, strict=True))


def key_of(ids: bytes) -> bytes:
    """Return the key of an answer's token ids: a digest, because prompts may be long and are saved."""
    return hashlib.blake2b(ids, digest_size=KEY_BYTES).digest()


def key_of_prompt(temperature: float, ids: bytes) -> bytes:
    """Return the key of a prompt's token ids at a temperature."""
    return key_of(struct.pack("<d", temperature) + ids)


def _bytes_tensor(keys: Iterable[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES).copy())


def _keys(tensor: Tensor) -> list[bytes]:
    return [row.tobytes() for row in tensor.numpy()]
