"""The token ids that a text has after another one.

Many tokenizers treat the beginning of a text in their own way, for example by a mark for a space, so the ids
of a text alone are not those that it has after a prompt.
"""

import re
from itertools import islice

from selfplay.core.control_tokens import ControlTokens

MAX_CACHED_ANSWERS = 100_000
"""The token ids of this many answers are cached."""
ENOUGH = 64
"""So many characters of a prompt's text decide on the ids that follow, if they have the prompt's ids."""
_BEFORE = ("e", "\n", ".", "0", ":", "x")


class AnswerTokens:
    """Makes the ids of texts that follow other texts. Several threads may use it at once.

    Args:
        control: the model's control tokens.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._answers: dict[tuple[str, str, int], list[int]] = {}

    def cached(self, before: str, answer: str, end: int) -> list[int] | None:
        """Return the ids of an answer that :meth:`ids` made with the same arguments."""
        return self._answers.get((before, answer, end))

    def ids(self, before: str, answer: str, end: int, said: str) -> list[int]:
        """Return the ids of an answer and the token that ends it, after the text before it.

        If a token of ``before + said`` reaches over the boundary, the ids of ``before`` stay as they are,
        since the answer is drawn after them. The answer then has ids that it would have after another text.

        Args:
            before: the end of the prompt's text; control tokens in it have their new names.
            answer: the answer, for the cache.
            end: the id of the token that ends it.
            said: the answer as the template writes it; control tokens in it have their new names.
        """
        name = self._control.name(end)
        ids = self.after(before, said + (name or ""))
        if name is None or not ids or ids[-1] != end:
            ids = [*ids, end]
        if len(self._answers) >= MAX_CACHED_ANSWERS:
            self._answers.clear()
        self._answers[before, answer, end] = ids
        return ids

    def after(self, before: str, text: str) -> list[int]:
        """Return the ids of a text after another, or after any other if a token reaches over the boundary."""
        ids = self._without(before, text)
        return self.continuing(text, before[-1:]) if ids is None else ids

    def continuing(self, text: str, *before: str) -> list[int]:
        """Return the ids of a text that continues another one, if possible one of ``before``."""
        for one in (*before, *_BEFORE):
            ids = self._without(one, text) if self._control.encode(one) else None
            if ids is not None:
                return ids
        return self._control.encode(text)

    def enough(self, before: str, ids: list[int]) -> str:
        """Return the end of a long text, if its ids are the last ones of ``ids``; or else the whole text.

        Args:
            before: the text after the last control token of a prompt.
            ids: the prompt's ids.
        """
        for space in islice(re.finditer(r"\s+", before[-2 * ENOUGH : -ENOUGH]), 4):
            for place in (space.end(), space.start()):
                short = before[place - min(2 * ENOUGH, len(before)) :]
                own = self._control.encode(short)
                if own and ids[-len(own) :] == own:
                    return short
        return before

    def _without(self, before: str, text: str) -> list[int] | None:
        """Return the ids of both without those of ``before``; ``None`` if these change before ``text``."""
        begun, whole = self._control.encode(before), self._control.encode(before + text)
        return whole[len(begun) :] if whole[: len(begun)] == begun else None
