"""The bodies of requests for answers: OpenAI's format with some of vLLM's fields, and what is refused.

A request may hold what the server honours (the fields of its class), what is listed here with a value that
changes nothing, and nothing else: an ignored parameter would give another answer than its sender believes. A
null is nowhere a value.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from sparring.core import CallSettings, Message, Messages, derive_seed
from sparring.core.messages import said
from sparring.core.sampling import AS_LEARNED, MAX_PENALTY, MIN_PENALTY, Sampling
from sparring.engine.answering import AnswerOptions, Shaping
from sparring.engine.server_errors import ApiError

WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "safety_identifier", "service_tier", "request_id", "priority", "rid"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_salt"),
        "parallel_tool_calls",  # there are no tools
        "moderation",
    }
)
"""Parameters that never change an answer of this server, whatever their value is."""


def _all(values: tuple[Any, ...], names: str) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), values)


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **_all(
        (),
        "allowed_token_ids audio custom_logit_processor enable_thinking guided_decoding_backend "
        "lora_path prediction prompt_embeds prompt_logprobs sampling_seed thinking "
        "thinking_token_budget truncate_prompt_tokens web_search_options",
    ),
    **_all((1,), "best_of length_penalty typical_p"),
    **_all(
        (0,),
        "dry_multiplier frequency_penalty min_tokens mirostat no_repeat_ngram_size presence_penalty top_a",
    ),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    **_all(([],), "bad_words documents functions guided_choice logits_processors tools"),
    "modalities": ([], ["text"]),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    **_all(
        (False,),
        "add_special_tokens continue_final_message echo include_stop_str_in_output no_stop_trim "
        "return_hidden_states return_tokens_as_token_ids store use_beam_search",
    ),
    **_all(
        ("",),
        "chat_template ebnf guided_grammar guided_regex guided_whitespace_pattern json_schema regex suffix",
    ),
    "verbosity": ("medium",),
    **_all(
        (True,),
        "add_generation_prompt detokenize include_reasoning separate_reasoning skip_special_tokens "
        "spaces_between_special_tokens stream_reasoning",
    ),
    **_all(
        ({},),
        "chat_template_kwargs custom_params guided_json kv_transfer_params mm_processor_kwargs "
        "session_params structured_outputs vllm_xargs",
    ),
    "stop_regex": ("", []),
}
"""Parameters that would change an answer, with the values that do not."""

MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **_all((), "audio function_call name tool_call_id"),
    **_all(([],), "annotations reasoning_details tool_calls"),
    **_all(("",), "refusal"),
    "prefix": (False,),
}
"""Fields of a message, as :data:`NEUTRAL`."""

PART_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"annotations": ([],)}
"""Fields of a text part, as :data:`NEUTRAL`."""

WITHOUT_EFFECT_IN_MESSAGES = frozenset({"cache_control", "reasoning", "reasoning_content"})
"""Fields of messages and text parts that never change an answer. Clients send back the reasoning that they
got, and as at other servers it is in no later prompt, unless the ``token_ids`` are sent back too."""

_NO_TOOLS = "this server has no tools"
_REASONS = {
    **dict.fromkeys(("tools", "tool_choice", "tool_calls", "tool_call_id"), _NO_TOOLS),
    **dict.fromkeys(("functions", "function_call"), _NO_TOOLS),
    "response_format": "this server does not constrain answers",
    "name": "this server's prompts have no names of speakers",
}
_CLOSE = 0.75
"""How like a known name an unknown one must be to be taken for a misspelling, from 0 to 1."""


def check_extra(
    extra: Mapping[str, Any],
    known: Collection[str],
    neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL,
    without_effect: Collection[str] = WITHOUT_EFFECT,
    *,
    where: str = "",
) -> None:
    """Refuse fields that are not honoured, unless their values change nothing. Raises ApiError.

    ``known`` are the honoured fields; ``neutral`` has other possible fields with the values that change
    nothing, ``without_effect`` those that never do. ``where`` precedes a field's name in an error, such as
    ``messages.1.``.
    """
    for name, value in extra.items():
        if value is None or name in without_effect:
            continue
        path = f"{where}{name}"
        if name in neutral:
            # 0 is not False: a flag that is a number is as wrong as one that is a word.
            if not any(
                value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral[name]
            ):
                reason = _REASONS.get(name, f"this server cannot do that (got {value!r:.100})")
                raise ApiError(400, f"{path}: {reason}. Leave it out", param=path, code="unsupported_value")
        else:
            close = difflib.get_close_matches(name[:64], [*known, *neutral, *without_effect], 1, _CLOSE)
            fix = f"Did you mean {close[0]}?" if close else "Leave it out"
            raise ApiError(
                400,
                f"{path[:100]}: this server does not know this parameter. {fix}",
                param=path[:100],
                code="unknown_parameter",
            )


MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_LIKELIEST = 20
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1000
MAX_BIASES = 1024


def _listed(stop: Any) -> Any:
    given = [stop] if isinstance(stop, str) else ([] if stop is None else stop)
    return [one for one in given if one not in ("", None)] if isinstance(given, list) else given


Stop = Annotated[
    list[Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_listed),
]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(fail_fast=True)]


class StreamOptions(BaseModel):
    """Whether a stream has counts of tokens: at its end, and, as in vLLM, those so far in each chunk."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers, which changes no answer


class DrawParameters(BaseModel):
    """How tokens are drawn."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=MIN_PENALTY, le=MAX_PENALTY)
    logit_bias: dict[int, Bias] | None = Field(default=None, max_length=MAX_BIASES)
    stop: Stop = Field(default=[], validate_default=True)
    stop_token_ids: list[int] | None = Field(default=None, max_length=MAX_STOPS)
    ignore_eos: bool | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    seed: int | None = None

    def seeds(self) -> list[int | None]:
        """Return one seed for each choice: first the request's own seed, then seeds derived from it."""
        if self.seed is None:
            return [None] * (self.n or 1)
        return [self.seed, *(derive_seed(self.seed, "choice", i) for i in range(1, self.n or 1))]

    def drawn_by(self, own: CallSettings) -> Self:
        """Return the parameters with the model's own temperature and sampling where they leave one open."""
        given = {"temperature": own.temperature, **asdict(own.sampling or AS_LEARNED)}
        return self.model_copy(
            update={name: value for name, value in given.items() if getattr(self, name) is None}
        )

    def check(self, vocabulary_size: int, where: str = "") -> None:
        """Refuse what the server would otherwise ignore, and tokens that the model does not have. Raises
        ApiError."""
        extra = dict(self.model_extra or {})
        if type(extra.get("best_of")) is int and extra["best_of"] == self.n:
            del extra["best_of"]  # the best n of n are all of them
        check_extra(extra, type(self).model_fields, where=where)
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids or ():
                if not 0 <= token < vocabulary_size:
                    message = f"{where}{name}: {token} is not one of the {vocabulary_size} tokens"
                    raise ApiError(400, message, param=f"{where}{name}")

    def options_of(
        self, likeliest: int | None, as_drawn: bool, *, prompt_logprobs: bool = False
    ) -> AnswerOptions:
        """Return the engine's options for an answer."""
        sampling = Sampling(
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
        )
        shaping = Shaping(sampling, tuple(sorted((self.logit_bias or {}).items())))
        stops = tuple(self.stop_token_ids or ())
        return AnswerOptions(shaping, likeliest or 0, as_drawn, prompt_logprobs, stops, bool(self.ignore_eos))


class AnswerRequest(DrawParameters):
    """What the routes of OpenAI's format have in common."""

    model: str = Field(min_length=1)  # with a length, pydantic also rejects unpaired surrogates
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    def wants_usage(self) -> bool:
        """Return whether the stream ends with token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def wants_usage_so_far(self) -> bool:
        """Return whether each chunk of the stream has token counts too."""
        return self.wants_usage() and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def as_drawn(self) -> bool:
        """Whether log-probabilities are those of the draw, as whoever learns from the ids needs them."""
        return bool(self.return_token_ids)


class MessagePart(BaseModel):
    """A text part of a message's content, the only kind: the models read only text."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text"]
    text: str


def _parts(content: Any) -> Any:
    if not isinstance(content, str | list):
        raise ValueError(f"{content!r:.50} is not a text. Give a string or a list of text parts")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _said_by_no_tool(role: Any) -> Any:
    if role in ("tool", "function"):
        raise ValueError(f"{role}: this server has no tools. Leave the message out")
    return role


class RequestMessage(BaseModel):
    """A message of a chat. Role ``text`` is a whole prompt; ``token_ids`` are those of an earlier answer."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "text"], BeforeValidator(_said_by_no_tool)
    ]
    content: Annotated[list[MessagePart], Field(fail_fast=True), BeforeValidator(_parts)]
    token_ids: TokenIds | None = None

    def to_message(self, where: str) -> Message:
        """Return it in the engine's format. Raises ApiError: the server does not have what it asks for."""
        fields = type(self).model_fields
        check_extra(
            self.model_extra or {}, fields, MESSAGE_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=f"{where}."
        )
        for number, part in enumerate(self.content):
            place = f"{where}.content.{number}."
            known = type(part).model_fields
            check_extra(part.model_extra or {}, known, PART_NEUTRAL, WITHOUT_EFFECT_IN_MESSAGES, where=place)
        if self.token_ids is not None and self.role != "assistant":
            problem = f"{where}.token_ids: a message of role {self.role} was not drawn"
            raise ApiError(
                400, f"{problem}. Send them with assistant messages only", param=f"{where}.token_ids"
            )
        # ``developer`` is OpenAI's newer name for ``system``; chat templates do not have it.
        role = "system" if self.role == "developer" else self.role
        return said(role, "".join(part.text for part in self.content), self.token_ids)


_MESSAGES = TypeAdapter(Annotated[list[RequestMessage], Field(fail_fast=True)])


class ChatRequest(AnswerRequest):
    """Body of ``/v1/chat/completions``."""

    messages: list[Any] = Field(min_length=1)
    """Each is a :class:`RequestMessage`; they are checked only when their number fits."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    thinking_token_budget: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)

    def checked_messages(self) -> Messages:
        """Return the messages in the engine's format. Raises RequestValidationError, ApiError."""
        try:
            messages = _MESSAGES.validate_python(self.messages, from_attributes=True)
        except ValidationError as error:
            # Jobs at Tinker's API use this file without the server's packages.
            from fastapi.exceptions import RequestValidationError

            first = error.errors(include_url=False)[0]
            raise RequestValidationError([first | {"loc": ("body", "messages", *first["loc"])}]) from error
        return [one.to_message(f"messages.{number}") for number, one in enumerate(messages)]

    def limit(self) -> int | None:
        """Return the maximum number of tokens of an answer, if there is one."""
        return self.max_completion_tokens or self.max_tokens

    def options(self) -> AnswerOptions:
        """Return what is asked of an answer. Raises ApiError: ``top_logprobs`` has no ``logprobs``."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs. Set it to true", param="top_logprobs")
        return self.options_of(self.top_logprobs, self.as_drawn())


def _prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and type(prompt[0]) is int):
        prompt = [prompt]
    if not isinstance(prompt, list) or not 0 < len(prompt) <= MAX_PROMPTS:
        raise ValueError(f"give a text, a list of token ids, or a list of 1 to {MAX_PROMPTS} of these")
    for number, one in enumerate(prompt):
        ids = isinstance(one, list) and one and all(type(token) is int and token >= 0 for token in one)
        if not (ids or isinstance(one, str)):
            raise ValueError(f"number {number} is neither a text nor a list of token ids")
    return prompt


class CompletionRequest(AnswerRequest):
    """Body of ``/v1/completions``. Each prompt is a text or token ids."""

    prompt: Annotated[Any, BeforeValidator(_prompts)]
    max_tokens: int | None = Field(default=None, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)

    def options(self) -> AnswerOptions:
        """Return what is asked of an answer."""
        scored = self.max_tokens == 0 or (bool(self.echo) and self.logprobs is not None)
        return self.options_of(self.logprobs, self.as_drawn(), prompt_logprobs=scored)


class GenerateParameters(DrawParameters):
    """vLLM's sampling parameters. There is no text, so what would change only the text is accepted."""

    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class GenerateRequest(BaseModel):
    """Body of ``/inference/v1/generate``."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(min_length=1)
    token_ids: TokenIds = Field(min_length=1)
    sampling_params: GenerateParameters = GenerateParameters()
    stream: Literal[False] | None = None
