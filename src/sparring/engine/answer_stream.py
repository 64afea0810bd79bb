"""One answer in pieces: text that does not change any more, with its tokens."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.core import ModelResponse
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import decoded
from sparring.core.client import MoreLogprobs
from sparring.core.reasoning import PartsStream, beginning_of

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
HELD_TRIED_EACH_TIME = 8


class TextStream:
    """The text of a growing answer, in pieces that do not change; joined, they are the text of all tokens.

    Some tokens are parts of a character, and tokenizers strip the first space, so new tokens are decoded
    after those of the last piece, as in vLLM and TGI, and a token is held back while it may be a part of a
    character. Of many held back, decoding is tried when their number has doubled: the work stays linear. The
    text of the tokens ``before`` is not returned.
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
        """Return whether the last token held back that has a text is a single byte, as in SentencePiece. In a
        row of these, one wrong byte also changes the characters before it."""
        after: list[int] = []
        for token in reversed(self._held):
            if self._is_byte(token):
                return not decoded(self._tokenizer, 2 * after)  # twice, because a first space is stripped
            after.append(token)
        return False

    def _is_byte(self, token: int) -> bool:
        name = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(name, str) and len(name) == 6 and name.startswith("<0x") and name.endswith(">")


_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _bytes_of_letters() -> dict[str, int]:
    """Return the byte that each letter of a vocabulary of bytes stands for, as in GPT-2: printable characters
    of Latin-1 stand for themselves, the letters from 256 on for the other bytes."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _bytes_of_letters()


class TokenTexts:
    """The texts and bytes of single tokens. A tokenizer may strip the space before its first token, so a
    token is decoded after ``before``: a letter, if the vocabulary has one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.reader = AnswerReader(tokenizer)
        self.before = _letter(tokenizer)
        self._known: dict[tuple[int, bool], str] = {}

    def text(self, token: int, *, first: bool = False) -> str:
        """Return a token's text, special tokens included; a part of a character has the replacement
        character. ``first``: it is the first token of all."""
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
        """Return what the text of a token has in front where it is not the first one: a space or nothing."""
        alone = decoded(self.tokenizer, [token])
        inside = decoded(self.tokenizer, [*self.before, token])[len(decoded(self.tokenizer, self.before)) :]
        return inside.removesuffix(alone) if inside != alone and inside.endswith(alone) else ""

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _letter(tokenizer: Any) -> list[int]:
    for token in range(len(tokenizer)):
        text = decoded(tokenizer, [token])
        if len(text) == 1 and text.isascii() and text.isalpha():
            return [token]
    return []


@dataclass(frozen=True)
class Token:
    """A token of an answer or of its prompt, of which the first has no log-probability; ``likeliest`` are the
    most likely tokens in its place, and ``offset`` is where its text begins, in characters."""

    id: int
    logprob: float | None
    likeliest: list[tuple[int, float]]
    first: bool
    offset: int


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: its text, the tokens since the last piece, and why the answer ended here; in a
    chat also a piece of the ``reasoning``."""

    text: str
    tokens: list[Token]
    reason: str | None
    reasoning: str = ""


class AnswerStream:
    """An answer in pieces of one token where possible. Tokens that form a character together are in one
    piece, and text that may begin a stop string is held back.

    ``offset`` is where the text begins, in characters. An answer that ``continues`` a text keeps the first
    token's space. Where there are ``parts``, reasoning is told from what is said.
    """

    def __init__(
        self,
        texts: TokenTexts,
        stop: Sequence[str] = (),
        *,
        offset: int = 0,
        continues: bool = False,
        parts: PartsStream | None = None,
    ) -> None:
        self.drawn = 0
        self._texts = texts
        self._stop = stop
        self._continues = continues
        self._stream = TextStream(texts.tokenizer, texts.before if continues else ())
        self._offset = offset
        self._waiting: list[Token] = []
        self._lead = self._held = ""
        self._sent = 0
        self._parts = parts
        self._thought = 0

    def add(self, part: ModelResponse) -> Iterator[Piece]:
        """Yield the pieces of the next part. The last part has the text of the whole answer."""
        ids, logprobs = part.completion_token_ids or [], part.completion_logprobs or []
        likeliest = (part.more.likeliest if part.more else []) or [[] for _ in ids]
        # The last token goes out with the end of the text. A stop token has no text.
        last = len(ids) - 1 if part.finish_reason else len(ids)
        for place, (token, logprob, top) in enumerate(zip(ids, logprobs, likeliest, strict=True)):
            first = self.drawn == 0
            if first and self._continues:
                self._lead = self._texts.lead(token)
            self.drawn += 1
            self._waiting.append(Token(token, logprob, top, first and not self._continues, self._offset))
            if place < last:
                new = self._stream.add(token)
                self._offset += len(new)
                if self._parts is None:
                    yield from self._released(new)
                else:
                    yield from self._told(self._parts, new, token)
        if part.finish_reason:
            text = (self._lead + part.text)[self._sent :]
            thought = "" if part.reasoning is None else part.reasoning.text[self._thought :]
            yield Piece(text, self._taken(), part.finish_reason, thought)

    def whole(self, answer: ModelResponse, *, with_tokens: bool) -> Piece:
        """Return a whole answer as one piece; ``with_tokens``: not only its text."""
        tokens = [token for piece in self.add(answer) for token in piece.tokens] if with_tokens else []
        ids = answer.completion_token_ids or []
        lead = self._texts.lead(ids[0]) if ids and self._continues else ""
        thought = "" if answer.reasoning is None else answer.reasoning.text
        return Piece(lead + answer.text, tokens, answer.finish_reason, thought)

    def _told(self, parts: PartsStream, new: str, token: int) -> Iterator[Piece]:
        """Yield what is certain of the text of a token, a control token included, which may be a tag."""
        reader = self._texts.reader
        for text, is_thought in parts.add(self._texts.text(token) if reader.is_control(token) else new):
            if not is_thought:
                yield from self._released(reader.without_control(text))
            elif thought := reader.without_control(text):
                self._thought += len(thought)
                yield Piece("", self._taken(), None, thought)

    def _released(self, new: str) -> Iterator[Piece]:
        """Yield the text that is not the beginning of a stop string, if there is some."""
        text = self._held + new
        keep = beginning_of(self._stop, text)
        text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if text:
            self._sent += len(text)
            yield Piece(text, self._taken(), None)

    def _taken(self) -> list[Token]:
        tokens, self._waiting = self._waiting, []
        return tokens


def prompt_tokens(texts: TokenTexts, ids: Sequence[int], more: MoreLogprobs) -> list[Token]:
    """Return the tokens of a prompt; ``more`` has the log-probabilities of those after the first."""
    tokens, offset, stream = [], 0, TextStream(texts.tokenizer)
    logprobs = [None, *more.prompt]
    likeliest = [[], *more.prompt_likeliest]
    for place, (token, logprob, top) in enumerate(zip(ids, logprobs, likeliest, strict=True)):
        tokens.append(Token(token, logprob, top, place == 0, offset))
        offset += len(stream.add(token))
    return tokens
