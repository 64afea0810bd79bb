"""ChatTokens: prompts to token ids and answers to text, for engines that do not hold the model themselves."""

from typing import Any

from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from selfplay.core import InputError, Messages

MAX_RENDERED_TOKENS = 2_000_000


class ChatTokens:
    """A model's tokenizer. Gives the ids that ``learning.PolicyModel`` gives, and keeps those of prompts.

    Args:
        model_name: a local directory or Hugging Face id.

    Raises:
        InputError: it has no tokenizer, or one without an end-of-sequence token.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.tokenizer = _load_tokenizer(model_name)
        self.stop_token_ids = _stop_token_ids(model_name, self.tokenizer)
        self._rendered: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._rendered_tokens = 0

    def render(self, messages: Messages) -> list[int]:
        """Token ids of a chat prompt; one message of role ``text`` is taken verbatim.

        The same prompt gives the same list again: do not change it.

        Raises:
            InputError: the tokenizer knows no chats, its chat template refuses these messages, they hold what
                is no character, or nothing is said.
        """
        key = tuple((message["role"], message["content"]) for message in messages)
        prompt = self._rendered.get(key)
        if prompt is None:
            prompt = self._render(messages)
            if not prompt:
                raise InputError("messages", "a prompt without tokens has no continuation", "Say something")
            if self._rendered_tokens > MAX_RENDERED_TOKENS:
                self._rendered.clear()
                self._rendered_tokens = 0
            self._rendered[key] = prompt
            self._rendered_tokens += len(prompt)
        return prompt

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` and nothing else."""
        return self._ids(text, add_special_tokens=False)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, with the stop token that ends it."""
        return [*self.encode(text), self.stop_token_ids[0]]

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _render(self, messages: Messages) -> list[int]:
        if len(messages) == 1 and messages[0]["role"] == "text":
            return self._ids(messages[0]["content"], add_special_tokens=True)
        if self.tokenizer.chat_template is None:
            raise InputError(
                "model",
                f"{self.model_name} has no chat template",
                "Use a model that can chat, or the prompt template default, which is plain text.",
            )
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InputError(
                "messages",
                f"the chat template of {self.model_name} refuses them ({error})",
                "Use roles, and an order of them, that it knows.",
            ) from error
        return self.encode(text)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"they hold {text[error.start]!r}, which is no character"
            raise InputError("messages", problem, "Send whole characters.") from error
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids)


def _load_tokenizer(model_name: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:
        raise InputError(
            "model", f"{model_name} has no usable tokenizer", "Add its tokenizer files."
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(
            "model", f"the tokenizer of {model_name} has no eos_token", "Answers must be able to end: set it."
        )
    return tokenizer


def _stop_token_ids(model_name: str, tokenizer: Any) -> list[int]:
    """The tokenizer's end of sequence first, then the generation configuration's, or the model's."""
    try:
        configured = GenerationConfig.from_pretrained(model_name).eos_token_id
    except OSError:
        configured = AutoConfig.from_pretrained(model_name, trust_remote_code=False).eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return list(dict.fromkeys(int(i) for i in [tokenizer.eos_token_id, *listed] if i is not None))
