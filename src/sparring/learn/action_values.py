"""Action values: what each legal answer to a prompt was worth in a batch.

Let A_1, ..., A_n be the advantages of the steps that gave a legal answer to a prompt, and c the mean over all
such steps of the batch in the same game. The mean of the former, drawn towards c as if by one further step,
m = (A_1 + ... + A_n + c) / (n + 1), is what the position was worth. The value of an answer that was given k
times is the mean advantage above m, drawn towards 0 as if by further steps:

    Q(a) = sum over the steps that gave a of (A_i - m) / (k + ``PRIOR``) / scale

``scale`` is the root mean square of the advantages of all the batch's steps in the same game; it may also be
tracked, as a running mean over about the last hundred batches (``RunningScale``). An answer that nobody gave
has the value 0. Illegal answers play no part in m and c: if their losses lowered these, every legal answer
that was given would look better than those that were not.

So the mean of Q over many batches is too near 0 by the chance that anybody gives the answer,
P(a) = 1 - (1 - p(a))^N, where N is the number of steps at the prompt and p(a) the mean of the probabilities
with which they drew it. ``corrected`` values are divided by this chance,

    Q(a) = sum over the steps that gave a of (A_i - m) / (k P(a) + ``LEAST_CHANCE``) / scale

which keeps the noise bounded, and part of the bias: of a true difference of 1 between two answers with p(a) =
0.5, 0.1 and 0.01, the mean of Q has 0.42, 0.27 and 0.05 where one game meets the prompt, 0.99, 0.93 and 0.63
where twenty do. A loss that is linear in the values averages their noise away; in the exponential of
``magnet`` it would stay.

Prompts count in the loss by the square root of their steps: by their steps, an opening would leave next to
nothing for the hundreds of positions that few games meet; alike, values from one game would count as much as
those from thousands. In tables (``benchmarks/magnet_in_tables.py``), counting by steps ends two to three and
a half times as high in the games of many positions; counting alike ends lower in liar's dice and higher in
goofspiel.

:class:`AnswerMemory` lets earlier steps count in n, k and the sums, because where few games meet a position,
what one game says of an answer is mostly chance. Before a batch is added, what is known of each prompt is
multiplied by min(``DECAY``, most / n), where n is the number of its remembered answers. So about five batches
count where a position is rare, and where many games meet it the batch decides alone.
"""

import hashlib
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.core import SparringError, TrainingRecord
from sparring.core.records import NO_ADVANTAGE
from sparring.core.types import Answer
from sparring.learn.critic import RunningScale
from sparring.learn.histories import KEY_BYTES
from sparring.learn.legal_answers import FloatArray, LegalAnswers
from sparring.learn.tree_values import StateValue
from sparring.learn.trie import bytes_of

DECAY = 0.8
FORGOTTEN = 0.01
"""Answers that count for less are dropped."""
STATE = ("prompts", "steps", "owners", "answers", "tallies")


class ListedStep(NamedTuple):
    """A step at a prompt with legal answers: keys of prompt and answer, and the chance of the draw."""

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
    """What is known of prompts; at most ``most`` earlier answers to each count."""

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


PRIOR = 0.5
"""Number of steps without advantage that are added to those of each answer."""
LEAST_CHANCE = 0.1
"""What is added to k P(a), so that no single step is worth more than ten times its advantage."""


@dataclass
class ActionValues:
    """The values of answers in a batch, by the keys of prompt and answer.

    ``emphasis`` is by how much a prompt's weight in the loss differs from its share of the steps, ``steps``
    their number, and ``scales`` what advantages were divided by.
    """

    values: Mapping[bytes, Mapping[bytes, float]] = field(default_factory=dict)
    emphasis: Mapping[bytes, float] = field(default_factory=dict)
    steps: Mapping[bytes, int] = field(default_factory=dict)
    scales: Mapping[bytes, float] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """The mean over steps of what advantages were divided by; 1 without steps."""
        number = sum(self.steps.values())
        return (
            sum(self.scales[asked] * steps for asked, steps in self.steps.items()) / number if number else 1.0
        )

    @property
    def are_zero(self) -> bool:
        """Whether no answer is worth more than another."""
        return all(abs(value) <= NO_ADVANTAGE for one in self.values.values() for value in one.values())

    @classmethod
    def of(
        cls,
        records: Iterable[TrainingRecord],
        scales: MutableMapping[str, RunningScale] | None = None,
        corrected: bool = False,
        memory: AnswerMemory | None = None,
    ) -> "ActionValues":
        """Return the values in a batch; tracked ``scales``, by game, and the memory take it into account.

        Raises SparringError if an advantage is not finite.
        """
        steps = list(_steps(records))
        if not all(math.isfinite(step.advantage) for step in steps):
            raise SparringError("an advantage of this batch is not finite; look at its rewards")
        of_game = _by_game(steps)
        legal = _by_game(step for step in steps if step.legal)
        centre_of = {game: float(np.mean(legal[game])) if game in legal else 0.0 for game in of_game}
        scale_of = _scales(of_game) if scales is None else _tracked(of_game, scales)
        game_at = {step.asked: step.game for step in steps}
        known = (AnswerMemory() if memory is None else memory).add(steps)
        values = {
            asked: _values_at(at_prompt, centre_of[game_at[asked]], scale_of[game_at[asked]], corrected)
            for asked, at_prompt in known.items()
        }
        steps_at = Counter(step.asked for step in steps)
        scale_at = {asked: scale_of[game_at[asked]] for asked in steps_at}
        return cls(values, _emphasis(steps_at, game_at), steps_at, scale_at)

    def with_tree(self, found: Mapping[bytes, StateValue]) -> "ActionValues":
        """Return these values with a share of those of the tree, as far as it knew the histories before."""
        values = dict(self.values)
        for asked, one in found.items():
            share, own = one.known * one.games / self.steps[asked], self.values[asked]
            values[asked] = {
                answer: share * gain / self.scales[asked] + (1 - share) * own.get(answer, 0.0)
                for answer, gain in one.advantages.items()
            }
        return replace(self, values=values)

    def of_answers(self, legal: LegalAnswers) -> FloatArray:
        """Return value_A, the value of each legal answer."""
        given = zip(legal.temperatures, legal.prompts, legal.answers, strict=True)
        return np.array(
            [
                self.values.get(key_of_prompt(temperature, prompt), {}).get(key_of(bytes_of(ids)), 0.0)
                for temperature, prompt, ids in given
            ]
        )

    def emphasis_of(self, legal: LegalAnswers) -> FloatArray:
        """Return emphasis_A, that of each legal answer's prompt."""
        asked = zip(legal.temperatures, legal.prompts, strict=True)
        return np.array([self.emphasis.get(key_of_prompt(*one), 1.0) for one in asked])


def _values_at(at_prompt: AtPrompt, centre: float, scale: float, corrected: bool) -> dict[bytes, float]:
    middle = (at_prompt.advantage + centre) / (at_prompt.count + 1)
    values = {}
    for key, tally in at_prompt.answers.items():
        count = _count(tally, at_prompt.steps) if corrected else tally.count + PRIOR
        values[key] = (tally.advantage - tally.count * middle) / scale / count
    return values


def _count(tally: Tally, steps: float) -> float:
    """Return k P(a) + ``LEAST_CHANCE`` of an answer, and of the number of all steps at its prompt."""
    chance = min(tally.chance / tally.count, 1.0)
    given: float = 1 - (1 - chance) ** steps
    return tally.count * given + LEAST_CHANCE


def _emphasis(steps_at: Mapping[bytes, int], game_at: Mapping[bytes, str]) -> dict[bytes, float]:
    roots: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for asked, number in steps_at.items():
        roots[game_at[asked]] += number**0.5
        counts[game_at[asked]] += number
    return {
        asked: counts[game_at[asked]] / roots[game_at[asked]] / number**0.5
        for asked, number in steps_at.items()
    }


def _by_game(steps: Iterable[ListedStep]) -> dict[str, list[float]]:
    """Return the advantages of each game's steps."""
    of_game: defaultdict[str, list[float]] = defaultdict(list)
    for step in steps:
        of_game[step.game].append(step.advantage)
    return of_game


def _scales(of_game: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the root mean square of each game's advantages; 1 where they are 0 but for rounding."""
    roots = {game: float(np.sqrt(np.mean([one**2 for one in some]))) for game, some in of_game.items()}
    return {game: root if root > NO_ADVANTAGE else 1.0 for game, root in roots.items()}


def _tracked(
    of_game: Mapping[str, list[float]], scales: MutableMapping[str, RunningScale]
) -> dict[str, float]:
    """Take a batch into account, and return the tracked scale of each game's advantages."""
    for game, some in of_game.items():
        scales.setdefault(game, RunningScale()).add(some, least=NO_ADVANTAGE)
    return {game: scales[game].value for game in of_game}


def _steps(records: Iterable[TrainingRecord]) -> Iterator[ListedStep]:
    for record in records:
        before = b""
        for answer in record.answers:
            before += bytes_of(answer.prompt_token_ids)
            drawn = bytes_of(answer.completion_token_ids)
            if answer.alternatives:
                legal = answer.completion_token_ids in answer.alternatives
                asked = key_of_prompt(record.temperature, before)
                yield ListedStep(
                    game_of(answer), asked, key_of(drawn), answer.advantage, legal, chance_of(answer)
                )
            before += drawn


def chance_of(answer: Answer) -> float:
    """Return the probability with which an answer was drawn, by the policy or as a random legal one."""
    chance = math.exp(math.fsum(answer.logprobs))
    if not answer.alternatives:
        return chance
    explore = _explored_share(answer)
    legal = answer.alternatives.count(answer.completion_token_ids) / len(answer.alternatives)
    return (1 - explore) * chance + explore * legal


def _explored_share(answer: Answer) -> float:
    """Return the share of random answers that a game noted; what a program notes by this name is its own."""
    share = answer.meta.get("explore")
    if isinstance(share, bool) or not isinstance(share, float | int):
        return 0.0
    return float(share) if 0 <= share <= 1 else 0.0


def game_of(answer: Answer) -> str:
    """Return the game or type of episode of an answer."""
    return str(answer.meta.get("env_id", ""))
