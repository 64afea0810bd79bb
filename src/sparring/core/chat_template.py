"""ChatTemplate: the text that a model's chat template writes around contents."""

from sparring.core.control_tokens import Tokenizer, template_source
from sparring.core.errors import InputError, first_line
from sparring.core.joints import ASKED, RULES, SAID
from sparring.core.messages import Messages

_SAMPLES: tuple[Messages, ...] = ([ASKED, SAID], [ASKED, SAID, ASKED], [RULES, ASKED])
"""Conversations that show the text a template writes around contents."""


class ChatTemplate:
    """Renders messages as text.

    Args:
        tokenizer: the model's tokenizer.
        model_name: the name used in error messages.

    Raises:
        InputError: the tokenizer has several templates and none is the default.
    """

    def __init__(self, tokenizer: Tokenizer, model_name: str) -> None:
        self._tokenizer = tokenizer
        self._model_name = model_name
        self.source = template_source(tokenizer, model_name)

    @property
    def has_date(self) -> bool:
        """Whether the template may write today's date."""
        return "strftime_now" in self.source

    def begun(self, messages: Messages) -> str:
        """Return a conversation and the beginning of the next answer.

        Raises:
            InputError: there is no template, or it rejects these messages.
        """
        return self._text(messages, begin_answer=True)

    def whole(self, messages: Messages) -> str:
        """Return a conversation that ends with the last message.

        Raises:
            InputError: as in :meth:`begun`.
        """
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
        if not self.source or not self._tokenizer.chat_template:
            raise InputError(
                "model",
                f"{self._model_name} has no chat template",
                "Use a chat model, or the prompt template default, which is plain text.",
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=begin_answer
                )
            )
        except Exception as error:  # a template may raise anything
            raise InputError(
                "messages",
                f"the chat template of {self._model_name} rejects them ({first_line(error)})",
                "Use roles that it knows, in an order that it accepts.",
            ) from error
