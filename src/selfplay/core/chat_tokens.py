"""ChatTokens: converts messages to token ids so that no text in a message becomes a control token.

An answer that comes with its ``token_ids`` is not tokenised again: a prompt is the ids of the conversation's
beginning, the ids of the answer as they were drawn, and the ids of what the template writes after an answer.

A chat template marks turns with control tokens (``<|im_end|>``), and a model can spell one with ordinary
tokens. Tokenised as usual, that text would become the real control token in the next prompt, so its author
could close its own turn and write the next speaker's. Here only the template itself writes control tokens:

1. A break is inserted into contents after every character that begins a control token.
2. The template renders the contents. Control tokens in its output are its own and are given new names.
3. The breaks are removed, and a tokenizer that knows control tokens only by their new names encodes the text.

For contents that spell no control token, the result equals the tokenizer's own ids. Any text can spell the
markup that a template writes with ordinary tokens (``[INST]`` of Llama 2), but not a turn's end token.

The latest versions of transformers have ``sanitize_control_tokens`` for this. It changes how templates render
the thoughts in earlier answers, and raises where a control token is also a piece of the vocabulary.
"""

import re
import threading
from collections.abc import Iterable
from itertools import pairwise

from selfplay.core.control_tokens import ControlTokens, Tokenizer
from selfplay.core.errors import InputError, first_line
from selfplay.core.joints import ASKED, RULES, SAID, Joints
from selfplay.core.messages import Message, Messages

MAX_RENDERED_TOKENS = 2_000_000
"""Rendered prompts are cached until they have this many tokens in total."""
MAX_CACHED_ANSWERS = 100_000
"""The token ids of this many answers are cached."""
Key = tuple[bool | tuple[str, str], ...]
"""Whether messages follow an answer; then their roles and contents."""
_ROLE = re.compile(r"[\w-]+")
_SAMPLES: tuple[Messages, ...] = ([ASKED, SAID], [ASKED, SAID, ASKED], [RULES, ASKED])
"""Conversations that show the text a template writes around contents."""


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
        samples = self._samples()
        self._control = ControlTokens(tokenizer, model_name, samples)
        known = [tokenizer.eos_token_id, *stop_token_ids]
        self.stop_token_ids = list(dict.fromkeys([self._turn_end(samples, known), *known]))
        self.joints = Joints.of(self._templated) if samples else None
        self._answers: dict[str, list[int]] = {}
        self._rendered: dict[Key, list[int]] = {}
        self._rendered_tokens = 0
        self._caching = threading.Lock()

    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a chat prompt. A single message of role ``text`` is encoded without a
        template. Answers that have ``token_ids`` are in the prompt with these.

        Equal prompts without such answers return the same list object: do not modify it.

        Raises:
            InputError: the tokenizer has no chat template, its template rejects these messages (for example,
                because of an unknown role), or they contain an unpaired surrogate.
        """
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

        After a chat it is the token with which the template ends an assistant's turn, and after plain text
        the tokenizer's end-of-text token: a base model rarely emits the markup of a template that it was not
        trained on.
        """
        ids = self._answers.get(text)  # a batch holds the same few answers many times
        if ids is None:
            if len(self._answers) >= MAX_CACHED_ANSWERS:
                self._answers.clear()
            ids = self._answers[text] = self.encode(text)
        end = self.tokenizer.eos_token_id if _is_plain_text(prompt) else self.stop_token_ids[0]
        return [*ids, end]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ``ids``; see :func:`decoded`."""
        return decoded(self.tokenizer, ids)

    def note(self) -> str | None:
        """Return a line for the user if answers are tokenised again in later prompts."""
        if self.joints is not None or self.tokenizer.chat_template is None:
            return None
        return (
            f"the chat template of {self.model_name} cannot be continued after an answer, so later prompts "
            "tokenise the conversation again"
        )

    def spelled_control_tokens(self, text: str) -> int:
        """Count the control tokens that an answer spells; its tags for thoughts and tools do not count."""
        return self._control.spelled(text)

    def _tokenised(self, messages: Messages, *, after_answer: bool = False) -> list[int]:
        """Return the ids of messages, as the beginning of a conversation or after an answer."""
        key: Key = (after_answer, *((message["role"], message["content"]) for message in messages))
        prompt = self._rendered.get(key)
        if prompt is None:
            prompt = self._cached(key, self._render(messages, after_answer=after_answer))
        return prompt

    def _after(self, said: list[int], messages: Messages) -> list[int]:
        """Return the ids between an answer and the next one, without the end of turn that was drawn."""
        ids = self._tokenised(messages, after_answer=True)
        if not said or said[-1] not in self.stop_token_ids or self.stop_token_ids[0] not in ids:
            return ids
        end = ids.index(self.stop_token_ids[0])
        return ids if self.decode(ids[:end]).strip() else ids[end + 1 :]

    def _cached(self, key: Key, prompt: list[int]) -> list[int]:
        """Cache a rendered prompt, unless another thread was faster, and return the cached list."""
        with self._caching:
            if self._rendered_tokens > MAX_RENDERED_TOKENS:
                self._rendered.clear()
                self._rendered_tokens = 0
            if key not in self._rendered:
                self._rendered[key] = prompt
                self._rendered_tokens += len(prompt)
            return self._rendered[key]

    def _render(self, messages: Messages, *, after_answer: bool) -> list[int]:
        if _is_plain_text(messages):
            return self._control.encode(_whole(messages[0]["content"]), add_special_tokens=True)
        if self.tokenizer.chat_template is None:
            raise InputError(
                "model",
                f"{self.model_name} has no chat template",
                "Use a chat model, or the prompt template default, which is plain text.",
            )
        broken = [self._with_breaks(message) for message in messages]
        joints = self.joints if after_answer else None
        text = self._templated(broken) if joints is None else joints.after_answer(broken)
        return self._control.encode(self._control.named(text))

    def _with_breaks(self, message: Message) -> Message:
        role, content = message["role"], _whole(message["content"])
        if not _ROLE.fullmatch(role):  # templates may turn roles into control tokens
            raise InputError("messages", f"{role!r} is not a role", "Use roles such as user and assistant.")
        return {"role": role, "content": self._control.with_breaks(content, own=role == "assistant")}

    def _templated(self, messages: Messages, *, add_generation_prompt: bool = True) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=add_generation_prompt
                )
            )
        except Exception as error:  # a template is a program by the model's authors and may raise anything
            raise InputError(
                "messages",
                f"the chat template of {self.model_name} rejects them ({first_line(error)})",
                "Use roles that it knows, in an order that it accepts.",
            ) from error

    def _samples(self) -> list[str]:
        """Render the sample conversations that the template accepts."""
        if self.tokenizer.chat_template is None:
            return []
        samples = []
        for messages in _SAMPLES:
            try:
                samples.append(self._templated(messages, add_generation_prompt=messages[-1] is ASKED))
            except InputError:
                continue  # a caller that sends such messages gets the error
        return samples

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
