"""ControlTokens: a tokenizer that distinguishes its control tokens from text that spells them.

It is a copy of the model's tokenizer in which the control tokens have other names, each with 128 random bits
that no text can guess. Writing the new name gives the control token; the old name is ordinary text.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from sparring.core.errors import InputError
from sparring.core.joints import ASKED, RULES
from sparring.core.messages import Messages

BREAK = "\ud800"
"""An unpaired surrogate: text can hold it while a template renders, but no tokenizer accepts it."""


class Encoding(Protocol):
    """The result of encoding a text."""

    ids: list[int]


class Backend(Protocol):
    """A tokenizer of the library ``tokenizers``."""

    def to_str(self) -> str:
        """Return the whole tokenizer as JSON."""

    @classmethod
    def from_str(cls, json: str) -> Self:
        """Return the tokenizer that this JSON describes."""

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> Sequence[Encoding]:
        """Return the encodings of texts."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token."""

    def no_truncation(self) -> None:
        """Encode texts of any length from now on."""

    def no_padding(self) -> None:
        """Add no padding to short texts from now on."""


class Tokenizer(Protocol):
    """A tokenizer of the library ``transformers``; most have the backend."""

    backend_tokenizer: Backend
    chat_template: Any
    added_tokens_decoder: Mapping[int, Any]
    eos_token_id: int

    def apply_chat_template(
        self, conversation: Messages, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """Return the text of a chat."""

    def get_chat_template(self) -> str:
        """Return the source of the chat template."""

    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        """Return the text of token ids."""


class ControlTokens:
    """A tokenizer's control tokens, and the copy of the tokenizer that knows them by other names.

    Control tokens are the added tokens that are special or that the chat template writes, and the other tags
    of pairs; added runs of white space and added single characters always count as text. Pairs of tags that
    are neither special nor the beginning of another speaker's turn (``<think>``) are part of a model's own
    answers; in other speakers' messages they are control tokens.

    Args:
        tokenizer: the model's tokenizer.
        model_name: the name used in error messages.
        samples: some conversations as its chat template renders them.

    Raises:
        InputError: the tokenizer is not backed by the library ``tokenizers``, or its copy gives other ids, or
            it has several chat templates and no default.
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
        # A break after the first character marks text of a content.
        self._any = _one_of(self._id_of, alone, after_first=f"(?!{BREAK})")
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
        """Return the content with a BREAK in every control token that it spells, and nowhere else.

        Args:
            content: content of a message, without a BREAK of its own.
            tags: whether paired tags are broken too.
        """
        spelled = self._any if tags else self._spelled
        return spelled.sub(lambda found: found[0][0] + BREAK + found[0][1:], content)

    def with_breaks(self, content: str, *, own: bool) -> str:
        """Return the content with a BREAK after each character that begins a control token.

        Whatever a template then cuts out or strips, the rest does not spell a control token.

        Args:
            content: content of a message, without a BREAK of its own.
            own: whether the content is the model's own answer, in which paired tags stay as they are.
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
        """Return the end of a text with new names: from its last control token on, or all of it.

        A tokenizer reads what follows a control token apart from what precedes it.
        """
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

    def _is_faithful(self, backend: Backend, texts: list[str]) -> bool:
        return all(
            self._copy.token_to_id(self._name_of[text]) == one for text, one in self._id_of.items()
        ) and all(_ids(backend, text) == self.encode(self.named(text)) for text in texts)


_NEVER = "(?!)"


def template_source(tokenizer: Tokenizer, model_name: str) -> str:
    """Return the source of a tokenizer's chat template; empty if it has none.

    Raises:
        InputError: it has several and none is the default, or it is no text.
    """
    if tokenizer.chat_template is None:
        return ""
    if not isinstance(tokenizer.chat_template, str | dict):
        problem = f"the chat template of {model_name} is no text"
        raise InputError("model", problem, "Save one as chat_template.jinja in the model's directory.")
    if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
        names = ", ".join(sorted(map(repr, tokenizer.chat_template)))
        raise InputError(
            "model",
            f"{model_name} has the chat templates {names} and no default",
            "Save the one to use as chat_template.jinja in the model's directory.",
        )
    return tokenizer.get_chat_template()


def _ids(backend: Backend, text: str, *, add_special_tokens: bool = False) -> list[int]:
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _one_of(texts: Iterable[str], alone: set[str], after_first: str = "") -> re.Pattern[str]:
    """Match the longest of ``texts``, as a tokenizer does; match those in ``alone`` only as whole words.

    The alternatives are grouped by their first character, so that the search tries none of them elsewhere.

    Args:
        texts: what to match.
        alone: those of them that are not part of a longer word.
        after_first: a condition on what follows the first character, checked before the rest.
    """
    rests: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda text: (-len(text), text)):
        first, rest = re.escape(text[0]), re.escape(text[1:])
        rests.setdefault(first, []).append(rf"(?<!\w{first}){rest}(?!\w)" if text in alone else rest)
    groups = (f"{first}{after_first}(?:{'|'.join(rests[first])})" for first in rests)
    return re.compile("|".join(groups) or _NEVER)


def _counterpart(tag: str) -> str:
    """Return the matching tag: ``</x>`` for ``<x>``, ``[/x]`` for ``[x]``, and the reverse."""
    return f"{tag[0]}{tag[2:]}" if tag[1] == "/" else f"{tag[0]}/{tag[1:]}"


def _renamed(backend: Backend, name_of: Mapping[str, str]) -> Backend:
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
