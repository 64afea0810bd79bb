"""ChatTokens: converts messages to token ids so that no text in a message becomes a control token.

An answer that comes with its ``token_ids`` is not tokenised again: a prompt is the ids of the conversation's
beginning, the ids of the answer as they were drawn, and the ids of what the template writes after an answer.

A chat template marks turns with control tokens (``<|im_end|>``), and a model can spell one with ordinary
tokens. Tokenised as usual, that text would become the real control token in the next prompt, so its author
could close its own turn and write the next speaker's. Here only the template itself writes control tokens:

1. The template renders the contents (``rendering``) so that the control tokens in its output are its own.
2. These are given new names, and a tokenizer that knows control tokens only by their new names encodes the
   text (``control_tokens``).

For contents that spell no control token, the result equals the tokenizer's own ids. Any text can spell the
markup that a template writes with ordinary tokens (``[INST]`` of Llama 2), but not a turn's end token.

An answer that was not sampled has the ids that it has in the rendering of the whole conversation
(``answer_tokens``): most tokenizers give a text alone other ids than after a prompt.

The latest versions of transformers have ``sanitize_control_tokens``. It changes how templates render the
thoughts in earlier answers, and raises where a control token is also a piece of the vocabulary.
"""

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sparring.core.answer_tokens import ENOUGH, AnswerTokens
from sparring.core.chat_template import ChatTemplate
from sparring.core.control_tokens import ControlTokens, Tokenizer
from sparring.core.errors import InputError, shown
from sparring.core.joints import ASKED, SAID, Joints
from sparring.core.messages import Messages
from sparring.core.rendering import rendered

MAX_RENDERED_CHARACTERS = 8_000_000
"""Rendered prompts are cached until they have this many characters in total."""
Key = tuple[bool | tuple[str, str], ...]
"""Whether messages follow an answer; then their roles and contents."""
_ROLE = re.compile(r"[\w-]+")


@dataclass
class _Prompt:
    """The text of a prompt, in which control tokens have their new names; its ids and end once asked for."""

    text: str
    ids: list[int] | None = None
    tail: str | None = None


class ChatTokens:
    """The only place where messages, and answers that were not sampled, become token ids; see the module.

    Several threads may use it at once. ``joints``: what the template writes after an answer, or ``None`` if
    it depends on what came before the answer; every prompt is then tokenised from its text.

    ``stop_token_ids``: the token with which the template ends an assistant's turn, the tokenizer's
    end-of-text token, and the configured ones.

    Args:
        tokenizer: the model's tokenizer, as transformers loads it.
        model_name: the name used in error messages.
        stop_token_ids: the tokens that end an answer according to the model's generation configuration.

    Raises:
        InputError: see ControlTokens.
    """

    def __init__(self, tokenizer: Tokenizer, model_name: str, stop_token_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.model_name = model_name
        self._template = ChatTemplate(tokenizer, model_name)
        samples = self._template.samples()
        self._control = ControlTokens(tokenizer, model_name, samples)
        known = [tokenizer.eos_token_id, *stop_token_ids]
        self.stop_token_ids = list(dict.fromkeys([self._turn_end(samples, known), *known]))
        self.joints = Joints.of(self._template.begun) if samples else None
        self._answers = AnswerTokens(self._control, self._template, self.stop_token_ids[0])
        self._prompts: dict[Key, _Prompt] = {}
        self._characters = 0
        self._caching = threading.Lock()

    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a chat prompt. A single message of role ``text`` is encoded without a
        template, or is its ``token_ids`` if it has some. Answers that have ``token_ids`` are in the prompt
        with these.

        Equal prompts without such answers return the same list object: do not modify it.

        Raises:
            InputError: the tokenizer has no chat template, its template rejects these messages (for example,
                because of an unknown role), or they contain an unpaired surrogate.
        """
        if _is_plain_text(messages) and "token_ids" in messages[0]:
            return messages[0]["token_ids"]
        drawn = [index for index, message in enumerate(messages) if "token_ids" in message]
        if not drawn or self.joints is None:
            return self._tokenised(messages)
        ids = list(self._tokenised(messages[: drawn[0]]))
        for answer, following in pairwise([*drawn, len(messages)]):
            said = messages[answer]["token_ids"]
            ids += said
            ids += self._after(said, messages[answer + 1 : following])
        return ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, without special tokens."""
        return self._control.encode(_whole(text))

    def encode_answer(self, prompt: Messages, text: str) -> list[int]:
        """Return the token ids of an answer to ``prompt``, including the token that ends it.

        After a chat, they are the ids that the answer has in the rendering of the whole conversation, up to
        the token with which the template ends an assistant's turn; white space that the template adds or
        strips counts. What else a template writes or leaves out, an empty thought or the thoughts of earlier
        answers, does not: the ids are those of the words of ``text``. Paired tags that are not special are
        their tokens, as in an answer that is drawn.

        After plain text, the answer continues the text and ends with the tokenizer's end-of-text token: a
        base model rarely emits the markup of a template that it was not trained on.

        The ids of the prompt stay as :meth:`render` gives them, also where a token of the whole text would
        reach over the boundary, since an answer is drawn after these. The answer then has the ids of a text
        that continues another one.

        Raises:
            InputError: as in :meth:`render`, or the answer contains an unpaired surrogate.
        """
        plain = _is_plain_text(prompt)
        end = self.tokenizer.eos_token_id if plain else None
        return list(self._answers.ids(self._tail(prompt), _whole(text), end))

    def decode(self, ids: list[int]) -> str:
        """Return the text of ``ids``; see :func:`decoded`."""
        return decoded(self.tokenizer, ids)

    def notes(self) -> list[str]:
        """Return lines for the user: if later prompts tokenise answers again, and if they hold a date."""
        notes = []
        if self.joints is None and self._template.source:
            notes.append(
                f"the chat template of {self.model_name} cannot be continued after an answer, so later "
                "prompts tokenise the conversation again"
            )
        if self._template.has_date:
            notes.append(
                f"the chat template of {self.model_name} writes today's date into prompts, so a run that is "
                "repeated or resumed on another day has other prompts; write a date into the template to "
                "repeat it exactly"
            )
        return notes

    def spelled_control_tokens(self, text: str) -> int:
        """Count the control tokens that an answer spells; its tags for thoughts and tools do not count."""
        return self._control.spelled(text)

    def _tokenised(self, messages: Messages, *, after_answer: bool = False) -> list[int]:
        """Return the ids of messages, as the beginning of a conversation or after an answer."""
        prompt = self._prompt(messages, after_answer=after_answer)
        if prompt.ids is None:
            if after_answer:
                ids = self._answers.continuing(prompt.text)
            else:
                plain = _is_plain_text(messages)
                ids = self._control.encode(prompt.text, add_special_tokens=plain)
            with self._caching:
                if prompt.ids is None:  # no other thread was faster
                    prompt.ids = ids
        return prompt.ids

    def _tail(self, messages: Messages) -> str:
        """Return the end of a prompt's text, which decides on the ids of an answer."""
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        after_answer = bool(answers) and self.joints is not None
        latest = messages[answers[-1] + 1 :] if after_answer else messages
        prompt = self._prompt(latest, after_answer=after_answer)
        if prompt.tail is None:
            tail = self._control.after_last(prompt.text)
            if len(tail) > 2 * ENOUGH:
                tail = self._answers.enough(tail, self._tokenised(latest, after_answer=after_answer))
            prompt.tail = tail
        return prompt.tail

    def _after(self, said: list[int], messages: Messages) -> list[int]:
        """Return the ids between an answer and the next one, without the end of turn that was drawn."""
        ids = self._tokenised(messages, after_answer=True)
        if not said or said[-1] not in self.stop_token_ids or self.stop_token_ids[0] not in ids:
            return ids
        end = ids.index(self.stop_token_ids[0])
        return ids if self.decode(ids[:end]).strip() else ids[end + 1 :]

    def _prompt(self, messages: Messages, *, after_answer: bool) -> _Prompt:
        """Return rendered messages from the cache; the same ones are rendered once, unless by two threads."""
        key: Key = (after_answer, *((message["role"], message["content"]) for message in messages))
        prompt = self._prompts.get(key)
        if prompt is not None:
            return prompt
        prompt = _Prompt(self._render(messages, after_answer=after_answer))
        with self._caching:
            if self._characters > MAX_RENDERED_CHARACTERS:
                self._prompts.clear()
                self._characters = 0
            if key not in self._prompts:
                self._prompts[key] = prompt
                self._characters += len(prompt.text)
            return self._prompts[key]

    def _render(self, messages: Messages, *, after_answer: bool) -> str:
        """Return the text of messages, in which control tokens have their new names."""
        if _is_plain_text(messages):
            return _whole(messages[0]["content"])
        for message in messages:
            _whole(message["content"])
            if not _ROLE.fullmatch(message["role"]):  # templates may turn roles into control tokens
                raise InputError(
                    "messages", f"{message['role']!r} is not a role", "Use roles such as user and assistant."
                )
        joints = self.joints if after_answer else None
        template = self._template.begun if joints is None else joints.after_answer
        return rendered(self._control, template, messages)

    def _turn_end(self, samples: list[str], known: list[int]) -> int:
        """Return the control token that follows an assistant's words at the end of a chat; elsewhere it
        counts only if it is a known one.
        """
        for text in samples:
            _, said, rest = text.rpartition(SAID["content"])
            end = self._control.first(rest) if said else None
            if end is not None and (end in known or ASKED["content"] not in rest):
                return end
        return known[0]


def configured_stops(eos_token_id: object, model_name: str) -> list[int]:
    """Return the tokens that end an answer, of a configuration: a token's id, a list of them, or ``None``.

    Raises:
        InputError: it is something else.
    """
    listed = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    given = [one for one in listed if one is not None]
    numbers = [one for one in given if isinstance(one, int) and not isinstance(one, bool)]
    if len(numbers) < len(given):
        problem = f"the generation configuration of {model_name} has the eos_token_id {shown(eos_token_id)}"
        raise InputError("model", problem, "Write a token's id, or a list of them.")
    return numbers


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of token ids, without special tokens and with all spaces unchanged."""
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _is_plain_text(messages: Messages) -> bool:
    return len(messages) == 1 and messages[0]["role"] == "text"


def _whole(text: str) -> str:
    """Return the text unchanged.

    Raises:
        InputError: it contains an unpaired surrogate. Python strings and JSON may hold one, but no tokenizer
            accepts it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"they contain {text[error.start]!r}, which is an unpaired surrogate"
        raise InputError("messages", problem, "Send whole characters.") from error
    return text
