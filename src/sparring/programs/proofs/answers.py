"""How an agent's text is read: as a decision on a scale, or as messages to channels.

A decision is compared with the whole entries of a scale. (The original compares with their beginnings, so
that 10 is read as 1.)
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from sparring.config.proofs import ScaleName
from sparring.programs.proofs.protocol import Protocol, Turn
from sparring.programs.proofs.state import RoundAnswer

Verdict = Literal["reject", "accept", "none", "neither"]
VERDICT_NUMBERS: dict[Verdict, int] = {"reject": 0, "accept": 1, "none": 2, "neither": 3}
"""The numbers of the verdicts in arrays."""


@dataclass(frozen=True)
class Decision:
    """What a verifier decides.

    ``verdict`` is ``none`` if it does not decide (yet), and ``neither`` if it decides for the middle of a
    scale. ``value`` goes from -1 (certainly reject) to 1 (certainly accept); ``raw`` is what it wrote.
    """

    verdict: Verdict
    value: float = 0.0
    raw: str = ""

    @property
    def is_made(self) -> bool:
        """Whether the verifier decides."""
        return self.verdict != "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return {"verdict": self.verdict, "value": self.value, "raw": self.raw}


NO_DECISION = Decision("none")

Scale = dict[str, float]
"""The texts of a scale, from reject to accept, and the value of each, from -1 to 1."""

_LIKERT = {
    "strongly disagree": -1.0,
    "disagree": -0.5,
    "neither agree nor disagree": 0.0,
    "agree": 0.5,
    "strongly agree": 1.0,
}
_LIKERT_7 = {
    "strongly disagree": -1.0,
    "disagree": -2 / 3,
    "somewhat disagree": -1 / 3,
    "neither agree nor disagree": 0.0,
    "somewhat agree": 1 / 3,
    "agree": 2 / 3,
    "strongly agree": 1.0,
}


def _decided(scale: Scale) -> Scale:
    return {text: value for text, value in scale.items() if value}


def _out_of(most: int) -> Scale:
    return {str(number): 2 * number / most - 1 for number in range(most + 1)}


SCALES: dict[ScaleName, Scale] = {
    "accept_reject": {"reject": -1.0, "accept": 1.0},
    "likert_scale": _LIKERT,
    "likert_scale_no_undecided": _decided(_LIKERT),
    "out_of_10": _out_of(10),
    "out_of_100": _out_of(100),
    "likert_int_scale_11": _out_of(10),
    "likert_scale_4": _decided(_LIKERT),
    "likert_scale_5": _LIKERT,
    "likert_scale_6": _decided(_LIKERT_7),
    "likert_scale_7": _LIKERT_7,
}
_WORDS: dict[ScaleName, str] = {
    "accept_reject": "accept or reject",
    "out_of_10": "a whole number from 0 (certainly wrong) to 10 (certainly right)",
    "out_of_100": "a whole number from 0 (certainly wrong) to 100 (certainly right)",
    "likert_int_scale_11": "a whole number: 0 (strongly disagree), 5 (neither), 10 (strongly agree)",
}
_MARKER = re.compile(r"(?<![a-z0-9])decision[*_`\s]*:", re.IGNORECASE)
_EMPHASIS = " \t\r\n*_`"


def choices_text(name: ScaleName) -> str:
    """Return the entries of a scale in words, for prompts."""
    return _WORDS.get(name) or ", ".join(SCALES[name])


def decision_text(name: ScaleName, value: float) -> str:
    """Return ``Decision: TEXT`` with the entry of the scale whose value is nearest to ``value``."""
    scale = SCALES[name]
    return stated(min(scale, key=lambda text: abs(scale[text] - value)))


def stated(entry: str) -> str:
    """Return the answer that states an entry of a scale."""
    return f"Decision: {entry}"


def read_decision(text: str, scale: Scale, *, bare: bool = False) -> Decision | None:
    """Return the decision that a verifier's text states, ``NO_DECISION`` if it states none, ``None`` if it is
    no entry of the scale.

    A decision is what follows the last ``Decision:`` up to the end of the text. Case, white space and
    emphasis around it and a final full stop are ignored. If ``bare``, an entry alone is a decision as well.
    """
    marker = next(reversed(list(_MARKER.finditer(text))), None)
    entry = _plain(text[marker.end() :] if marker else text)
    if entry in scale and (marker or bare):
        value = scale[entry]
        return Decision("accept" if value > 0 else "reject" if value < 0 else "neither", value, entry)
    return None if marker else NO_DECISION


def _plain(text: str) -> str:
    stripped = text.strip(_EMPHASIS).removesuffix(".").strip(_EMPHASIS)
    return " ".join(stripped.lower().split())


def read_answer(
    protocol: Protocol, turn: Turn, round_number: int, y: int, text: str, *, cut: bool = False
) -> RoundAnswer:
    """Return what ``text`` says, which the token limit may have ``cut``.

    Only a verifier's text is read for a decision, and only in a round in which one counts. A text that says
    ``Decision:`` and continues with anything but an entry of the scale is invalid, and so are a decision that
    was cut (10 may have become 100), an empty message, and messages to several channels that are not one for
    each. ``y`` is the claim's truth, which a forced guess may need.
    """
    decision: Decision | None = NO_DECISION
    if round_number in protocol.deciding_rounds and protocol.is_verifier(turn.agent):
        last = is_last_turn(protocol, turn.agent, round_number)
        decision = read_decision(text, SCALES[protocol.scale], bare=last)
        if decision is not None and decision.is_made and cut:
            decision = None
        if protocol.settings.force_guess is not None:
            decision = _forced(protocol.settings.force_guess, y)
        if decision is None:
            return _answer(text, {}, NO_DECISION, valid=False, cut=cut)
        if decision.is_made or last:
            return _answer(text, {}, decision, valid=True, cut=cut)
    messages = split_channels(text, turn.channels)
    return _answer(text, messages or {}, NO_DECISION, valid=messages is not None, cut=cut)


def is_last_turn(protocol: Protocol, agent: str, round_number: int) -> bool:
    """Return whether a verifier has no later turn."""
    return not any(later > round_number for later in protocol.rounds_of(agent))


def legal_answers(protocol: Protocol, agent: str, round_number: int) -> list[str]:
    """Return the answers from which a verifier must choose in its last turn; none where any text will do."""
    if not protocol.is_verifier(agent) or not is_last_turn(protocol, agent, round_number):
        return []
    return [stated(entry) for entry in SCALES[protocol.scale]]


def split_channels(text: str, channels: tuple[str, ...]) -> dict[str, str] | None:
    """Return the message to each channel, or ``None`` if the text is not of the right form.

    The text to a single channel is the message. Messages to several channels each begin on a new line with
    the channel's name and a colon; there is exactly one for each channel, and nothing before the first.
    """
    if len(channels) == 1:
        return {channels[0]: text.strip()} if text.strip() else None
    names = "|".join(map(re.escape, channels))
    flags = re.IGNORECASE | re.MULTILINE | re.ASCII  # otherwise the long s is an s, but not in lower case
    headers = list(re.finditer(rf"^[ \t*_#>-]*({names})[*_ \t]*:[*_]*", text, flags))
    if not headers or text[: headers[0].start()].strip():
        return None
    ends = [header.start() for header in headers[1:]] + [len(text)]
    by_lower = {name.lower(): name for name in channels}
    parts = [
        (by_lower[header[1].lower()], text[header.end() : end].strip())
        for header, end in zip(headers, ends, strict=True)
    ]
    messages = dict(parts)
    complete = len(parts) == len(messages) == len(channels) and all(messages.values())
    return {name: messages[name] for name in channels} if complete else None


def _forced(guess: str, y: int) -> Decision:
    accepts = y == 1 if guess == "y" else guess == "one"
    return Decision("accept", 1.0) if accepts else Decision("reject", -1.0)


def _answer(
    text: str, messages: dict[str, str], decision: Decision, *, valid: bool, cut: bool
) -> RoundAnswer:
    return {
        "messages": messages,
        "raw": text,
        "decision": decision.to_dict(),
        "valid": valid,
        "retries": 0,
        "cut": cut,
    }
