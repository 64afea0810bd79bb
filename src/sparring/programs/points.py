"""Points that a model gives to an answer, as a reward: written down, or the mean over their likelihoods."""

import math
import re
from dataclasses import dataclass

from sparring.core import Arena, CallSettings, EpisodeError, Messages
from sparring.core.text import speech
from sparring.programs.judge import RETRY_TEMPERATURE, JudgeError

TRIES = 3
MAX_TOKENS = 256
_SHOWN = 80
_STATED = re.compile(r"score[\s\"'*_`]*[:=][\s\"'*_`]*([0-9]{1,3})(?![0-9.,]*[0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Scale:
    """What points from 0 to ``most`` are given for, in words."""

    most: int
    criteria: str


QUALITY = Scale(
    7,
    "Give one point for each of these that is true: one can tell what the instruction wants; it says so "
    "clearly; who gave it can understand the answer; the answer deals with a good part of it; the answer "
    "deals with all that matters; the answer is short, in good order and helpful; who gave the instruction "
    "would like its style.",
)
"""Seven criteria, two of which are about the instruction (Kuba et al. 2025, arXiv 2509.07414, box 3)."""
OBEDIENCE = Scale(
    10,
    "Give points for how well the answer does what the instruction asks: none for not at all, 10 for fully.",
)


@dataclass(frozen=True)
class PointsJudge:
    """Asks a model for points on a scale.

    It is asked at most three times in words, first at temperature 0; the last ``Score: N`` in its answer
    counts. With ``by_score``, the points are the mean of the numbers of the scale, weighted by the
    likelihood of each, which needs a client with ``score``.
    """

    scale: Scale
    model: str
    by_score: bool = False

    async def points(self, arena: Arena, instruction: str, answer: str) -> float:
        """Return the points, from 0 to ``scale.most``. Raises JudgeError if there are none."""
        messages = self._messages(instruction, answer)
        if self.by_score:
            texts = [f"Score: {number}" for number in range(self.scale.most + 1)]
            return expected_points(await arena.score(messages, texts, model=self.model))
        text = ""
        for number in range(TRIES):
            calls = CallSettings(RETRY_TEMPERATURE if number else 0.0, MAX_TOKENS)
            text = (await arena.call_model(messages, model=self.model, calls=calls)).text
            points = read_points(text, self.scale.most)
            if points is not None:
                return float(points)
        raise JudgeError(f"no points after asking {TRIES} times; the last answer: {text[:_SHOWN]!r}")

    def _messages(self, instruction: str, answer: str) -> Messages:
        task = "only with" if self.by_score else "with a short reason, and end with"
        form = f"one line of this form:\nScore: (0 to {self.scale.most})"
        asked = f"{self.scale.criteria}\n\nAnswer {task} {form}"
        case = f"{speech('Instruction', instruction.strip())}\n\n{speech('Answer', answer.strip())}"
        return [{"role": "system", "content": asked}, {"role": "user", "content": case}]


def expected_points(logprobs: list[float]) -> float:
    """Return the mean of 0, 1, ... weighted by their probabilities, of which these are the logarithms, up to
    a common summand. Raises an EpisodeError if all are impossible."""
    highest = max(logprobs)
    if not math.isfinite(highest):
        raise EpisodeError("the model that gives points finds every number of them impossible")
    weights = [math.exp(one - highest) for one in logprobs]
    return sum(number * weight for number, weight in enumerate(weights)) / sum(weights)


def read_points(text: str, most: int) -> int | None:
    """Return the number after the last ``Score:``; ``None`` without one, or if it is above ``most``."""
    stated = _STATED.findall(text)
    return int(stated[-1]) if stated and int(stated[-1]) <= most else None
