"""The tokenizer of a model whose weights are not in this process."""

from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from selfplay.core import InputError
from selfplay.core.chat_tokens import ChatTokens, configured_stops


def load_chat_tokens(model_name: str) -> ChatTokens:
    """Load the tokenizer of a model, a local directory or Hugging Face id, as ``learning.PolicyModel`` does.

    Raises:
        InputError: the model has no tokenizer, or its tokenizer has no end-of-sequence token; see also
            ControlTokens.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:
        raise InputError(
            "model", f"{model_name} has no usable tokenizer", "Add its tokenizer files."
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(
            "model", f"the tokenizer of {model_name} has no eos_token", "Set it, so that answers can end."
        )
    return ChatTokens(tokenizer, model_name, configured_stops(_end(model_name), model_name))


def _end(model_name: str) -> Any:
    """Return the end-of-sequence tokens of the generation configuration, or else of the model's."""
    try:
        return GenerationConfig.from_pretrained(model_name).eos_token_id
    except OSError:
        return AutoConfig.from_pretrained(model_name, trust_remote_code=False).eos_token_id
