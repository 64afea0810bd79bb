"""Decisions of a verifier: the scales on which it decides, and how a text is read as a decision.

A text is compared with the whole entries of a scale. Where a text was compared with the beginnings of the
entries, as in the original, 10 is read as 1 and 57 as 5.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from sparring.config.proofs import ScaleName

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
    """Return the scale without its middle."""
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
    """Return the decision that a verifier's text states, ``NO_DECISION`` if it states none.

    A decision is what follows the first ``Decision:`` up to the end of the text. Case, white space and
    emphasis around it and a final full stop are ignored; the rest must be an entry of the scale.

    Args:
        text: what the verifier wrote.
        scale: the possible entries.
        bare: whether an entry alone is a decision as well, because nothing else can be meant.

    Returns:
        ``None`` if something follows ``Decision:`` that is not an entry of the scale.
    """
    marker = _MARKER.search(text)
    entry = _plain(text[marker.end() :] if marker else text)
    if entry in scale and (marker or bare):
        value = scale[entry]
        return Decision("accept" if value > 0 else "reject" if value < 0 else "neither", value, entry)
    return None if marker else NO_DECISION


def _plain(text: str) -> str:
    """Return a text in lower case, with single spaces and without the marks around it."""
    stripped = text.strip(_EMPHASIS).removesuffix(".").strip(_EMPHASIS)
    return " ".join(stripped.lower().split())
