"""The text and the bytes of single tokens, as an answer has them."""

import re
from typing import Any

from selfplay.core.chat_tokens import decoded
from selfplay.inference.text_stream import REPLACEMENT

_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte that each letter of a vocabulary of bytes stands for, as in GPT-2.

    A printable character of Latin-1 stands for itself; the other bytes, in order, have the letters from 256.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _bytes_of_letters()


class TokenTexts:
    """See the module. A tokenizer may strip the space before its first token, so a token is decoded after
    ``before``: a letter, or nothing if the vocabulary has none.

    Args:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.before = _letter(tokenizer)
        self._known: dict[tuple[int, bool], str] = {}

    def text(self, token: int, *, first: bool = False) -> str:
        """Return a token's text, special tokens included; ``first`` is the first of all.

        A part of a character has the replacement character.
        """
        key = (token, first)
        if key not in self._known:
            before = [] if first else self.before
            self._known[key] = self._decode([*before, token])[len(self._decode(before)) :]
        return self._known[key]

    def bytes(self, token: int, *, first: bool = False) -> bytes:
        """Return a token's bytes, also those of a part of a character."""
        text = self.text(token, first=first)
        if REPLACEMENT not in text:
            return text.encode()
        name = str(self.tokenizer.convert_ids_to_tokens(token))
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        if all(letter in _BYTES for letter in name):
            return bytes(_BYTES[letter] for letter in name)
        return text.encode()

    def lead(self, token: int) -> str:
        """Return what the text of a token has in front of it where it is not the first one: a space or
        nothing.
        """
        alone = decoded(self.tokenizer, [token])
        inside = decoded(self.tokenizer, [*self.before, token])[len(decoded(self.tokenizer, self.before)) :]
        return inside.removesuffix(alone) if inside != alone and inside.endswith(alone) else ""

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _letter(tokenizer: Any) -> list[int]:
    """Return a token that is a letter, in a list; an empty one if there is none."""
    for token in range(len(tokenizer)):
        text = decoded(tokenizer, [token])
        if len(text) == 1 and text.isascii() and text.isalpha():
            return [token]
    return []
