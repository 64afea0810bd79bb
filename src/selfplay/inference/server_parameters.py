"""The parameters of requests that this server does not have, with the values that change nothing here.

A request may hold what the server honours (the fields of its class), what is listed here with such a value,
and nothing else: a parameter that is ignored silently would give another answer than its sender believes.
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

_OFF = (None, False)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (None,),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "modalities": (None, [], ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "store": _OFF,
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    # vLLM
    "add_generation_prompt": (None, True),
    "add_special_tokens": _OFF,
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "chat_template": (None, ""),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": _OFF,
    "detokenize": (None, True),
    "documents": (None, []),
    "echo": _OFF,
    "guided_choice": (None, []),
    "guided_decoding_backend": (None,),
    "guided_grammar": (None, ""),
    "guided_json": (None, {}),
    "guided_regex": (None, ""),
    "guided_whitespace_pattern": (None, ""),
    "ignore_eos": _OFF,
    "include_reasoning": (None, True),
    "include_stop_str_in_output": _OFF,
    "kv_transfer_params": (None, {}),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "min_tokens": (None, 0),
    "mm_processor_kwargs": (None, {}),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "structured_outputs": (None, {}),
    "thinking_token_budget": (None,),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": _OFF,
    "vllm_xargs": (None, {}),
    # SGLang
    "custom_logit_processor": (None,),
    "custom_params": (None, {}),
    "ebnf": (None, ""),
    "json_schema": (None, ""),
    "lora_path": (None,),
    "no_stop_trim": _OFF,
    "regex": (None, ""),
    "return_hidden_states": _OFF,
    "sampling_seed": (None,),
    "separate_reasoning": (None, True),
    "session_params": (None, {}),
    "stop_regex": (None, "", []),
    "stream_reasoning": (None, True),
    # others
    "dry_multiplier": (None, 0),
    "enable_thinking": (None,),
    "mirostat": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "thinking": (None,),
    "top_a": (None, 0),
    "typical_p": (None, 1),
}
"""Parameters that would change an answer, with the values that do not."""

MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "prefix": _OFF,
    "reasoning": (None, ""),
    "reasoning_content": (None, ""),
    "reasoning_details": (None, []),
    "refusal": (None, ""),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
"""Fields of a message, as :data:`NEUTRAL`."""

PART_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"annotations": (None, []), "cache_control": (None,)}
"""Fields of a text part, as :data:`NEUTRAL`."""

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
    *,
    where: str = "",
) -> None:
    """Refuse fields that are not honoured, unless their values change nothing.

    Args:
        extra: the fields that are not honoured, with their values.
        known: the fields that are.
        neutral: what else there may be, with values that change nothing.
        where: what precedes the name of a field in an error, such as ``messages.1.``.

    Raises:
        ApiError: a field is unknown, or would change the answer.
    """
    for name, value in extra.items():
        path = f"{where}{name}"
        if name in neutral:
            # 0 is not False: a flag that is a number is as wrong as one that is a word.
            if not any(
                value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral[name]
            ):
                reason = _REASONS.get(name, f"this server cannot do that (got {value!r:.100})")
                raise ApiError(400, f"{path}: {reason}. Leave it out", param=path, code="unsupported_value")
        elif neutral is not NEUTRAL or name not in WITHOUT_EFFECT:
            there = [*known, *neutral, *(WITHOUT_EFFECT if neutral is NEUTRAL else ())]
            close = difflib.get_close_matches(name[:64], there, 1, _CLOSE)
            fix = f"Did you mean {close[0]}?" if close else "Leave it out"
            raise ApiError(
                400,
                f"{path[:100]}: this server does not know this parameter. {fix}",
                param=path[:100],
                code="unknown_parameter",
            )
