"""A tokenizer from the metadata of a GGUF file, and the metadata of a tokenizer.

A file names the way in which a byte-level vocabulary splits text (``tokenizer.ggml.pre``) but does not
contain it; the splits here are those of the models' own ``tokenizer.json``. SentencePiece vocabularies have
scores in place of merges.
"""

import json
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from sparring.core import InputError
from sparring.learn.gguf.architectures import USE_OWN

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""GGUF's types of tokens."""
SPACE = "\u2581"
MODEL, PRE, PREFIX = "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.add_space_prefix"
TOKENS, TYPES, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"
SCORES, ADD_BOS = "tokenizer.ggml.scores", "tokenizer.ggml.add_bos_token"
TEMPLATE, END_OF_TURN = "tokenizer.chat_template", "tokenizer.ggml.eot_token_id"
NAMED = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
"""transformers' names of special tokens, and GGUF's of their ids."""
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by(pattern: str) -> pre_tokenizers.PreTokenizer:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), whole])


_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
LLAMA3 = "llama-bpe"
SPLITS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTES]),
    LLAMA3: _by(_LETTERS + r"\p{N}{1,3}" + _REST),
    "qwen2": _by(_LETTERS + r"\p{N}" + _REST),
}
"""How byte-level vocabularies split text, by llama.cpp's names."""
OTHER_NAMES = {"llama3": LLAMA3, "llama-v3": LLAMA3, "deepseek-r1-qwen": "qwen2"}


def check_vocabulary(metadata: dict[str, Any], where: str) -> None:
    """Raise an InputError if there is no tokenizer in the metadata that can be converted."""
    kind, split = metadata.get(MODEL), metadata.get(PRE)
    tokens = metadata.get(TOKENS)
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        problem = f"{where} has the tokenizer {ascii(kind)[:60]}, which sparring cannot convert"
        raise InputError("model", problem, USE_OWN)
    types = metadata.get(TYPES, np.full(len(tokens), NORMAL))
    joins = any(len(token) > 1 and one == NORMAL for token, one in zip(tokens, types, strict=False))
    needed = SCORES if kind == "llama" else MERGES
    if (joins and needed not in metadata) or len(types) != len(tokens):
        raise InputError("model", f"{where} has only a part of its tokenizer", "Download it again.")
    if kind == "gpt2" and _split_of(split) is None:
        problem = f"{where} splits text like {ascii(split)[:60]}, which sparring cannot convert"
        raise InputError("model", problem, USE_OWN)
    for key in (*NAMED.values(), END_OF_TURN):
        if not (type(metadata.get(key, 0)) is int and 0 <= metadata.get(key, 0) < len(tokens)):
            raise InputError("model", f"{where} has an impossible {key}", "Download it again.")


def _split_of(name: object) -> str | None:
    known = OTHER_NAMES.get(name, name) if isinstance(name, str) else None
    return known if known in SPLITS else None


def tokenizer_of(metadata: dict[str, Any], template: str | None = None) -> Any:
    """Return transformers' tokenizer of metadata that were checked; ``template`` replaces its chat
    template."""
    from transformers import PreTrainedTokenizerFast

    tokens = metadata[TOKENS]
    kinds = [int(kind) for kind in metadata.get(TYPES, [NORMAL] * len(tokens))]
    is_bytes = metadata[MODEL] == "gpt2"
    named = {name: tokens[metadata[key]] for name, key in NAMED.items() if key in metadata}
    backend = _byte_level(metadata) if is_bytes else _sentencepiece(metadata, kinds, named.get("unk_token"))
    for kind in (CONTROL, USER_DEFINED):
        found = [token for token, one in zip(tokens, kinds, strict=True) if one == kind and token]
        added = [AddedToken(token, normalized=False, special=kind == CONTROL) for token in found]
        (backend.add_special_tokens if kind == CONTROL else backend.add_tokens)(added)
    begins = metadata.get(ADD_BOS, not is_bytes or _split_of(metadata[PRE]) == LLAMA3)
    if begins and "bos_token" in named:
        first = named["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokens.index(first))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = metadata.get(TEMPLATE) if template is None else template
    return tokenizer


def _byte_level(metadata: dict[str, Any]) -> Tokenizer:
    split = _split_of(metadata[PRE])
    assert split is not None, "it was checked"
    vocabulary = {token: number for number, token in enumerate(metadata[TOKENS])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(MERGES, [])]
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == LLAMA3))
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = SPLITS[split]
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: dict[str, Any], kinds: list[int], unknown: str | None) -> Tokenizer:
    tokens = [  # what the user defined is found before spaces are replaced
        token if kind == USER_DEFINED else token.replace(" ", SPACE)
        for token, kind in zip(metadata[TOKENS], kinds, strict=True)
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores = {token: float(score) for token, score in zip(tokens, metadata[SCORES], strict=True)}
    model = models.BPE(vocabulary, _merges(scores), unk_token=unknown, byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    spaces: normalizers.Normalizer = normalizers.Replace(" ", SPACE)
    back: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(PREFIX, True):
        spaces = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        back.append(decoders.Strip(" ", 1, 0))
    backend.normalizer, backend.decoder = spaces, decoders.Sequence(back)
    return backend


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs whose union is a token, the best token first."""
    found = [
        (-score, token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in scores and token[cut:] in scores
    ]
    found.sort(key=lambda merge: merge[0])
    return [(left, right) for _, left, right in found]


def metadata_of_tokenizer(tokenizer: Any, size: int, where: str) -> dict[str, Any]:
    """Return the metadata of a tokenizer for a vocabulary of ``size``.

    Raises:
        InputError: it splits text as no vocabulary does that sparring knows.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        raise _unknown(where, model["type"])
    if any(added[flag] for added in content["added_tokens"] for flag in ("lstrip", "rstrip", "single_word")):
        raise _unknown(where, "added tokens that take spaces")
    tokens, kinds = _tokens(tokenizer, content, size)
    merges = [tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) for one in model["merges"]]
    found: dict[str, Any] = {TOKENS: tokens, TYPES: kinds}
    if model.get("byte_fallback"):
        ranks: dict[str, int] = {}
        for rank, (left, right) in enumerate(merges):
            ranks.setdefault(left + right, rank)
        found |= {MODEL: "llama", PRE: "default", PREFIX: _has_prefix(content, where)}
        found[SCORES] = [float(-ranks.get(token, len(merges))) for token in tokens]
    else:
        found |= {MODEL: "gpt2", PRE: _name_of_split(content, where)}
        found[MERGES] = [" ".join(merge) for merge in merges]
    for name, key in NAMED.items():
        if getattr(tokenizer, f"{name}_id") is not None:
            found[key] = int(getattr(tokenizer, f"{name}_id"))
    found[ADD_BOS] = (
        tokenizer.bos_token_id is not None and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    )
    if isinstance(tokenizer.chat_template, str):
        found[TEMPLATE] = tokenizer.chat_template
    return found


def _tokens(tokenizer: Any, content: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return the tokens by id and their types; ids without a token get a name of their own."""
    tokens, kinds = [f"[PAD{number}]" for number in range(size)], [UNUSED] * size
    for token, number in tokenizer.get_vocab().items():
        if number < size:
            tokens[number], kinds[number] = token, NORMAL
            if content["model"].get("byte_fallback") and len(token) == 6 and token.startswith("<0x"):
                kinds[number] = BYTE
    for added in content["added_tokens"]:
        if added["id"] < size:
            kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
            if not added["special"]:
                tokens[added["id"]] = added["content"].replace(SPACE, " ")
    if tokenizer.unk_token_id is not None and content["model"].get("byte_fallback"):
        kinds[tokenizer.unk_token_id] = UNKNOWN
    return tokens, kinds


def _has_prefix(content: dict[str, Any], where: str) -> bool:
    """Return whether a SentencePiece vocabulary writes a space before a text."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    normalizer = content["normalizer"]
    if normalizer not in (replace, {"type": "Sequence", "normalizers": [prepend, replace]}):
        raise _unknown(where, (normalizer or content["pre_tokenizer"] or {"type": None})["type"])
    return bool(normalizer != replace)


def _name_of_split(content: dict[str, Any], where: str) -> str:
    split = content["pre_tokenizer"]
    if content["normalizer"] not in (None, {"type": "NFC"}):
        raise _unknown(where, content["normalizer"]["type"])
    whole_words = bool(content["model"].get("ignore_merges"))
    for name, known in SPLITS.items():
        if whole_words == (name == LLAMA3) and _essence(split) == _essence(json.loads(known.__getstate__())):
            return name
    raise _unknown(where, None if split is None else split["type"])


def _essence(split: Any) -> Any:
    """Return what decides on tokens: not where a token begins and ends in the text."""
    if isinstance(split, dict):
        return {key: _essence(one) for key, one in split.items() if key != "trim_offsets"}
    return [_essence(one) for one in split] if isinstance(split, list) else split


def _unknown(where: str, kind: object) -> InputError:
    problem = f"the tokenizer of {where} splits text in a way of its own ({kind}), which GGUF has no name for"
    return InputError("--gguf", problem, "Leave it out, and convert the model with llama.cpp's script.")
