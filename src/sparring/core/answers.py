"""Short answers: whether two are the same, and what a longer text states as its answer."""

import math
import re
from decimal import Decimal
from fractions import Fraction

_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3}){1,10}|[0-9]{1,30}"
_UNSIGNED = rf"(?:{_DIGITS})(?:\.[0-9]{{1,30}})?(?:/[0-9]{{1,30}})?"
_NUMBER = re.compile(rf"([+-]?{_UNSIGNED})(%?)")
_NUMBER_IN_TEXT = re.compile(rf"(?<![\w.,/])-?{_UNSIGNED}%?(?![\w/])")
_MARK = re.compile(r"<answer>|\\boxed\{|answer is|answer:|####", re.IGNORECASE)
_END = re.compile("</answer>", re.IGNORECASE)
LONGEST_ANSWER = 2000
"""Characters of a stated answer that are read."""
_AROUND = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ('"', '"'))
_WITHOUT_MEANING = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[!,;: ]|~")
_UNWRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}\{([^{}]*)\}|([0-9])([0-9]))")
_DEGREES = re.compile(r"\^(?:\{\\circ\}|\\circ)")


def same_answer(given: str, truth: str) -> bool:
    """Whether two short answers are the same text, but for case, spaces and a final full stop, or the same
    number: 0.5, 1/2 and 50%; 1000 and 1,000."""
    if plain(given) == plain(truth):
        return True
    number = number_of(truth)
    return number is not None and number == number_of(given)


def plain(text: str) -> str:
    """Return a text in lower case, with single spaces and without a final full stop."""
    return " ".join(text.lower().split()).removesuffix(".")


def number_of(text: str) -> Fraction | None:
    """Return the number that a text spells; ``None`` if it is not a number or a single fraction."""
    match = _NUMBER.fullmatch(plain(text))
    if match is None:
        return None
    numerator, _, denominator = match[1].replace(",", "").partition("/")
    if denominator and int(denominator) == 0:
        return None
    number = Fraction(numerator) / Fraction(denominator or "1")
    return number / 100 if match[2] else number


def stated_answer(text: str) -> str | None:
    r"""Return what a text states as its answer, by the last of these marks; ``None`` without any.

    The marks are ``<answer>71</answer>``, ``\boxed{71}``, and ``answer is 71``, ``Answer: 71`` or ``#### 71``
    at the end of a line.
    """
    marks = [*_MARK.finditer(text)]
    if not marks:
        return None
    rest = text[marks[-1].end() :][:LONGEST_ANSWER]
    if marks[-1][0].startswith("\\"):
        return _bare(_before_closing_brace(rest))
    if marks[-1][0].startswith("<"):
        return _bare(_END.split(rest)[0])
    return _bare(rest.lstrip().removeprefix(":").lstrip().partition("\n")[0])


def plain_number(value: float) -> str:
    """Return a number without an exponent: 0.00001 for 1e-05; empty for one that is infinite or none."""
    if isinstance(value, int):
        return str(value)
    return format(Decimal(repr(value)), "f") if math.isfinite(value) else ""


def last_number(text: str) -> str | None:
    """Return the last number in a text, as it is written; ``None`` without one."""
    found = _NUMBER_IN_TEXT.findall(text)
    return found[-1] if found else None


def stated_number(answer: str) -> str | None:
    """Return the number in a stated answer, after its last equals sign; ``None`` if there are several."""
    found = _NUMBER_IN_TEXT.findall(answer.rpartition("=")[2].replace("$", ""))
    return found[0] if len(found) == 1 else None


def same_formula(given: str, truth: str) -> bool:
    """Whether two short answers are the same, also where they are written in LaTeX.

    Spaces and what only changes the look do not count, nor do words around a number that is the truth, or a
    calculation before it: ``18 dollars`` and ``9 + 9 = 18`` are 18. Two ways to write one formula differ:
    ``x + 1`` is not ``1 + x``.
    """
    first, second = _without_latex(given[:LONGEST_ANSWER]), _without_latex(truth)
    if same_answer(first, second) or "".join(plain(first).split()) == "".join(plain(second).split()):
        return True
    number = stated_number(first)
    return number is not None and number_of(second) is not None and same_answer(number, second)


def _before_closing_brace(text: str) -> str:
    depth = 1
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return text[:place]
    return text


def _bare(text: str) -> str:
    """Return an answer without the marks of emphasis, quotation or mathematics around it."""
    bare, before = text.strip(), ""
    while bare != before:
        before = bare
        bare = bare.removesuffix(".").strip(" *_`\n")
        for opening, closing in _AROUND:
            if bare.startswith(opening) and bare.endswith(closing) and len(bare) > len(opening + closing):
                bare = bare[len(opening) : -len(closing)].strip()
    return bare


def _without_latex(text: str) -> str:
    bare = _WITHOUT_MEANING.sub("", _bare(text))
    bare = _DEGREES.sub("", _UNWRAPPED.sub(r"\1", bare))
    bare = _FRACTION.sub(lambda found: "/".join(filter(None, found.groups())), bare)
    return bare.replace("\\%", "%").replace("\\$", "").replace("{,}", ",").strip()
