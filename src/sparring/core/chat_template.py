"""ChatTemplate and Joints: the text that a model's chat template writes around contents, and after an answer.

What is written after an answer extends a conversation's token ids. It is read off a small conversation whose
answer is known. Nearly all templates write the same there in every conversation; the others, which for
example move the rules into the last question, are recognised when a model is loaded.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparring.core.errors import InputError, first_line
from sparring.core.messages import Message, Messages

ASKED: Message = {"role": "user", "content": "Is it so?"}
SAID: Message = {"role": "assistant", "content": "Indeed."}
RULES: Message = {"role": "system", "content": "Be brief."}
_MARK: Message = {"role": "assistant", "content": "Mark8c41f6e02b."}
_LONGER: tuple[Messages, ...] = ([ASKED, SAID, ASKED, SAID, ASKED], [RULES, ASKED, SAID, ASKED])

Template = Callable[[Messages], str]
"""Renders a conversation with the beginning of the next answer, or raises InputError."""


class Joints:
    """What one template writes after answers."""

    def __init__(self, template: Template) -> None:
        self._template = template

    @classmethod
    def of(cls, template: Template) -> "Joints | None":
        """Return a template's joints; ``None`` if they depend on what is before the answer."""
        joints = cls(template)
        return joints if joints._hold() else None

    def after_answer(self, messages: Messages) -> str:
        """Return what the template writes between an answer and the next one, ``messages`` included."""
        return self._template([ASKED, _MARK, *messages]).partition(_MARK["content"])[2]

    def _hold(self) -> bool:
        """Return whether the template writes the same after an answer in longer conversations.

        Before an answer that was given it may write more or less than before one that is asked for: models
        begin their reasoning, or name a channel, by themselves.
        """
        try:
            joint = self.after_answer([ASKED])
        except InputError:
            return False
        if ASKED["content"] not in joint:
            return False
        for messages in _LONGER:
            try:
                _, *between, last = self._template(messages).split(SAID["content"])
            except InputError:
                continue  # a template without a system role
            if last != joint or not all(joint.startswith(one) or one.startswith(joint) for one in between):
                return False
        return True


_SAMPLES: tuple[Messages, ...] = ([ASKED, SAID], [ASKED, SAID, ASKED], [RULES, ASKED])
"""Conversations that show the text a template writes around contents."""


NO_TEMPLATE = (
    "Use a chat model, or save one as chat_template.jinja in the model's directory; games can be played with "
    'template = "fewshot-text", which is plain text'
)
"""What to do about a model without a chat template."""
TemplateOption = bool | int | str
Tokenizer = Any
"""A tokenizer of the library ``transformers``."""


def template_source(tokenizer: Tokenizer, model_name: str) -> str:
    """Return the source of a tokenizer's chat template; empty if it has none.

    An InputError is raised if it has several and none is the default, or it is no text.
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
    return str(tokenizer.get_chat_template())


def check_options(source: str, options: Iterable[str], model_name: str) -> None:
    """Raise an InputError unless a template's source has a word for each option; it would ignore others."""
    for name in options:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            problem = f"the chat template of {model_name} has no option {name}"
            raise InputError("model.template_options", problem, "Leave it out, or correct its name")


class ChatTemplate:
    """Renders messages as text, with ``options`` that the template knows; raises an InputError if there are
    several templates and none is the default, or it has no such option."""

    def __init__(
        self, tokenizer: Tokenizer, model_name: str, options: Mapping[str, TemplateOption] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self._model_name = model_name
        self._options = dict(options or {})
        self.source = template_source(tokenizer, model_name)
        check_options(self.source, self._options, model_name)

    @property
    def has_date(self) -> bool:
        """Whether the template may write today's date."""
        return "strftime_now" in self.source

    def begun(self, messages: Messages) -> str:
        """Return a conversation and the beginning of the next answer; raise an InputError if it is
        rejected."""
        return self._text(messages, begin_answer=True)

    def whole(self, messages: Messages) -> str:
        """Return a conversation that ends with the last message; raise an InputError if it is rejected."""
        return self._text(messages, begin_answer=False)

    def samples(self) -> list[str]:
        """Render the sample conversations that the template accepts."""
        samples = []
        for messages in _SAMPLES:
            try:
                samples.append(self._text(messages, begin_answer=messages[-1] is ASKED))
            except InputError:
                continue  # a caller that sends such messages gets the error
        return samples

    def _text(self, messages: Messages, *, begin_answer: bool) -> str:
        if not self.source or not self.tokenizer.chat_template:
            raise InputError("model", f"{self._model_name} has no chat template", NO_TEMPLATE)
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=begin_answer, **self._options
                )
            )
        except Exception as error:  # a template may raise anything
            raise InputError(
                "messages",
                f"the chat template of {self._model_name} rejects them ({first_line(error)})",
                "Use roles that it knows, in an order that it accepts.",
            ) from error
