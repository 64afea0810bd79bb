"""Action values: what each legal answer to a prompt was worth in a batch.

At every prompt with legal answers, the advantages A_1, ..., A_n of the steps that gave answer a are averaged,
and the mean is drawn towards 0, the value of the policy itself, as if ``PRIOR`` further steps had given it:

    Q(a) = (A_1 + ... + A_n) / (n + PRIOR) / scale

``scale`` is the root mean square of all advantages of the batch, so that the values do not depend on whether
a game pays 1 or 13. An answer that nobody gave has the value 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from selfplay.core import TrainingRecord
from selfplay.learning.legal_answers import FloatArray, LegalAnswers
from selfplay.learning.sequences import bytes_of

PRIOR = 0.5
"""Number of steps without advantage that are added to those of each answer."""

Given = tuple[float, bytes, bytes]
"""A temperature, a prompt and an answer to it, as bytes of token ids."""


@dataclass
class ActionValues:
    """The values of answers in a batch; ``scale`` is what advantages were divided by."""

    values: Mapping[Given, float] = field(default_factory=dict)
    scale: float = 1.0

    @classmethod
    def of(cls, records: Iterable[TrainingRecord]) -> "ActionValues":
        """Average the advantages of a whole batch; see the module."""
        advantages: defaultdict[Given, list[float]] = defaultdict(list)
        for given, advantage in _given(records):
            advantages[given].append(advantage)
        every = np.array([value for values in advantages.values() for value in values])
        scale = float(np.sqrt(np.mean(every**2))) if len(every) else 0.0
        scale = scale or 1.0
        means = {given: sum(some) / (len(some) + PRIOR) / scale for given, some in advantages.items()}
        return cls(means, scale)

    def of_answers(self, legal: LegalAnswers) -> FloatArray:
        """Return value_A, the value of each legal answer."""
        given = zip(legal.temperatures, legal.prompts, legal.answers, strict=True)
        return np.array([self.values.get((one, prompt, bytes_of(ids)), 0.0) for one, prompt, ids in given])


def _given(records: Iterable[TrainingRecord]) -> Iterator[tuple[Given, float]]:
    """Yield every answer at a position with legal answers, with its advantage."""
    for record in records:
        before = b""
        for answer in record.answers:
            before += bytes_of(answer.prompt_token_ids)
            drawn = bytes_of(answer.completion_token_ids)
            if answer.alternatives:
                yield (record.temperature, before, drawn), answer.advantage
            before += drawn
