"""The answers of a page by token: text, log-probability, advantage, and what was thought.

A log has token ids without their texts, so these come from the tokenizer of the run's model, if it is on this
machine. What it does not give back as it was written is not shown by token.
"""

from functools import lru_cache
from typing import Any

from sparring.core import Step
from sparring.engine.answer_stream import TextStream, TokenTexts
from sparring.learn.model_files import model_directory

TOKENIZER_FILE = "tokenizer.json"
MAX_ANSWER = 1000
"""At most this many tokens of an answer are shown."""
MAX_PAGE = 60_000
"""Answers beyond this many tokens of a page are shown as text alone; so many are about one megabyte."""

Json = dict[str, Any]


class AnswersByToken:
    """Collects the answers of a page; its script shows them.

    Args:
        model: the run's model; without one nothing is collected.

    Attributes:
        collected: each answer: the ``texts`` and ``logprobs`` (natural logarithms) of its tokens, how many of
            the first were ``thought``, its ``advantage`` (``None`` in an evaluation), and how many ``more``
            tokens are not shown.
    """

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._tokens = 0
        self.collected: list[Json] = []

    def add(self, step: Step, advantage: float | None) -> int | None:
        """Return the place of a step's answer in ``collected``; ``None`` if it is not shown by token."""
        ids, logprobs = step.completion_token_ids or [], step.completion_logprobs or []
        if not ids or len(ids) != len(logprobs) or self._tokens + len(ids[:MAX_ANSWER]) > MAX_PAGE:
            return None
        texts = _texts_of(self._model) if self._model else None
        if texts is None or not all(0 <= one < len(texts.tokenizer) for one in ids):
            return None
        shown = _texts_by_token(texts, ids)
        if not _agree(texts, ids, shown, step.written):
            return None
        self._tokens += len(shown[:MAX_ANSWER])
        self.collected.append(
            {
                "texts": shown[:MAX_ANSWER],
                "logprobs": [round(one, 3) for one in logprobs[:MAX_ANSWER]],
                "thought": _thought(step, len(ids)),
                "advantage": advantage,
                "more": max(0, len(ids) - MAX_ANSWER),
            }
        )
        return len(self.collected) - 1


def _thought(step: Step, length: int) -> int:
    """Return how many of an answer's first tokens are a thought and its tags."""
    noted = step.info.get("reasoning")
    if not isinstance(noted, dict):
        return 0
    tokens = noted.get("tokens")
    return length if noted.get("ended") is False else tokens if isinstance(tokens, int) else 0


@lru_cache(maxsize=4)
def _texts_of(model: str) -> TokenTexts | None:
    directory = model_directory(model)
    if directory is None or not (directory / TOKENIZER_FILE).is_file():
        return None
    from transformers import PreTrainedTokenizerFast  # unlike AutoTokenizer, it does not import torch

    try:
        return TokenTexts(PreTrainedTokenizerFast.from_pretrained(str(directory)))
    except Exception:  # noqa: BLE001 (whatever is wrong with its files, the page shows answers as text)
        return None


def _texts_by_token(texts: TokenTexts, ids: list[int]) -> list[str]:
    """Return the text of each token. A part of a character has none, and the last part the whole of it."""
    found: list[str] = []
    stream, is_control = TextStream(texts.tokenizer), texts.reader.is_control
    for place, token in enumerate(ids):
        if is_control(token):
            if found:
                found[-1] += stream.finish()
            stream = TextStream(texts.tokenizer)
        found.append(texts.text(token, first=place == 0) if is_control(token) else stream.add(token))
    found[-1] += stream.finish()
    return found


def _agree(texts: TokenTexts, ids: list[int], shown: list[str], written: str) -> bool:
    """Return whether the tokens begin with what was written, but for white space and control tokens."""
    drawn = [text for token, text in zip(ids, shown, strict=True) if not texts.reader.is_control(token)]
    return _letters("".join(drawn)).startswith(_letters(texts.reader.without_control(written)))


def _letters(text: str) -> str:
    return "".join(text.split())
