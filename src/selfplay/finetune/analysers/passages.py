"""Passages that a message marks as quotations or code, and whether they stand in another text."""

import re

_MARKED = re.compile(
    r"```[^\n`]*\n(?P<block>.*?)```|`(?P<code>[^`\n]+)`"
    r"|\"(?P<straight>[^\"]+)\"|“(?P<curly>[^”]+)”|«(?P<angled>[^»]+)»"
    r"|(?P<lines>(?:^[ \t]*>[^\n]*(?:\n|$))+)",
    re.DOTALL | re.MULTILINE,
)
_LEFT_OUT = re.compile(r"\[?(?:\.\.\.|…)\]?")
_EDGES = " .,;:!?"


def marked_passages(text: str) -> list[str]:
    """Return what stands in quotation marks, backquotes, code blocks or lines that begin with ``>``.

    White space is single; punctuation at the ends is left out, because writers put their own there. A passage
    with an ellipsis is several.
    """
    found = []
    for match in _MARKED.finditer(text):
        passage = next(group for group in match.groupdict().values() if group is not None)
        if match["lines"] is not None:
            passage = re.sub(r"^[ \t]*>[ \t]?", "", passage, flags=re.MULTILINE)
        found += [_plain(part) for part in _LEFT_OUT.split(passage)]
    return [one for one in found if re.search(r"\w", one)]


def stands_in(passage: str, text: str) -> bool:
    """Return whether a passage stands in a text, word for word.

    White space and the case of the passage's first letter do not count. The passage does not begin or end
    within a word or number: ``2 + 3`` does not stand in ``12 + 3``.
    """
    passage = _plain(passage)
    if not passage:
        return False
    first, rest = re.escape(passage[0]), re.escape(passage[1:])
    before = r"(?<!\w)" if passage[0].isalnum() else ""
    after = r"(?!\w)" if passage[-1].isalnum() else ""
    return re.search(f"{before}(?i:{first}){rest}{after}", " ".join(text.split())) is not None


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(_EDGES)
