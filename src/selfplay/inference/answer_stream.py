"""One answer in pieces: text that does not change any more, with its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from selfplay.core import ModelResponse
from selfplay.core.client import MoreLogprobs
from selfplay.inference.text_stream import TextStream
from selfplay.inference.token_texts import TokenTexts


@dataclass(frozen=True)
class Token:
    """A token of an answer or of its prompt.

    Attributes:
        id: its id.
        logprob: its log-probability; ``None`` for the first token of a prompt.
        likeliest: the most likely tokens in its place, with their log-probabilities.
        first: whether its text is the first of all.
        offset: where its text begins, in characters.
    """

    id: int
    logprob: float | None
    likeliest: list[tuple[int, float]]
    first: bool
    offset: int


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: its text, the tokens since the last piece, and why the answer ended here."""

    text: str
    tokens: list[Token]
    reason: str | None


class AnswerStream:
    """See the module. A piece has one token where possible; tokens that form a character together are in the
    same piece, and text that may begin a stop string is held back.

    Args:
        texts: the texts of tokens.
        stop: the request's stop strings.
        offset: where the answer's text begins, in characters.
        continues: whether the answer continues a text. Otherwise, it begins without a space that belongs to
            its first token.
    """

    def __init__(
        self, texts: TokenTexts, stop: Sequence[str] = (), *, offset: int = 0, continues: bool = False
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
                yield from self._released(new)
        if part.finish_reason:
            text = (self._lead + part.text)[self._sent :]
            yield Piece(text, self._taken(), part.finish_reason)

    def whole(self, answer: ModelResponse, *, with_tokens: bool) -> Piece:
        """Return a whole answer as one piece; ``with_tokens``: not only its text."""
        if with_tokens:
            pieces = list(self.add(answer))
            tokens = [token for piece in pieces for token in piece.tokens]
            return Piece("".join(piece.text for piece in pieces), tokens, answer.finish_reason)
        ids = answer.completion_token_ids or []
        lead = self._texts.lead(ids[0]) if ids and self._continues else ""
        return Piece(lead + answer.text, [], answer.finish_reason)

    def _released(self, new: str) -> Iterator[Piece]:
        """Yield the text that is not the beginning of a stop string, if there is some."""
        text = self._held + new
        keep = _beginning_of_a_stop(text, self._stop)
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


def _beginning_of_a_stop(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of a text with which a stop string may begin."""
    longest = min(len(text), max((len(one) - 1 for one in stop), default=0))
    return next((n for n in range(longest, 0, -1) if any(one.startswith(text[-n:]) for one in stop)), 0)
