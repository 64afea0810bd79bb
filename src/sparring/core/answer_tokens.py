"""The token ids that a text has after another one.

Many tokenizers treat the beginning of a text in their own way, for example by a mark for a space, so the ids
of a text alone are not those that it has after a prompt.
"""

import re
from itertools import islice

from sparring.core.chat_template import ChatTemplate
from sparring.core.control_tokens import ControlTokens
from sparring.core.errors import InputError
from sparring.core.joints import ASKED
from sparring.core.messages import Message
from sparring.core.rendering import rendered

MAX_CACHED_ANSWERS = 100_000
"""The token ids of this many answers are cached."""
ENOUGH = 64
"""So many characters of a prompt's text decide on the ids that follow, if they have the prompt's ids."""
_BEFORE = ("e", "\n", ".", "0", ":", "x")


class AnswerTokens:
    """Makes the ids of texts that follow other texts. Several threads may use it at once.

    Args:
        control: the model's control tokens.
        template: its chat template.
        turn_end: the id of the token with which the template ends an answer.
    """

    def __init__(self, control: ControlTokens, template: ChatTemplate, turn_end: int) -> None:
        self._control = control
        self._template = template
        self._turn_end = turn_end
        self._opening = self._named_opening()
        self._answers: dict[tuple[str, str, int | None], list[int]] = {}

    def ids(self, before: str, answer: str, end_of_text: int | None) -> list[int]:
        """Return the ids of an answer and of the token that ends it; do not change the list.

        If a token of the whole reaches over the boundary, the ids of ``before`` stay as they are, since the
        answer is drawn after them. The answer then has ids that it would have after another text.

        Args:
            before: the end of the prompt's text; control tokens in it have their new names.
            answer: the answer.
            end_of_text: the id of the token that ends an answer to plain text; ``None`` in a chat.
        """
        key = (before, answer, end_of_text)
        ids = self._answers.get(key)  # a batch holds the same few answers many times
        if ids is None:
            said = self._said(answer) if end_of_text is None else answer
            end = self._turn_end if end_of_text is None else end_of_text
            name = self._control.name(end)
            ids = self.after(before, said + (name or ""))
            if name is None or not ids or ids[-1] != end:
                ids = [*ids, end]
            if len(self._answers) >= MAX_CACHED_ANSWERS:
                self._answers.clear()
            self._answers[key] = ids
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

    def _said(self, answer: str) -> str:
        """Return an answer as the template writes it, between the beginning of a turn and its end."""
        own = self._control.named(self._control.with_breaks(answer, own=True))
        message: Message = {"role": "assistant", "content": answer}
        try:
            whole = rendered(self._control, self._template.whole, [ASKED, message])
        except InputError:
            return own
        if self._opening is None or not whole.startswith(self._opening):
            return own
        said, end = whole.removeprefix(self._opening), self._control.name(self._turn_end)
        said = said if end is None else said.partition(end)[0]
        return said if _letters(said) == _letters(own) else own

    def _named_opening(self) -> str | None:
        """Return the text of a short conversation up to an answer; ``None`` if the template rejects it."""
        try:
            return rendered(self._control, self._template.begun, [ASKED])
        except InputError:
            return None


def _letters(text: str) -> str:
    return "".join(text.split())
