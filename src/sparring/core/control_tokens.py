"""A tokenizer that distinguishes its control tokens from text that spells them, and rendering that keeps them
apart.

It is a copy of the model's tokenizer in which the control tokens have other names, each with 128 random bits
that no text can guess. Writing the new name gives the control token; the old name is ordinary text.

A template is a program that may look into contents, for example to cut the thoughts out of earlier answers.
So the messages are rendered with a break in every content at each place where a control token could begin:
the control tokens of this text are the template's own. Then they are rendered with as few breaks as possible.
The first text with the same control tokens is the right one, because no content added any.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sparring.core.chat_template import ASKED, RULES, Template, Tokenizer, template_source
from sparring.core.errors import InputError
from sparring.core.messages import Messages

BREAK = "\ud800"
"""An unpaired surrogate: text can hold it while a template renders, but no tokenizer accepts it."""


class ControlTokens:
    """A tokenizer's control tokens, and the copy of the tokenizer that knows them by other names.

    Control tokens are the added tokens that are special or that the chat template writes, and the other tags
    of pairs; added runs of white space and added single characters always count as text. Pairs of tags that
    are neither special nor the beginning of another speaker's turn (``<think>``) are part of a model's own
    answers; in other speakers' messages they are control tokens.

    ``samples`` are some conversations as the chat template renders them. An InputError is raised if the
    tokenizer is not backed by the library ``tokenizers``, or its copy gives other ids.
    """

    def __init__(self, tokenizer: Tokenizer, model_name: str, samples: Iterable[str]) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InputError(
                "model", f"{model_name} has no fast tokenizer", "Use a model with a tokenizer.json."
            )
        texts = list(samples)
        written = {number for text in texts for number in _ids(backend, text)}
        template = template_source(tokenizer, model_name)
        added = {
            token.content: (number, token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if len(token.content.strip(" \t\r\n▁")) > 1
        }
        control = {
            text
            for text, (number, token) in added.items()
            if token.special or number in written or text in template
        }
        control |= {_counterpart(text) for text in control} & added.keys()
        self._id_of = {text: number for text, (number, _) in added.items() if text in control}
        alone = {text for text in self._id_of if added[text][1].single_word}
        self._any = _one_of(self._id_of, alone)
        turns = self._before_others(texts)
        tags = {
            text
            for text in self._id_of
            if _counterpart(text) in self._id_of and not added[text][1].special and text not in turns
        }
        self._spelled = _one_of(self._id_of.keys() - tags, alone)
        begins = re.escape("".join(sorted({text[0] for text in self._id_of})))
        self._begins = re.compile(f"[{begins}]" if begins else _NEVER)
        self._begins_no_tag = re.compile(f"(?!{_one_of(tags, alone).pattern}){self._begins.pattern}")
        self._secret = secrets.token_hex(16)
        self._name_of = {text: f"{self._secret}{index:06d}" for index, text in enumerate(self._id_of)}
        self._copy = _renamed(backend, self._name_of)
        if not self._is_faithful(backend, texts):
            raise InputError(
                "model",
                f"the control tokens of {model_name} cannot be distinguished from text",
                "Use another model.",
            )

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text: a control token's new name gives the token, its old name text."""
        return _ids(self._copy, text, add_special_tokens=add_special_tokens)

    def with_spelled_broken(self, content: str, *, tags: bool = True) -> str:
        """Return the content with a BREAK in every control token that it spells, paired ``tags`` only if
        asked."""
        spelled = self._any if tags else self._spelled
        return spelled.sub(lambda found: found[0][0] + BREAK + found[0][1:], content)

    def with_breaks(self, content: str, *, own: bool) -> str:
        """Return the content with a BREAK after each character that begins a control token.

        Whatever a template then cuts out or strips, the rest does not spell a control token. In the model's
        ``own`` answers paired tags stay as they are.
        """
        begins = self._begins_no_tag if own else self._begins
        return begins.sub(lambda found: found[0] + BREAK, content)

    def named(self, text: str) -> str:
        """Replace control tokens in a template's output by their new names, and remove the breaks."""
        return self._any.sub(lambda found: self._name_of[found[0]], text).replace(BREAK, "")

    def written(self, text: str) -> list[str]:
        """Return the control tokens in a template's output, in order, without those with a break."""
        return self._any.findall(text)

    def name(self, number: int) -> str | None:
        """Return the new name of a control token; ``None`` if the token is not one."""
        return next((self._name_of[text] for text, one in self._id_of.items() if one == number), None)

    def after_last(self, named: str) -> str:
        """Return the end of a text with new names, from its last control token on, which is tokenised
        apart."""
        return named[max(named.rfind(self._secret), 0) :]

    def spelled(self, text: str) -> int:
        """Count the control tokens that an answer spells; paired tags do not count."""
        return sum(1 for _ in self._spelled.finditer(text))

    def first(self, text: str) -> int | None:
        """Return the id of the first control token that a template wrote in ``text``; ``None`` if none."""
        found = self._any.search(text)
        return self._id_of[found[0]] if found else None

    def _before_others(self, samples: list[str]) -> set[str]:
        """Return the control tokens that begin the turns of other speakers, and the other tags of pairs."""
        before = [text.partition(one["content"]) for text in samples for one in (ASKED, RULES)]
        begin = {self._any.findall(text)[-1] for text, found, _ in before if found and self._any.search(text)}
        return begin | {_counterpart(text) for text in begin}

    def _is_faithful(self, backend: Any, texts: list[str]) -> bool:
        return all(
            self._copy.token_to_id(self._name_of[text]) == one for text, one in self._id_of.items()
        ) and all(_ids(backend, text) == self.encode(self.named(text)) for text in texts)


_NEVER = "(?!)"


def _ids(backend: Any, text: str, *, add_special_tokens: bool = False) -> list[int]:
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def _one_of(texts: Iterable[str], alone: set[str]) -> re.Pattern[str]:
    """Match the longest of ``texts``, as a tokenizer does; match those in ``alone`` only as whole words.

    The alternatives are grouped by their first character, so that the search tries none of them elsewhere.
    """
    rests: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda text: (-len(text), text)):
        first, rest = re.escape(text[0]), re.escape(text[1:])
        rests.setdefault(first, []).append(rf"(?<!\w{first}){rest}(?!\w)" if text in alone else rest)
    groups = (f"{first}(?:{'|'.join(rests[first])})" for first in rests)
    return re.compile("|".join(groups) or _NEVER)


def _counterpart(tag: str) -> str:
    """Return the matching tag: ``</x>`` for ``<x>``, ``[/x]`` for ``[x]``, and the reverse."""
    return f"{tag[0]}{tag[2:]}" if tag[1] == "/" else f"{tag[0]}/{tag[1:]}"


def _renamed(backend: Any, name_of: Mapping[str, str]) -> Any:
    """Return a copy of a tokenizer in which some tokens have other names; all ids stay the same."""
    whole = json.loads(backend.to_str())
    model = whole["model"]
    for token in whole["added_tokens"]:
        if token["content"] in name_of:
            # Whole words are found under the old name; the new one may stand next to another.
            token |= {"content": name_of[token["content"]], "single_word": False}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name_of.get(text, text): number for text, number in model["vocab"].items()}
    else:
        model["vocab"] = [[name_of.get(text, text), score] for text, score in model["vocab"]]
    if "merges" in model:  # without the merges that form a control token from its pieces
        model["merges"] = [
            pair for pair in model["merges"] if name_of.keys().isdisjoint((*pair, "".join(pair)))
        ]
    if model.get("unk_token") in name_of:
        model["unk_token"] = name_of[model["unk_token"]]
    copy = type(backend).from_str(json.dumps(whole))
    copy.no_truncation()
    copy.no_padding()
    return copy


Change = Callable[[str], str]


def rendered(control: ControlTokens, template: Template, messages: Messages) -> str:
    """Return the text of messages, in which the template's own control tokens have their new names.

    An InputError is raised if the template rejects them.
    """
    broken = _changed(
        messages, own=partial(control.with_breaks, own=True), others=partial(control.with_breaks, own=False)
    )
    safe = template(broken)
    if not any(BREAK in message["content"] for message in broken):
        return control.named(safe)
    allowed = control.written(safe)
    spelled = control.with_spelled_broken
    for own in (_as_it_is, partial(spelled, tags=False), spelled):
        try:
            text = template(_changed(messages, own=own, others=spelled))
        except InputError:
            continue  # a template may reject an answer with marks of its own; broken ones it takes as text
        if control.written(text) == allowed:
            return control.named(text)
    return control.named(safe)


def _changed(messages: Messages, *, own: Change, others: Change) -> Messages:
    return [
        {
            "role": message["role"],
            "content": (own if message["role"] == "assistant" else others)(message["content"]),
        }
        for message in messages
    ]


def _as_it_is(content: str) -> str:
    return content
