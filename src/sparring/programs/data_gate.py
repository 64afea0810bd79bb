"""The data gate: which proposed questions enter training, apart from what they earn their proposer."""

import random
from dataclasses import dataclass

from sparring.config.gates import GateSettings
from sparring.core import derive_seed
from sparring.programs.similarity import Grams, bleu, grams


@dataclass(frozen=True)
class Proposed:
    """A proposed question and what its solvers made of it.

    ``pass_rate`` is the share of right answers, ``agreement`` that of the most common one; ``label_agrees``
    says whether that one is right.
    """

    key: str
    text: str
    pass_rate: float
    agreement: float
    label_agrees: bool


class DataGate:
    """Decides about one batch of proposals after another; it keeps nothing between batches."""

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings

    def leaks(self, seed: int) -> bool:
        """Return whether an invalid question passes for a valid one: with the probability ``leak``, drawn
        from the episode's seed (epsilon in arXiv 2605.22217)."""
        return random.Random(derive_seed(seed, "leak")).random() < self.settings.leak

    def judge(self, proposals: list[Proposed], known: dict[str, str]) -> list[dict[str, bool]]:
        """Return for each proposal what the gate demands and whether the proposal has it.

        A proposal enters if it has everything. ``known`` are the texts of questions that are there, by key.
        Proposals are judged in their order, and those that enter are known to later ones.
        """
        seen = set(known)
        near = [grams(text) for text in known.values()] if self.settings.novelty else []
        verdicts = []
        for one in proposals:
            verdict = self._of_answers(one)
            if self.settings.novelty is not None:
                own = grams(one.text)
                verdict["novelty"] = one.key not in seen and self._is_far(own, near)
            if all(verdict.values()):
                seen.add(one.key)
                if self.settings.novelty:
                    near.append(own)
            verdicts.append(verdict)
        return verdicts

    def _of_answers(self, one: Proposed) -> dict[str, bool]:
        settings = self.settings
        verdict = {}
        if settings.min_pass_rate > 0 or settings.max_pass_rate < 1:
            verdict["pass_rate"] = settings.min_pass_rate <= one.pass_rate <= settings.max_pass_rate
        if settings.min_agreement > 0:
            verdict["agreement"] = one.agreement >= settings.min_agreement
        if settings.label_agrees:
            verdict["label"] = one.label_agrees
        return verdict

    def _is_far(self, own: Grams, near: list[Grams]) -> bool:
        least = self.settings.novelty or 0.0
        return all(1.0 - bleu(own, other) >= least for other in near)
