"""Judges of debates. A judge is not a role: it is called without a role id and never trained.

A verdict is accepted only if it is unambiguous. If an answer cannot be parsed, the judge is asked again, and
after the last try it has failed. A verdict is never guessed or silently replaced by a draw.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from sparring.core import Arena, CallSettings, EpisodeError, InferenceClient, InputError, Messages
from sparring.core.errors import NOT_JSON
from sparring.core.model_caller import ModelCaller
from sparring.core.types import UNSET

JUDGE = "judge"
"""Its name where another system makes it an agent."""
LOWEST_SCORE = 0.5
HIGHEST_SCORE = 1.0
RETRY_TEMPERATURE = 0.7
MAX_JUDGE_CALLS = 256
_SHOWN = 80


@dataclass(frozen=True)
class Verdict:
    """The winner and how clear the win is, from 0.5 (even) to 1 (beyond doubt)."""

    winner: str
    score: float


class JudgeError(EpisodeError):
    """The judge gave no verdict. A retry would play the same debate, and the judge would fail again."""


class Judge(ABC):
    """Decides debates."""

    @abstractmethod
    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        """Decide which of the two ``sides`` (role ids, the affirmative first) won the text ``debate``.

        Raises JudgeError if there is no verdict, TransientError if another call to the judge's model may
        succeed.
        """


class _ModelJudge(Judge):
    """A judge that calls a model: the arena's client answers if none is given, and the client's default if no
    model is named."""

    def __init__(self, client: InferenceClient | None = None, model: str | None = None) -> None:
        self.model = model
        self._caller = None if client is None else ModelCaller(client, MAX_JUDGE_CALLS, None)

    def caller(self, arena: Arena) -> ModelCaller:
        """Return what makes the calls."""
        return self._caller or arena


class TextJudge(_ModelJudge):
    """Asks a model for a verdict in words, at most ``tries`` times: first at temperature 0, then with other
    seeds at 0.7. ``draws`` may have another temperature, for all tries, and a sampling."""

    def __init__(
        self,
        client: InferenceClient | None = None,
        model: str | None = None,
        *,
        tries: int = 3,
        max_tokens: int = 256,
        draws: CallSettings = UNSET,
    ) -> None:
        if tries < 1:
            raise InputError("tries", f"{tries} tries never ask the judge", "Give 1 or more")
        super().__init__(client, model)
        self.tries = tries
        self.max_tokens = max_tokens
        self.draws = draws

    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        messages = text_judge_messages(topic, debate, sides)
        text, caller = "", self.caller(arena)
        for number in range(self.tries):
            calls = self.draws.over(CallSettings(RETRY_TEMPERATURE if number else 0.0, self.max_tokens))
            response = await caller.call_model(messages, model=self.model, calls=calls)
            text = response.text
            verdict = parse_verdict(text, sides)
            if verdict is not None:
                return verdict
        raise JudgeError(f"no verdict after asking {self.tries} times; the last answer: {text[:_SHOWN]!r}")


class ScoreJudge(_ModelJudge):
    """Compares how likely a model finds each side's name as the answer to "who won?".

    It is for models that are too weak to write a verdict, and always gives one. Only the change of the odds
    relative to a debate without arguments counts (contextual calibration, Zhao et al. 2021). The score is the
    winner's probability at the changed odds. It needs a client with ``score``, which is the embedded engine.
    """

    async def decide(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> Verdict:
        odds = await self._log_odds(arena, topic, debate, sides)
        odds -= await self._log_odds(arena, topic, "(Nobody spoke.)", sides)
        probability = 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
        if probability >= LOWEST_SCORE:
            return Verdict(sides[0], probability)
        return Verdict(sides[1], 1 - probability)

    async def _log_odds(self, arena: Arena, topic: str, debate: str, sides: tuple[str, str]) -> float:
        messages = score_judge_messages(topic, debate, sides)
        first, second = await self.caller(arena).score(messages, list(sides), model=self.model)
        return first - second


def text_judge_messages(topic: str, debate: str, sides: tuple[str, str]) -> Messages:
    """Return the prompt of a TextJudge: the task, one judged example for each winner, and the debate."""
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
    """Return the prompt of a ScoreJudge."""
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
    """Return the last verdict that ``text`` states, as JSON or as ``Winner: NAME, score: 0.8``.

    Case, quotes, bold type and the surrounding text do not matter. Return ``None`` if there is no verdict, or
    if the last one's winner is neither side or its score not between 0.5 and 1.
    """
    objects, rest = _cut_json(text)
    stated = [(place, one["winner"], one.get("score")) for place, one in objects]
    stated += [(match.start(), match["winner"], match["score"]) for match in _LINE.finditer(rest)]
    if not stated:
        return None
    _, winner, score = max(stated, key=lambda one: one[0])
    return _verdict(winner, score, sides)


_OBJECT = re.compile(r"\{\s*\"")
"""The beginning of an object with a key."""


def _cut_json(text: str) -> tuple[list[tuple[int, dict[str, Any]]], str]:
    """Return the JSON objects in ``text`` that have a winner, with lower-case keys and their places, and the
    text with blanks in their stead."""
    decoder = json.JSONDecoder()
    objects: list[tuple[int, dict[str, Any]]] = []
    rest, place = "", 0
    while opened := _OBJECT.search(text, place):
        start = opened.start()
        rest += text[place:start]
        try:
            found, end = decoder.raw_decode(text, start)
        except NOT_JSON:
            found, end = {}, start + 1
        fields = {key.strip().lower(): value for key, value in found.items()}
        if "winner" in fields:
            objects.append((start, fields))
            rest += " " * (end - start)
        else:
            rest += text[start:end]
        place = end
    return objects, rest + text[place:]


_GAP = r"[\s\"'*_`]*"
_NAME = rf"winner{_GAP}[:=]{_GAP}(?P<winner>[^\n.,;:{{}}\"'*`]*)"
_NUMBER = r"(?P<score>[0-9]+(?:\.[0-9]+)?)(?!\.?[0-9]|\s*(?:[%/–-]|to\b|or\b|out\b))"
_LINE = re.compile(rf"\b{_NAME}(?:{_GAP}[.,;]?{_GAP}score{_GAP}[:=]{_GAP}{_NUMBER})?", re.IGNORECASE)
"""``Winner: NAME, score: NUMBER``; matches without the score if the number cannot be parsed."""


def _verdict(winner: Any, score: Any, sides: tuple[str, str]) -> Verdict | None:
    named = [side for side in sides if isinstance(winner, str) and winner.strip().lower() == side.lower()]
    if len(named) != 1 or isinstance(score, bool):
        return None
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return Verdict(named[0], number) if LOWEST_SCORE <= number <= HIGHEST_SCORE else None
