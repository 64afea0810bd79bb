"""Action values: what each legal answer to a prompt was worth in a batch.

Let A_1, ..., A_n be the advantages of the steps that gave a legal answer to a prompt, and c the mean over all
such steps of the batch in the same game. The mean of the former, drawn towards c as if by one further step,
m = (A_1 + ... + A_n + c) / (n + 1), is what the position was worth whatever legal answer was given. The value
of an answer that was given k times is the mean advantage above m, drawn towards 0 as if by further steps:

    Q(a) = sum over the steps that gave a of (A_i - m) / (k + ``PRIOR``) / scale

``scale`` is the root mean square of the advantages of all the batch's steps in the same game, so the values
do not depend on whether a game pays 1 or 13. An answer that nobody gave has the value 0. Where many games
meet a prompt, Q is centred there, whatever baseline the advantages have; where one game does, a third of what
lies above c remains, without which nothing could be learned from it. Illegal answers have no value, and play
no part in m and c: if their losses lowered these, every legal answer that happened to be given would look
better than those that were not.

The steps at a prompt are those of the batch and of an ``AnswerMemory``, which counts earlier ones for less:
n, k and the sums are over both. Everything else is the batch's alone.

A scale may also be tracked: a running mean over about the last hundred batches (see ``gae``). A
batch in which games happen to end alike then does not make more of its small gains than others make of great
ones, and where games become alike for good, the values are smaller for that long.

Because an answer that nobody gave has the value 0, the mean of Q over many batches is too near 0 by the
chance that anybody gives it, P(a) = 1 - (1 - p(a))^N, where N is the number of steps at the prompt and p(a)
the mean of the probabilities with which its steps drew it. Where few games meet a position, rare answers
would hardly move. Values that are ``corrected`` are divided by this chance,

    Q(a) = sum over the steps that gave a of (A_i - m) / (k P(a) + ``LEAST_CHANCE``) / scale

as a single step's are by p(a) in importance sampling; where many games meet a prompt, P(a) is about 1 and
nothing changes. What keeps the noise bounded also keeps part of the bias: m contains the step's own
advantage, so that one step alone counts half, and ``LEAST_CHANCE`` is much where k P(a) is little. Of a true
difference of 1 between two answers with p(a) = 0.5, 0.1 and 0.01, the mean of Q has 0.42, 0.27 and 0.05 where
one game meets the prompt, 0.99, 0.93 and 0.63 where twenty do. A loss that is linear in the values averages
their noise away. In ``magnet``, whose target is an exponential of them, it would not cancel.

Prompts count in the loss by the square root of their steps. If they counted by their steps, as in a mean over
the batch, an opening that every game meets would leave next to nothing for the hundreds of positions that few
games meet, and a policy is exploited where it is weakest. If all counted alike, values from a game or two
would count as much as those from thousands. A game's prompts together count by its share of the batch's
steps. In tables (``benchmarks/magnet_in_tables.py``), counting by steps ends two to three and a half times as
high in the games of many positions; counting alike ends lower in liar's dice and higher in goofspiel.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

import numpy as np

from sparring.core import SparringError, TrainingRecord
from sparring.core.records import NO_ADVANTAGE
from sparring.core.types import Answer
from sparring.learn.answer_memory import AnswerMemory, AtPrompt, ListedStep, Tally, key_of, key_of_prompt
from sparring.learn.gae import RunningScale
from sparring.learn.legal_answers import FloatArray, LegalAnswers
from sparring.learn.trie import bytes_of

PRIOR = 0.5
"""Number of steps without advantage that are added to those of each answer."""
LEAST_CHANCE = 0.1
"""What is added to k P(a), so that no single step is worth more than ten times its advantage."""


@dataclass
class ActionValues:
    """The values of answers in a batch, by the keys of prompt and answer (see ``answer_memory``).

    ``emphasis`` is by how much a prompt's weight in the loss differs from its share of the steps.
    ``scale`` is what advantages were divided by: the mean over games, weighted by their steps.
    """

    values: Mapping[bytes, Mapping[bytes, float]] = field(default_factory=dict)
    emphasis: Mapping[bytes, float] = field(default_factory=dict)
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        records: Iterable[TrainingRecord],
        scales: MutableMapping[str, RunningScale] | None = None,
        corrected: bool = False,
        memory: AnswerMemory | None = None,
    ) -> "ActionValues":
        """Average the advantages of a whole batch; see the module.

        ``scales`` are the tracked ones, by game, and take this batch into account; without them, the scales
        are the batch's own. ``memory`` takes the batch into account too; without it, the batch counts alone.

        Raises:
            SparringError: an advantage is not finite.
        """
        steps = list(_steps(records))
        if not all(math.isfinite(step.advantage) for step in steps):
            raise SparringError("an advantage of this batch is not finite; look at its rewards")
        centre_of = _centres(steps)
        scale_of = _scales(steps) if scales is None else _tracked(steps, scales)
        game_of = {step.asked: step.game for step in steps}
        known = (AnswerMemory() if memory is None else memory).add(steps)
        values = {
            asked: _values_at(at_prompt, centre_of[game_of[asked]], scale_of[game_of[asked]], corrected)
            for asked, at_prompt in known.items()
        }
        scale = float(np.mean([scale_of[step.game] for step in steps])) if steps else 1.0
        return cls(values, _emphasis(steps, game_of), scale)

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
    """Return the value of each answer to a prompt that was given, by its key."""
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


def _emphasis(steps: list[ListedStep], game_of: Mapping[bytes, str]) -> dict[bytes, float]:
    """Return, for each prompt, c / sqrt(number of its steps). Their mean over the steps of a game is 1."""
    roots: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    steps_at = Counter(step.asked for step in steps)
    for asked, number in steps_at.items():
        roots[game_of[asked]] += number**0.5
        counts[game_of[asked]] += number
    return {
        asked: counts[game_of[asked]] / roots[game_of[asked]] / number**0.5
        for asked, number in steps_at.items()
    }


def _centres(steps: list[ListedStep]) -> dict[str, float]:
    """Return the mean of the advantages of each game's legal answers; 0 if it has none."""
    of_game: defaultdict[str, list[float]] = defaultdict(list)
    for step in steps:
        of_game[step.game] += [step.advantage] if step.legal else []
    return {game: float(np.mean(some)) if some else 0.0 for game, some in of_game.items()}


def _scales(steps: list[ListedStep]) -> dict[str, float]:
    """Return the root mean square of each game's advantages; 1 where they are 0 but for rounding."""
    roots = {
        game: float(np.sqrt(np.mean([one**2 for one in some]))) for game, some in _advantages(steps).items()
    }
    return {game: root if root > NO_ADVANTAGE else 1.0 for game, root in roots.items()}


def _tracked(steps: list[ListedStep], scales: MutableMapping[str, RunningScale]) -> dict[str, float]:
    """Take a batch's steps into account, and return the tracked scale of each game's advantages."""
    of_game = _advantages(steps)
    for game, some in of_game.items():
        scales.setdefault(game, RunningScale()).add(some, least=NO_ADVANTAGE)
    return {game: scales[game].value for game in of_game}


def _advantages(steps: list[ListedStep]) -> dict[str, list[float]]:
    """Return the advantages of each game's steps."""
    of_game: defaultdict[str, list[float]] = defaultdict(list)
    for step in steps:
        of_game[step.game].append(step.advantage)
    return of_game


def _steps(records: Iterable[TrainingRecord]) -> Iterator[ListedStep]:
    """Yield every step at a position with legal answers."""
    for record in records:
        before = b""
        for answer in record.answers:
            before += bytes_of(answer.prompt_token_ids)
            drawn = bytes_of(answer.completion_token_ids)
            if answer.alternatives:
                legal = answer.completion_token_ids in answer.alternatives
                chance = math.exp(math.fsum(answer.logprobs))
                game = _game_of(answer)
                asked = key_of_prompt(record.temperature, before)
                yield ListedStep(game, asked, key_of(drawn), answer.advantage, legal, chance)
            before += drawn


def _game_of(answer: Answer) -> str:
    return str(answer.meta.get("env_id", ""))
