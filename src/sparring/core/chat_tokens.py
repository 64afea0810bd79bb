"""ChatTokens: converts messages to token ids so that no text in a message becomes a control token.

An answer that comes with its ``token_ids`` is not tokenised again: a prompt is the ids of the conversation's
beginning, the ids of the answer as they were drawn, and the ids of what the template writes after an answer.
An answer that was not sampled has the ids that it has in the rendering of the whole conversation.

A chat template marks turns with control tokens (``<|im_end|>``), and a model can spell one with ordinary
tokens. Tokenised as usual, that text would become the real control token in the next prompt, so its author
could close its own turn and write the next speaker's. Here only the template itself writes control tokens:

1. The template renders the contents so that the control tokens in its output are its own.
2. These are given new names, and a tokenizer that knows control tokens only by their new names encodes the
text. (Both are in ``control_tokens``.)

For contents that spell no control token, the result equals the tokenizer's own ids. Any text can spell the
markup that a template writes with ordinary tokens (``[INST]`` of Llama 2), but not a turn's end token.
(``sanitize_control_tokens`` of transformers changes how templates render the thoughts in earlier answers, and
raises where a control token is also a piece of the vocabulary.)
"""

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from sparring.core.chat_template import ASKED, SAID, ChatTemplate, Joints, TemplateOption, Tokenizer
from sparring.core.control_tokens import ControlTokens, rendered
from sparring.core.errors import InputError, shown
from sparring.core.messages import Message, Messages
from sparring.core.reasoning import opened_by


def most_characters_of_a_token(tokenizer: Any) -> int:
    """Return the maximum number of characters in a single token; very large if there is no maximum, because a
    row of unknown characters is one token."""
    unknown = "\U0010fffd" * 8
    if len(tokenizer(unknown, add_special_tokens=False).input_ids) < len(unknown):
        return 2**40
    return max(map(len, tokenizer.get_vocab()))


MAX_CACHED_ANSWERS = 100_000
"""The token ids of this many answers are cached."""
ENOUGH = 64
"""So many characters of a prompt's text decide on the ids that follow, if they have the prompt's ids."""
LINE_END = "\n"
"""With it, an answer to plain text ends: a base model goes on in the next line."""
_BEFORE = ("e", "\n", ".", "0", ":", "x")


class AnswerTokens:
    """Makes the ids of texts that follow other texts. Several threads may use it at once.

    ``turn_end`` is the id of the token with which the template ends an answer.
    """

    def __init__(self, control: ControlTokens, template: ChatTemplate, turn_end: int) -> None:
        self._control = control
        self._template = template
        self._turn_end = turn_end
        self._opening = self._named_opening()
        self._has_line_end = LINE_END in decoded(template.tokenizer, control.encode(f"e{LINE_END}"))
        self._answers: dict[tuple[str, str, int | None], list[int]] = {}

    def ids(self, before: str, answer: str, end_of_text: int | None) -> list[int]:
        """Return the ids of an answer and of the token that ends it; do not change the list.

        If a token of the whole reaches over the boundary, the ids of ``before`` stay as they are, since the
        answer is drawn after them. The answer then has ids that it would have after another text.

        Args:
            before: the end of the prompt's text; control tokens in it have their new names.
            answer: the answer.
            end_of_text: the id of the token that ends an answer to plain text; ``None`` in a chat.
        """
        key = (before, answer, end_of_text)
        ids = self._answers.get(key)  # a batch holds the same few answers many times
        if ids is None:
            if end_of_text is None:
                ids = self._ended(before, self._said(answer), self._turn_end)
            elif answer.endswith(LINE_END) and self._has_line_end:
                ids = self.after(before, answer)
            else:
                ids = self._ended(before, answer, end_of_text)
            if len(self._answers) >= MAX_CACHED_ANSWERS:
                self._answers.clear()
            self._answers[key] = ids
        return ids

    def _ended(self, before: str, said: str, end: int) -> list[int]:
        name = self._control.name(end)
        ids = self.after(before, said + (name or ""))
        return ids if name is not None and ids and ids[-1] == end else [*ids, end]

    def after(self, before: str, text: str) -> list[int]:
        """Return the ids of a text after another, or after any other if a token reaches over the boundary."""
        ids = self._without(before, text)
        return self.continuing(text, before[-1:]) if ids is None else ids

    def continuing(self, text: str, *before: str) -> list[int]:
        """Return the ids of a text that continues another one, if possible one of ``before``."""
        for one in (*before, *_BEFORE):
            ids = self._without(one, text) if self._control.encode(one) else None
            if ids is not None:
                return ids
        return self._control.encode(text)

    def enough(self, before: str, ids: list[int]) -> str:
        """Return the end of a long text after a prompt's last control token, if its ids are the last ones of
        ``ids``; or else the whole text."""
        for space in islice(re.finditer(r"\s+", before[-2 * ENOUGH : -ENOUGH]), 4):
            for place in (space.end(), space.start()):
                short = before[place - min(2 * ENOUGH, len(before)) :]
                own = self._control.encode(short)
                if own and ids[-len(own) :] == own:
                    return short
        return before

    def _without(self, before: str, text: str) -> list[int] | None:
        """Return the ids of both without those of ``before``; ``None`` if these change before ``text``."""
        begun, whole = self._control.encode(before), self._control.encode(before + text)
        return whole[len(begun) :] if whole[: len(begun)] == begun else None

    def _said(self, answer: str) -> str:
        """Return an answer as the template writes it, between the beginning of a turn and its end."""
        own = self._control.named(self._control.with_breaks(answer, own=True))
        message: Message = {"role": "assistant", "content": answer}
        try:
            whole = rendered(self._control, self._template.whole, [ASKED, message])
        except InputError:
            return own
        if self._opening is None or not whole.startswith(self._opening):
            return own
        said, end = whole.removeprefix(self._opening), self._control.name(self._turn_end)
        said = said if end is None else said.partition(end)[0]
        return said if _letters(said) == _letters(own) else own

    def _named_opening(self) -> str | None:
        """Return the text of a short conversation up to an answer; ``None`` if the template rejects it."""
        try:
            return rendered(self._control, self._template.begun, [ASKED])
        except InputError:
            return None


def _letters(text: str) -> str:
    return "".join(text.split())


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
    """The only place where messages, and answers that were not sampled, become token ids.

    Several threads may use it at once. ``joints`` are ``None`` if what the template writes after an answer
    depends on what came before it; every prompt is then tokenised from its text. ``stop_token_ids`` are the
    token with which the template ends an assistant's turn, the end-of-text token, and the configured ones.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_name: str,
        stop_token_ids: Iterable[int] = (),
        options: Mapping[str, TemplateOption] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_name = model_name
        self._template = ChatTemplate(tokenizer, model_name, options)
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
        """Return the token ids of a chat prompt, in which answers have their ``token_ids``. A single message
        of role ``text`` is encoded without a template, or is its ``token_ids``.

        Equal prompts without such answers return the same list object: do not modify it. An InputError is
        raised if the template rejects the messages or they contain an unpaired surrogate.
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
        the token with which the template ends a turn; white space that the template adds or strips counts,
        thoughts that it writes or leaves out do not. After plain text, the answer continues the text; it ends
        with its line feed if it has one at its end and the tokenizer keeps it, and else with the end-of-text
        token.

        The ids of the prompt stay as :meth:`render` gives them, also where a token of the whole text would
        reach over the boundary. The answer then has the ids of a text that continues another one.
        """
        plain = _is_plain_text(prompt)
        end = self.tokenizer.eos_token_id if plain else None
        return list(self._answers.ids(self._tail(prompt), _whole(text), end))

    def decode(self, ids: list[int]) -> str:
        """Return the text of ``ids``, without special tokens and with all spaces unchanged."""
        return decoded(self.tokenizer, ids)

    def notes(self) -> list[str]:
        """Return lines for the user: if later prompts tokenise answers again, and if they hold a date."""
        notes = []
        if self.joints is None and self._template.source:
            notes.append(
                f"the chat template of {self.model_name} cannot be continued after an answer, so later "
                "prompts tokenise the conversation again"
            )
        if self._begins_a_thought():
            notes.append(
                f"the chat template of {self.model_name} begins every answer inside a thought, which magnet, "
                "all_actions and NashConv do not expect; for these switch it off, as in "
                "model.template_options = {enable_thinking = false}"
            )
        if self._template.has_date:
            notes.append(
                f"the chat template of {self.model_name} writes today's date into prompts, so a run that is "
                "repeated or resumed on another day has other prompts; write a date into the template to "
                "repeat it exactly"
            )
        return notes

    def _begins_a_thought(self) -> bool:
        try:
            return bool(self._template.source) and opened_by(self._template.begun([ASKED])) is not None
        except InputError:
            return False

    def spelled_control_tokens(self, text: str) -> int:
        """Count the control tokens that an answer spells; its tags for thoughts and tools do not count."""
        return self._control.spelled(text)

    def _tokenised(self, messages: Messages, *, after_answer: bool = False) -> list[int]:
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
        counts only if it is a known one."""
        for text in samples:
            _, said, rest = text.rpartition(SAID["content"])
            end = self._control.first(rest) if said else None
            if end is not None and (end in known or ASKED["content"] not in rest):
                return end
        return known[0]


def configured_stops(eos_token_id: object, model_name: str) -> list[int]:
    """Return the tokens that end an answer, of a configuration's id, list of ids, or ``None``; raise an
    InputError for anything else."""
    listed = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    given = [one for one in listed if one is not None]
    numbers = [one for one in given if isinstance(one, int) and not isinstance(one, bool)]
    if len(numbers) < len(given):
        problem = f"the generation configuration of {model_name} has the eos_token_id {shown(eos_token_id)}"
        raise InputError("model", problem, "Write a token's id, or a list of them.")
    return numbers


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of token ids, without special tokens and with all spaces unchanged."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _is_plain_text(messages: Messages) -> bool:
    return len(messages) == 1 and messages[0]["role"] == "text"


def _whole(text: str) -> str:
    """Return the text unchanged; raise an InputError if it contains an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"they contain {text[error.start]!r}, which is an unpaired surrogate"
        raise InputError("messages", problem, "Send whole characters.") from error
    return text
