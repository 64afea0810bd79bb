"""The parameters of requests that this server does not have, with the values that change nothing here.

A request may hold what the server honours (the fields of its class), what is listed here with such a value,
and nothing else: a parameter that is ignored silently would give another answer than its sender believes.
A null is nowhere a value: clients that send all their fields send it for those that are not set.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from selfplay.inference.server_schema import ApiError

WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "safety_identifier", "service_tier", "request_id", "priority", "rid"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_salt"),
        "parallel_tool_calls",  # there are no tools
        "moderation",
    }
)
"""Parameters that never change an answer of this server, whatever their value is."""

_OFF = (False,)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": ([], ["text"]),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": _OFF,
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM
    "add_generation_prompt": (True,),
    "add_special_tokens": _OFF,
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": ("",),
    "chat_template_kwargs": ({},),
    "continue_final_message": _OFF,
    "detokenize": (True,),
    "documents": ([],),
    "echo": _OFF,
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": ("",),
    "guided_json": ({},),
    "guided_regex": ("",),
    "guided_whitespace_pattern": ("",),
    "ignore_eos": _OFF,
    "include_reasoning": (True,),
    "include_stop_str_in_output": _OFF,
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": ({},),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": _OFF,
    "vllm_xargs": ({},),
    # SGLang
    "custom_logit_processor": (),
    "custom_params": ({},),
    "ebnf": ("",),
    "json_schema": ("",),
    "lora_path": (),
    "no_stop_trim": _OFF,
    "regex": ("",),
    "return_hidden_states": _OFF,
    "sampling_seed": (),
    "separate_reasoning": (True,),
    "session_params": ({},),
    "stop_regex": ("", []),
    "stream_reasoning": (True,),
    # others
    "dry_multiplier": (0,),
    "enable_thinking": (),
    "mirostat": (0,),
    "no_repeat_ngram_size": (0,),
    "thinking": (),
    "top_a": (0,),
    "typical_p": (1,),
}
"""Parameters that would change an answer, with the values that do not."""

MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "prefix": _OFF,
    "reasoning": ("",),
    "reasoning_content": ("",),
    "reasoning_details": ([],),
    "refusal": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""Fields of a message, as :data:`NEUTRAL`."""

PART_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"annotations": ([],)}
"""Fields of a text part, as :data:`NEUTRAL`."""

WITHOUT_EFFECT_IN_MESSAGES = frozenset({"cache_control"})
"""Fields of messages and text parts that never change an answer."""

_NO_TOOLS = "this server has no tools"
_REASONS = {
    **dict.fromkeys(("tools", "tool_choice", "tool_calls", "tool_call_id"), _NO_TOOLS),
    **dict.fromkeys(("functions", "function_call"), _NO_TOOLS),
    "response_format": "this server does not constrain answers",
    "reasoning_content": "this server puts no reasoning into prompts",
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
    """Refuse fields that are not honoured, unless their values change nothing.

    Args:
        extra: the fields that are not honoured, with their values.
        known: the fields that are.
        neutral: what else there may be, with values that change nothing.
        without_effect: what there may be with any value.
        where: what precedes the name of a field in an error, such as ``messages.1.``.

    Raises:
        ApiError: a field is unknown, or would change the answer.
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
