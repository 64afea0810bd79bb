"""Extraction of the action from a model's answer."""

import re

_TOKEN = re.compile(r"\\boxed\s*\{|\\[{}\\]|[{}]")
_WRAPPER = re.compile(
    r"\\(?:boxed|text|texttt|textbf|textit|textrm|mathrm|mathbf|mathtt)\s*\{(.*)\}", re.DOTALL
)


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` in ``text``, or ``None`` if no box is closed.

    Braces inside are balanced, the content may span lines, and a wrapper around the whole content
    (``\text{4}``) is removed. Of nested boxes the outermost counts. Time is linear in the text's length.
    """
    content = None
    open_boxes: list[int | None] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "}":
            start = open_boxes.pop() if open_boxes else None
            if start is not None:
                content = text[start : match.start()]
        elif token == "{":
            open_boxes.append(None)
        elif token.startswith("\\boxed"):
            open_boxes.append(match.end())
    return None if content is None else _unwrap(content)


def _unwrap(content: str) -> str:
    content = content.strip()
    while (match := _WRAPPER.fullmatch(content)) and _balanced(match.group(1)):
        content = match.group(1).strip()
    return content


def _balanced(text: str) -> bool:
    """Return whether every closing brace in ``text`` closes an earlier one and all braces are closed."""
    depth = 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if depth < 0:
            return False
    return depth == 0
