"""AnswerReader: tells what was said in the token ids of an answer from the reasoning before it."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sparring.core.chat_tokens import decoded
from sparring.core.reasoning import (
    CHANNEL,
    KNOWN_TAGS,
    Parts,
    PartsStream,
    Reasoning,
    ReasoningTags,
    Tags,
    opened_by,
    split,
    tags_for,
)

OPENING = 16
"""So many ids at a prompt's end are looked at for a tag that begins a thought."""
_FIELDS = ("thinking", "reasoning", "reasoning_content")
"""What a tokenizer's ``response_template`` calls reasoning."""
_CLOSINGS = {CHANNEL: "<|end|><|start|>assistant" + CHANNEL[1]}
"""The texts that end a thought where that is more than its second tag."""


class AnswerReader:
    """Reads answers by the tags that a tokenizer names in its ``response_template``, and the known ones.

    A tag may be control tokens, which are in no text of an answer otherwise.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.tags = tuple(dict.fromkeys([*own_tags(tokenizer), *KNOWN_TAGS]))
        self._special = frozenset(tokenizer.all_special_ids)
        names = {tokenizer.convert_ids_to_tokens(one) for one in self._special}
        names |= {one.content for one in tokenizer.added_tokens_decoder.values() if one.special}
        self._control = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
        self._special |= {one for one, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._has_channels = "<|channel|>" in names
        self._opened = lru_cache(maxsize=4096)(self._opened_by)

    def read(self, prompt: list[int], ids: list[int], reasoning: ReasoningTags = "auto") -> tuple[str, Parts]:
        """Return the whole text of an answer to a prompt, with the control tokens in it if it has reasoning,
        and its parts. The token that ends the answer is not among ``ids``."""
        tags = tags_for(reasoning, self.tags)
        spelled = self._special.isdisjoint(ids)
        whole = decoded(self._tokenizer, ids) if spelled else self._whole(ids)
        parts = split(whole, tags, opened=self._opened(tuple(prompt[-OPENING:]), tags))
        if parts.reasoning is None:
            text = whole if spelled else decoded(self._tokenizer, ids)
            return text, Parts(text)
        thought = self.without_control(parts.reasoning.text).strip()
        length = self._length(ids, parts.said_at) if parts.inside is None else len(ids)
        told = Reasoning(thought, parts.reasoning.ended, length)
        said = parts.said if spelled else self.without_control(parts.said)
        return whole, Parts(said, told, parts.said_at, parts.inside)

    def stream(self, prompt: list[int]) -> PartsStream:
        """Return what tells the parts of an answer to a prompt apart while it is written."""
        return PartsStream(self.tags, self.opened(prompt))

    def opened(self, prompt: list[int]) -> Tags | None:
        """Return the tags of the thought inside which an answer to a prompt begins; ``None`` if in none."""
        return self._opened(tuple(prompt[-OPENING:]), self.tags)

    def is_control(self, token: int) -> bool:
        """Return whether a token is a control token, which is in no text."""
        return token in self._special

    def without_control(self, text: str) -> str:
        """Return a text without control tokens."""
        return self._control.sub("", text)

    def thinks_on(self, prompt: list[int], ids: list[int]) -> bool:
        """Return whether an answer goes on after its last id, which ends messages: a thought in a channel is
        a message of its own."""
        if not self._has_channels or ids[-1] == self._tokenizer.eos_token_id:
            return False
        return self.read(prompt, ids[:-1])[1].inside == CHANNEL

    def closing(self, pair: Tags) -> list[int]:
        """Return the ids that end a thought in the middle."""
        text = _CLOSINGS.get(pair, f"\n{pair[1]}\n\n")
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _opened_by(self, prompt_end: tuple[int, ...], tags: tuple[Tags, ...]) -> Tags | None:
        return opened_by(self._whole(prompt_end), tags)

    def _whole(self, ids: Iterable[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _length(self, ids: list[int], place: int) -> int:
        """Return the number of the first ids whose text reaches a place in the whole."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._whole(ids[:middle])) < place:
                low = middle + 1
            else:
                high = middle
        return low


def own_tags(tokenizer: Any) -> list[Tags]:
    """Return the tags of reasoning that a tokenizer's ``response_template`` has as texts (transformers 5)."""
    template = getattr(tokenizer, "response_template", None)
    fields = template.get("fields") if isinstance(template, dict) else None
    if not isinstance(fields, dict):
        return []
    found = [one for name in _FIELDS if isinstance(one := fields.get(name), dict)]
    pairs = [(one.get("open"), one.get("close")) for one in found]
    return [
        (first, second)
        for first, second in pairs
        if isinstance(first, str) and isinstance(second, str) and first and second
    ]
