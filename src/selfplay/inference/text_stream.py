"""Decode the text of a stream of tokens."""

from collections.abc import Sequence
from typing import Any

from selfplay.core.chat_tokens import decoded

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
HELD_TRIED_EACH_TIME = 8


class TextStream:
    """The text of a growing answer, in pieces that do not change; joined, they are the text of all tokens.

    Tokens cannot be decoded separately, because some are parts of a character, and tokenizers strip the first
    space. So the new tokens are decoded after those of the last piece, as in vLLM and TGI. A token is held
    back while it may be a part of a character. If many tokens in a row are held back, decoding is tried only
    when their number has doubled, so the work is linear in the length of the answer.

    Args:
        tokenizer: the model's tokenizer.
        before: tokens in front of the first one, whose text is not returned.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._before = list(before)
        self._held: list[int] = []
        self._try_at = 1

    def add(self, token: int) -> str:
        """Add ``token`` and return the new text; it is empty while the token is held back."""
        self._held.append(token)
        if len(self._held) < self._try_at:
            return ""
        text = self._new_text()
        if not text or text.endswith(REPLACEMENT) or self._ends_with_a_byte():
            held = len(self._held)
            self._try_at = held + 1 if held < HELD_TRIED_EACH_TIME else 2 * held
            return ""
        self._before, self._held, self._try_at = self._held, [], 1
        return text

    def finish(self) -> str:
        """Return the text of the tokens held back; there must be no further tokens."""
        return self._new_text() if self._held else ""

    def _new_text(self) -> str:
        before = decoded(self._tokenizer, self._before)
        return decoded(self._tokenizer, self._before + self._held)[len(before) :]

    def _ends_with_a_byte(self) -> bool:
        """Return whether the last token held back that has a text is a single byte, as in SentencePiece.

        In a row of such tokens, one wrong byte also changes the characters before it. Decoding skips special
        tokens, so they do not end the row.
        """
        after: list[int] = []
        for token in reversed(self._held):
            if self._is_byte(token):
                return not decoded(self._tokenizer, 2 * after)  # twice, because a first space is stripped
            after.append(token)
        return False

    def _is_byte(self, token: int) -> bool:
        name = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(name, str) and len(name) == 6 and name.startswith("<0x") and name.endswith(">")
