"""The data gate: which proposed questions enter training, apart from what they earn their proposer."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparring.config.programs import GateSettings
from sparring.core import derive_seed
from sparring.programs.similarity import bleu_matrix, grams


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
        near_PP, near_PK = self._similar([one.text for one in proposals], list(known.values()))
        seen, entered = set(known), list[int]()
        verdicts = []
        for place, one in enumerate(proposals):
            verdict = self._of_answers(one)
            if self.settings.novelty is not None:
                nearest = max([0.0, *near_PK[place], *near_PP[place, entered]])
                verdict["novelty"] = one.key not in seen and 1.0 - nearest >= self.settings.novelty
            if all(verdict.values()):
                seen.add(one.key)
                entered.append(place)
            verdicts.append(verdict)
        return verdicts

    def _similar(self, texts: list[str], known: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return BLEU of proposals against each other and against what is known; 0 where it is not asked."""
        if not self.settings.novelty:
            return np.zeros((len(texts), len(texts))), np.zeros((len(texts), len(known)))
        own, others = [grams(text) for text in texts], [grams(text) for text in known]
        return bleu_matrix(own, own), bleu_matrix(own, others)

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
