"""Whether a model fits a run, as far as the files of its directory say, which are read without torch."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from sparring.core import InputError, Messages
from sparring.core.adapters import ALL_LINEAR
from sparring.core.chat_template import NO_TEMPLATE, check_options
from sparring.core.chat_tokens import LINE_END
from sparring.core.errors import NOT_JSON

_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
Call = tuple[Messages, int]
"""A prompt, and the most tokens of its answer."""


def check_model_fits(
    name: str,
    directory: Path,
    target_modules: Sequence[str],
    calls: Sequence[Call],
    max_context: int,
    template_options: Iterable[str] = (),
) -> list[str]:
    """Check that a model has a chat template with these options, the layers of an adapter, and room for
    prompts and answers.

    ``name`` is for errors; ``max_context`` is the run's own limit of prompt and answer. Returns notes.
    """
    check_template(name, _chat_template(directory), calls, template_options)
    _check_layers(directory, target_modules)
    return _check_context(directory, calls, max_context)


def check_template(
    name: str, template: str, calls: Sequence[Call], template_options: Iterable[str] = ()
) -> None:
    """Check that a model's chat template has these options, and that it has one if prompts are chats."""
    check_options(template, template_options, name)
    chats = [messages for messages, _ in calls if any(one["role"] != "text" for one in messages)]
    if chats and not template:
        raise InputError("model.name", f"{name} has no chat template, but the prompts are chats", NO_TEMPLATE)


def _chat_template(directory: Path) -> str:
    """Return the source of a model's chat templates; empty if it has none."""
    files = ("chat_template.jinja", "additional_chat_templates/*.jinja")
    sources = [
        one.read_text(encoding="utf-8", errors="replace") for file in files for one in directory.glob(file)
    ]
    given = _json(directory / "tokenizer_config.json").get("chat_template")
    return "\n".join([*sources, *([str(given)] if given else [])])


def _check_layers(directory: Path, target_modules: Sequence[str]) -> None:
    if "expert" in (directory / "config.json").read_text(encoding="utf-8"):
        return
    names: list[str] = []
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "np") as weights:
            names += list(weights.keys())
    layers = {name.rpartition(".")[0] for name in names if name.endswith(".weight")}
    if not layers:
        return
    lacking = [one for one in target_modules if not any(f".{layer}".endswith(f".{one}") for layer in layers)]
    if lacking and (set(target_modules) != {*ALL_LINEAR} or len(lacking) == len(target_modules)):
        repeated = sorted({layer.rpartition(".")[2] for layer in layers if any(map(str.isdigit, layer))})
        named = ", ".join(one for one in repeated if "norm" not in one)
        problem = f"{', '.join(lacking)}: no such layer in this model"
        raise InputError("lora.target_modules", problem, f"It has {named}")


def _check_context(directory: Path, calls: Sequence[Call], max_context: int) -> list[str]:
    config = _json(directory / "config.json")
    text = config.get("text_config")
    both = config | (text if isinstance(text, dict) else {})
    own = next((both[name] for name in _CONTEXT if isinstance(both.get(name), int)), max_context)
    limit = min(own, max_context)
    tokenizer = _tokenizer(directory)
    if not calls or tokenizer is None:
        return []
    contents = {one["content"] for messages, _ in calls for one in messages}  # a conversation repeats them
    tokens = {text: len(tokenizer.encode(text, add_special_tokens=False).ids) for text in contents}
    lengths = [sum(tokens[one["content"]] for one in messages) + answer for messages, answer in calls]
    problem = "tokens of a prompt and its longest answer exceed the context of"
    if min(lengths) > limit:
        fix = "Choose shorter answers or prompts, or a model with a longer context"
        raise InputError("inference.max_tokens", f"{min(lengths)} {problem} {limit}", fix)
    return [f"{max(lengths)} {problem} {limit}, later in an episode"] if max(lengths) > limit else []


def answer_tokens(directory: Path, answers: Iterable[str]) -> dict[str, int]:
    """Return the number of tokens of each answer, the one that ends it included.

    Where a template writes a space before an answer, there may be one or two more. There is none without a
    tokenizer's file.
    """
    tokenizer = _tokenizer(directory)
    if tokenizer is None:
        return {}

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return {
        answer: tokens(f"\n{answer}") - tokens("\n") + (not answer.endswith(LINE_END)) for answer in answers
    }


@lru_cache(maxsize=1)
def _tokenizer(directory: Path) -> Any:
    """Return the tokenizer in a directory; ``None`` without its file."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, *NOT_JSON):
        return {}
    return found if isinstance(found, dict) else {}
