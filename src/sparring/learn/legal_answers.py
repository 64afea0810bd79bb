"""The legal answers to a batch's prompts, over which the policy is regularised.

At every distinct prompt p with legal answers, the regulariser is the cross-entropy from a reference rho to
the policy over whole answers, - sum_a rho(a|p) log pi(a|p), weighted by the share of answers to that prompt.
Its gradient with respect to a logit is pi - rho, which does not vanish near a pure policy, unlike that of an
entropy bonus (regularised Nash dynamics, arXiv 2002.08456; magnetic mirror descent, arXiv 2206.05825).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparring.learn.trie import TreePlan

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Position(NamedTuple):
    """A prompt that was answered: its ids as bytes, the legal answers, and the temperature of sampling."""

    prompt: bytes
    alternatives: list[list[int]]
    temperature: float


@dataclass
class LegalAnswers:
    """A answers to P distinct prompts. In plans, they are the samples after the answers that were drawn.

    ``visits_P`` is the share of the batch's answers to each prompt. A prompt that was answered at two
    temperatures counts as two.
    """

    prompts: list[bytes]
    answers: list[list[int]]
    temperatures: list[float]
    prompt_of_A: IntArray
    visits_P: FloatArray

    @classmethod
    def collect(cls, positions: list["Position"]) -> "LegalAnswers":
        """Collect the alternatives of all positions; each distinct prompt counts once."""
        index_of: dict[tuple[float, bytes], int] = {}
        prompts, answers, temperatures, prompt_of, visits = [], [], [], [], []
        for position in positions:
            if not position.alternatives:
                continue
            key = (position.temperature, position.prompt)
            if key not in index_of:
                index_of[key] = len(index_of)
                visits.append(0.0)
                prompts += [position.prompt] * len(position.alternatives)
                answers += position.alternatives
                temperatures += [position.temperature] * len(position.alternatives)
                prompt_of += [index_of[key]] * len(position.alternatives)
            visits[index_of[key]] += 1 / len(positions)
        return cls(prompts, answers, temperatures, np.array(prompt_of, dtype=np.int64), np.array(visits))

    def __len__(self) -> int:
        return len(self.answers)

    def sums(self, plans: list[TreePlan], logprobs: list[FloatArray], first_sample: int) -> FloatArray:
        """Return logprob_A, the log-probability of each whole answer, from the plans' logprobs_C."""
        logprob_A = np.zeros(len(self))
        for plan, logprobs_C in zip(plans, logprobs, strict=True):
            theirs = plan.sample_S >= first_sample
            index = plan.sample_S[theirs] - first_sample
            np.add.at(logprob_A, index, logprobs_C[plan.prediction_S[theirs]])
        return logprob_A

    def divided(self, plans: list[TreePlan], first_sample: int) -> BoolArray:
        """Return divided_A, whether the answers to each answer's prompt are in several plans."""
        plan_A = np.zeros(len(self), dtype=np.int64)
        for number, plan in enumerate(plans):
            plan_A[plan.sample_S[plan.sample_S >= first_sample] - first_sample] = number
        one_P = np.zeros(len(self.visits_P), dtype=np.int64)
        one_P[self.prompt_of_A] = plan_A
        divided_P = np.bincount(self.prompt_of_A, one_P[self.prompt_of_A] != plan_A) > 0
        divided_A: BoolArray = divided_P[self.prompt_of_A]
        return divided_A

    def uniform_reference(self) -> FloatArray:
        """Return rho_A with the same probability for every legal answer to a prompt."""
        reference_A: FloatArray = (1 / np.bincount(self.prompt_of_A))[self.prompt_of_A]
        return reference_A

    def normalised(self, logprob_A: FloatArray) -> FloatArray:
        """Return the probability of each answer among the legal answers to its prompt."""
        largest_P = np.full(len(self.visits_P), -np.inf)
        np.maximum.at(largest_P, self.prompt_of_A, logprob_A)
        probability_A = np.exp(logprob_A - largest_P[self.prompt_of_A])
        share_A: FloatArray = probability_A / np.bincount(self.prompt_of_A, probability_A)[self.prompt_of_A]
        return share_A

    def completed(self, logprob_A: FloatArray) -> FloatArray:
        """Return completed_A, probabilities with that of illegal answers divided among the legal ones."""
        mass_A = np.minimum(self.totals(np.exp(logprob_A)), 1.0)
        probability_A: FloatArray = mass_A * self.normalised(logprob_A)
        return probability_A + (1 - mass_A) * self.uniform_reference()

    def totals(self, number_A: FloatArray) -> FloatArray:
        """Return, for each answer, the sum of the numbers of all answers to its prompt."""
        total_P: FloatArray = np.bincount(self.prompt_of_A, number_A).astype(np.float64)
        return total_P[self.prompt_of_A]

    def token_weights(self, plan: TreePlan, reference_A: FloatArray, first_sample: int) -> FloatArray:
        """Return weight_S, the weights of a plan's tokens in the cross-entropy; 0 for drawn tokens."""
        weight_A = reference_A * self.visits_P[self.prompt_of_A]
        padded = np.concatenate([np.zeros(first_sample), weight_A])
        weight_S: FloatArray = padded[plan.sample_S]
        return weight_S

    def metrics(self, logprob_A: FloatArray) -> dict[str, float]:
        """Return the probability of legal answers and the entropy (nats) over them, means over answers."""
        mass_P = np.bincount(self.prompt_of_A, np.exp(logprob_A))
        share_A = self.normalised(logprob_A)
        entropy_P = np.bincount(self.prompt_of_A, -share_A * np.log(np.maximum(share_A, 1e-300)))
        visits_P = self.visits_P / self.visits_P.sum()
        return {
            "legal_mass": float((visits_P * mass_P).sum()),
            "legal_entropy": float((visits_P * entropy_P).sum()),
        }
