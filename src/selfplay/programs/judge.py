"""Judges of debates. A judge is no role: it is asked without a role id and never trained.

A verdict is taken only where it is beyond doubt. What cannot be read is asked for again, then the judge has
failed; nothing is guessed and nothing becomes a draw in silence.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from selfplay.core import Arena, EpisodeError, InferenceClient, InputError, Messages, ModelResponse
from selfplay.core.call_slots import CallSlots
from selfplay.core.context import current_episode

LOWEST_SCORE = 0.5
HIGHEST_SCORE = 1.0
RETRY_TEMPERATURE = 0.7
MAX_JUDGE_CALLS = 256
_SHOWN = 80


@dataclass(frozen=True)
class Verdict:
    """Who won, and how clearly: 0.5 is even, 1 beyond doubt."""

    winner: str
    score: float


class JudgeError(EpisodeError):
    """The judge gave no verdict. The same debate would be played again, and judged alike."""

    worth_a_retry = False


class Judge(ABC):
    """Decides debates."""

    @abstractmethod
    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        """Say which of the two ``sides`` (role ids, the affirmative first) won ``debate``, a text.

        Raises:
            JudgeError: there is no verdict.
        """


class TextJudge(Judge):
    """Asks a model for a verdict in words, first at temperature 0, then with other seeds at 0.7.

    Args:
        client: who answers; the arena's client if not given.
        model: which of the client's models; the client's default if not given.
        tries: how often it is asked.
        max_tokens: of an answer.

    Raises:
        InputError: it would never be asked.
    """

    def __init__(
        self,
        client: InferenceClient | None = None,
        model: str | None = None,
        *,
        tries: int = 3,
        max_tokens: int = 256,
    ) -> None:
        if tries < 1:
            raise InputError("tries", f"{tries} asks the judge never", "Give 1 or more")
        self.client = client
        self.model = model
        self.tries = tries
        self.max_tokens = max_tokens
        self._slots = CallSlots(MAX_JUDGE_CALLS)

    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        """See Judge."""
        messages = text_judge_messages(topic, debate, sides)
        text = ""
        for number in range(self.tries):
            response = await self._ask(arena, messages, RETRY_TEMPERATURE if number else 0.0)
            text = response.text
            verdict = parse_verdict(text, sides)
            if verdict is not None:
                return verdict
        raise JudgeError(f"no verdict after asking {self.tries} times; the last answer: {text[:_SHOWN]!r}")

    async def _ask(self, arena: Arena, messages: Messages, temperature: float) -> ModelResponse:
        if self.client is None:
            return await arena.call_model(
                messages, temperature=temperature, max_tokens=self.max_tokens, model=self.model
            )
        episode = current_episode.get()
        await self._slots.acquire()
        try:
            return await self.client.complete(
                messages,
                temperature,
                self.max_tokens,
                return_tokens=False,
                model=self.model,
                seed=episode.next_call_seed() if episode is not None else None,
            )
        finally:
            self._slots.release()


class ScoreJudge(Judge):
    """Compares how likely a model finds each side's name as the answer to "who won?".

    For models too weak to write a verdict. A name's own likelihood is taken out: what counts is how far the
    debate moves the odds from those without any arguments (contextual calibration, Zhao et al. 2021). The
    score is the winner's probability at those odds. Needs a client with ``score``: the embedded engine.

    Args:
        client: who answers; the arena's client if not given.
        model: which of the client's models; the client's default if not given.
    """

    def __init__(self, client: InferenceClient | None = None, model: str | None = None) -> None:
        self.client = client
        self.model = model

    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        """See Judge. It always has a verdict."""
        odds = await self._log_odds(arena, topic, debate, sides)
        odds -= await self._log_odds(arena, topic, "(Nobody spoke.)", sides)
        probability = 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
        if probability >= LOWEST_SCORE:
            return Verdict(sides[0], probability)
        return Verdict(sides[1], 1 - probability)

    async def _log_odds(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> float:
        messages = score_judge_messages(topic, debate, sides)
        if self.client is None:
            first, second = await arena.score(messages, list(sides), model=self.model)
        else:
            first, second = await self.client.score(messages, list(sides), model=self.model)
        return first - second


def text_judge_messages(topic: str, debate: str, sides: tuple[str, str]) -> Messages:
    """What a TextJudge reads: its task, two judged examples with either winner, and the case."""
    aff, neg = sides
    instruction = (
        f"You judge debates. {aff} argues for the motion, {neg} argues against it. Judge by the arguments "
        "alone, not by your own opinion. Answer with one line: the winner's name, and a score from 0.5 "
        "(even) to 1.0 (clear)."
    )
    messages: Messages = [{"role": "system", "content": instruction}]
    for example, arguments, winner, score in _EXAMPLES:
        text = "\n\n".join(f"{side}: {said}" for side, said in zip(sides, arguments, strict=True))
        messages.append({"role": "user", "content": _case(example, text)})
        messages.append({"role": "assistant", "content": f"Winner: {sides[winner]}, score: {score}"})
    return [*messages, {"role": "user", "content": _case(topic, debate)}]


_EXAMPLES = [
    (
        "Museums should be free",
        (
            "Entry fees keep poor families out, and in cities that dropped them visits doubled.",
            "I do not like museums. They are boring.",
        ),
        0,
        0.9,
    ),
    (
        "Cars should be banned from parks",
        (
            "Parks are nice and I enjoy them.",
            "Without cars the disabled and the fire brigade cannot get in, so a ban costs safety.",
        ),
        1,
        0.8,
    ),
]


def score_judge_messages(topic: str, debate: str, sides: tuple[str, str]) -> Messages:
    """What a ScoreJudge reads."""
    aff, neg = sides
    instruction = (
        f"You judge debates. {aff} argues for the motion, {neg} argues against it. Answer with the winner's "
        f"name alone: {aff} or {neg}."
    )
    return [
        {"role": "system", "content": instruction},
        {"role": "user", "content": _case(topic, debate)},
    ]


def _case(topic: str, debate: str) -> str:
    return f"The motion: {topic}\n\n{debate}\n\nWho won?"


def parse_verdict(text: str, sides: tuple[str, str]) -> Verdict | None:
    """The one verdict that ``text`` states, as JSON or as ``Winner: NAME, score: 0.8``.

    Upper and lower case, quotes, bold type and what stands around it do not matter. ``None`` if there is no
    verdict, its winner is neither side, its score is not in 0.5 to 1, or the text contradicts itself.
    """
    objects, rest = _cut_json(text)
    stated = [(one["winner"], one.get("score")) for one in objects]
    stated += [(match["winner"], match["score"]) for match in _LINE.finditer(rest)]
    verdicts = {_verdict(winner, score, sides) for winner, score in stated}
    return verdicts.pop() if len(verdicts) == 1 else None


def _cut_json(text: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects in ``text`` that have a winner, keys in lower case, and the text without them."""
    decoder = json.JSONDecoder()
    objects: list[dict[str, Any]] = []
    rest, place = "", 0
    while (start := text.find("{", place)) >= 0:
        rest += text[place:start]
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            found, end = {}, start + 1
        fields = {key.strip().lower(): value for key, value in found.items()}
        if "winner" in fields:
            objects.append(fields)
        else:
            rest += text[start:end]
        place = end
    return objects, rest + text[place:]


_GAP = r"[\s\"'*_`]*"
_NAME = rf"winner{_GAP}[:=]{_GAP}(?P<winner>[^\n.,;:{{}}\"'*`]*)"
_NUMBER = r"(?P<score>[0-9]+(?:\.[0-9]+)?)(?!\.?[0-9]|\s*(?:[%/–-]|to\b|or\b|out\b))"
_LINE = re.compile(rf"\b{_NAME}(?:{_GAP}[.,;]?{_GAP}score{_GAP}[:=]{_GAP}{_NUMBER})?", re.IGNORECASE)
"""``Winner: NAME, score: NUMBER``; without the score where that cannot be read."""


def _verdict(winner: Any, score: Any, sides: tuple[str, str]) -> Verdict | None:
    """A verdict of what was read; ``None`` if it is none."""
    named = [side for side in sides if isinstance(winner, str) and winner.strip().lower() == side.lower()]
    if len(named) != 1 or isinstance(score, bool):
        return None
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return Verdict(named[0], number) if LOWEST_SCORE <= number <= HIGHEST_SCORE else None
