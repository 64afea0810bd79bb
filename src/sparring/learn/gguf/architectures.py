"""What GGUF and transformers call the same things: settings, tensors and the order of their rows.

Only what is listed here is converted, in either direction: a setting that a model has and the other format
would not have is an error, not a difference in what the model computes.
"""

from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH
from gguf.tensor_mapping import get_tensor_name_map

from sparring.core import InputError


@dataclass(frozen=True)
class Architecture:
    """An architecture by GGUF's name and transformers'.

    Attributes:
        permutes: whether the rows of query and key are interleaved, as llama.cpp's rotation wants them.
        adds_one: whether norms are stored with the 1 that the model adds to them.
        head_size: whether the configuration names it; otherwise it is hidden size by heads.
        windows: whether five of six layers attend to a window only.
    """

    name: str
    model_type: str
    arch: MODEL_ARCH
    permutes: bool = False
    adds_one: bool = False
    head_size: bool = True
    windows: bool = False


ARCHITECTURES = (
    Architecture("llama", "llama", MODEL_ARCH.LLAMA, permutes=True),
    Architecture("qwen2", "qwen2", MODEL_ARCH.QWEN2, head_size=False),
    Architecture("qwen3", "qwen3", MODEL_ARCH.QWEN3),
    Architecture("gemma3", "gemma3_text", MODEL_ARCH.GEMMA3, adds_one=True, windows=True),
)
SETTINGS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""GGUF's settings of every architecture, without its name before them, and transformers' names."""
HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
FREQUENCY, WINDOWED_FREQUENCY = "rope.freq_base", "rope.freq_base_swa"
SCALING, SCALING_FACTOR, FINETUNED = "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned"
WINDOW, WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
EVERY = 6
"""Every sixth layer of Gemma 3 attends to all tokens."""
GEMMA_27B_LAYERS = 62
"""Gemma 3 27B divides queries by the square root of hidden size by heads; GGUF does not say so."""
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor with the factors of Llama 3.1's rotation, one for each pair of dimensions."""
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The constants of Llama 3.1 and later, from which the factors come."""
USE_OWN = "Name the model's Hugging Face directory or id instead."


def architecture_of(name: object, where: str) -> Architecture:
    """Return the architecture of GGUF's name; an InputError says which there are."""
    return _found(name, {one.name: one for one in ARCHITECTURES}, where)


def architecture_of_config(model_type: object, where: str) -> Architecture:
    """Return the architecture of transformers' name; an InputError says which there are."""
    return _found(model_type, {one.model_type: one for one in ARCHITECTURES}, where)


def _found(name: object, known: dict[str, Architecture], where: str) -> Architecture:
    if not isinstance(name, str) or name not in known:
        problem = f"{where} has the architecture {ascii(name)[:60]}, which sparring cannot convert"
        raise InputError("model", problem, f"It converts {', '.join(known)}; others need safetensors.")
    return known[name]


def config_of(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]], where: str) -> dict[str, Any]:
    """Return the fields of transformers' configuration, from the metadata and the tensors' shapes.

    Raises:
        InputError: a setting is missing, or one is there that sparring does not know.
    """
    architecture = architecture_of(metadata.get("general.architecture"), where)
    prefix = f"{architecture.name}."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    missing = next((key for key in SETTINGS if key not in given and key != "attention.head_count_kv"), None)
    if missing is not None or "token_embd.weight" not in tensors:
        raise InputError("model", f"{where} has no {prefix}{missing or 'embeddings'}", "Download it again.")
    given.setdefault("attention.head_count_kv", given["attention.head_count"])
    fields = {theirs: given.pop(ours) for ours, theirs in SETTINGS.items()}
    fields["vocab_size"] = tensors["token_embd.weight"][0]
    fields["tie_word_embeddings"] = "output.weight" not in tensors
    given.pop("vocab_size", None)
    sizes = {given.pop(key) for key in HEAD_SIZES if key in given}
    by_heads = fields["hidden_size"] // fields["num_attention_heads"]
    head_size = sizes.pop() if sizes else by_heads
    if sizes or (not architecture.head_size and head_size != by_heads):
        raise InputError(
            "model", f"{where} has heads of several sizes, which sparring cannot convert", USE_OWN
        )
    if architecture.head_size:
        fields["head_dim"] = head_size
    if architecture.model_type in ("llama", "qwen3"):
        fields["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if architecture.model_type == "llama":
        fields["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    rotation = _rotation(given, where)
    if architecture.windows:
        windowed = {"rope_type": "default", "rope_theta": given.pop(WINDOWED_FREQUENCY, 10_000.0)}
        fields["rope_parameters"] = {"full_attention": rotation, "sliding_attention": windowed}
        fields["sliding_window"] = given.pop(WINDOW, None)
        is_27b = fields["num_hidden_layers"] == GEMMA_27B_LAYERS
        fields["query_pre_attn_scalar"] = by_heads if is_27b else head_size
        if given.get(WINDOW_PATTERN) == EVERY:
            del given[WINDOW_PATTERN]
    else:
        fields["rope_parameters"] = rotation
    if given:
        key, value = next(iter(given.items()))
        problem = f"{where} sets {prefix}{key:.100} to {ascii(value)[:60]}, which sparring cannot convert"
        raise InputError("model", problem, USE_OWN)
    return fields


def _rotation(given: dict[str, Any], where: str) -> dict[str, Any]:
    """Take the settings of the rotation out of ``given``."""
    kind, factor = given.pop(SCALING, "none"), given.pop(SCALING_FACTOR, 1.0)
    given.pop(FINETUNED, None)
    rotation = {"rope_type": "default", "rope_theta": given.pop(FREQUENCY, 10_000.0)}
    if kind == "linear":
        return rotation | {"rope_type": "linear", "factor": factor}
    if kind != "none":
        problem = f"{where} sets {SCALING} to {ascii(kind)[:60]}, which sparring cannot convert"
        raise InputError("model", problem, USE_OWN)
    return rotation


def with_factors(fields: dict[str, Any], factors_N: np.ndarray, where: str) -> dict[str, Any]:
    """Return the configuration of a file with Llama 3.1's factors of the rotation.

    The file has only the factors, so they are compared with those of the published constants.
    """
    rotation = {
        **LLAMA3,
        "factor": float(factors_N.max()),
        "rope_theta": fields["rope_parameters"]["rope_theta"],
    }
    expected_N = llama3_factors(rotation, fields["head_dim"])
    if factors_N.shape != expected_N.shape or not np.allclose(factors_N, expected_N, rtol=1e-3):
        raise InputError("model", f"{where} has {ROPE_FACTORS} that are not Llama 3's", USE_OWN)
    return fields | {"rope_parameters": rotation}


def llama3_factors(rotation: dict[str, Any], head_size: int) -> np.ndarray:
    """Return by what Llama 3.1 divides the frequency of each pair of dimensions."""
    frequencies_N = rotation["rope_theta"] ** (-np.arange(0, head_size, 2) / head_size)
    turns_N = rotation["original_max_position_embeddings"] * frequencies_N / (2 * pi)
    low, high = rotation["low_freq_factor"], rotation["high_freq_factor"]
    share_N = np.clip((turns_N - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - share_N) / rotation["factor"] + share_N), dtype=np.float32)


def metadata_of(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Return GGUF's settings, without the architecture's name before them, of transformers' configuration.

    What a configuration says besides is compared by :func:`check_same_config`.
    """
    architecture = architecture_of_config(config.get("model_type"), where)
    settings = {ours: config[theirs] for ours, theirs in SETTINGS.items()}
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    settings |= dict.fromkeys(HEAD_SIZES, head_size)
    rotation = config["rope_parameters"]
    if architecture.windows:
        settings[WINDOW] = config["sliding_window"]
        settings[WINDOWED_FREQUENCY] = rotation["sliding_attention"]["rope_theta"]
        rotation = rotation["full_attention"]
    settings[FREQUENCY] = rotation["rope_theta"]
    if rotation["rope_type"] == "linear":
        settings |= {SCALING: "linear", SCALING_FACTOR: rotation["factor"]}
    return settings


NOTES = {
    *("transformers_version", "_name_or_path", "name_or_path", "architectures", "dtype", "torch_dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range", "pretraining_tp"),
    *(
        "attention_dropout",
        "max_window_layers",
        "is_llama_config",
        "rope_interleaved",
        "transformers.js_config",
    ),
    *("_sliding_window_pattern", "sliding_window_pattern", "cache_implementation"),
}
"""Fields of a configuration that do not change what a model computes, or repeat others."""


def check_same_config(config: dict[str, Any], rebuilt: dict[str, Any], where: str) -> None:
    """Raise an InputError if a file would not say all of a model's configuration."""
    for key in sorted({*config, *rebuilt} - NOTES):
        if config.get(key) != rebuilt.get(key):
            problem = f"{where} sets {key} to {ascii(config.get(key))[:100]}, which GGUF would not say"
            raise InputError(
                "--gguf", problem, "Leave it out, and convert the model with llama.cpp's script."
            )


def has_llama3_rotation(config: dict[str, Any]) -> bool:
    """Return whether a Llama has the rotation of 3.1 with its published constants."""
    rotation = config["rope_parameters"]
    return config["model_type"] == "llama" and all(rotation.get(key) == one for key, one in LLAMA3.items())


class TensorNames:
    """GGUF's names of a model's tensors, and their values in GGUF's order of rows.

    Args:
        architecture: of the model.
        config: transformers' configuration, as a dictionary.
    """

    def __init__(self, architecture: Architecture, config: dict[str, Any]) -> None:
        self.architecture = architecture
        self._heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        self._names = get_tensor_name_map(architecture.arch, config["num_hidden_layers"])

    def of(self, name: str) -> str | None:
        """Return GGUF's name of a tensor by transformers', such as ``model.norm.weight``; ``None`` if it
        has none."""
        module, _, kind = name.rpartition(".")
        found = self._names.get_name(module)
        return None if found is None else f"{found}.{kind}"

    def stored(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return what GGUF stores of a tensor, or of an adapter's second factor, by transformers' name."""
        heads = self._permuted_heads(name)
        if heads is not None:
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        return values + 1 if self._adds_one(name) else values

    def restored(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the tensor of transformers' name from what GGUF stores; undoes :meth:`stored`."""
        heads = self._permuted_heads(name)
        if heads is not None:
            pairs = values.reshape(heads, -1, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        return values - 1 if self._adds_one(name) else values

    def _permuted_heads(self, name: str) -> int | None:
        module = name.split(".")[-2]
        return self._heads.get(module) if self.architecture.permutes else None

    def _adds_one(self, name: str) -> bool:
        return self.architecture.adds_one and name.endswith("norm.weight")
