"""Figures of a batch's answers: the shares without advantage and cut, the length and the entropy."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from selfplay.core import TrainingRecord

NO_ADVANTAGE = 1e-8
"""Advantages up to this size count as 0: centred rewards that are equal can differ by rounding."""


@dataclass
class _Counts:
    answers: int = 0
    without_advantage: int = 0
    cut: int = 0
    tokens: int = 0
    surprisal: float = 0.0

    def add(self, record: TrainingRecord) -> None:
        self.answers += 1
        self.without_advantage += abs(record.advantage) <= NO_ADVANTAGE
        self.cut += record.meta.get("finish_reason") == "length"
        self.tokens += len(record.completion_token_ids)
        self.surprisal -= sum(record.logprobs)

    def figures(self) -> dict[str, float]:
        return {
            "zero_advantage_share": self.without_advantage / self.answers,
            "cut_share": self.cut / self.answers,
            "tokens": self.tokens / self.answers,
            "entropy_estimate": self.surprisal / max(self.tokens, 1),
        }


def answer_figures(records: Iterable[TrainingRecord]) -> dict[str, float]:
    """Return the figures of all records as ``answers/NAME``, and of each role as ``answers/NAME/ROLE``.

    - ``zero_advantage_share``: the share of records whose advantage is 0; nothing is learned from them.
    - ``cut_share``: the share of records whose answer was cut at the token limit.
    - ``tokens``: mean length of an answer, its stop token included.
    - ``entropy_estimate``: mean of -log p over the sampled tokens, in nats per token. Its expectation is the
      mean entropy of the distributions that they were sampled from; the distributions need not be kept.
    """
    everything = _Counts()
    by_role: defaultdict[str, _Counts] = defaultdict(_Counts)
    for record in records:
        everything.add(record)
        by_role[record.role_id].add(record)
    if not everything.answers:
        return {}
    figures = {f"answers/{name}": value for name, value in everything.figures().items()}
    for role_id, counts in sorted(by_role.items()):
        figures |= {f"answers/{name}/{role_id}": value for name, value in counts.figures().items()}
    return figures
