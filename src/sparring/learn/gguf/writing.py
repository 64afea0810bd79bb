"""A model as a GGUF file, and an adapter as one that llama.cpp adds to its base model.

What a file must say: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; an adapter has the tensors
of llama.cpp's ``convert_lora_to_gguf.py``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, LlamaFileType
from gguf.quants import quant_shape_to_byte_shape, quantize

from sparring.core import InputError
from sparring.learn.gguf.architectures import (
    ROPE_FACTORS,
    TensorNames,
    architecture_of_config,
    check_same_config,
    config_of,
    has_llama3_rotation,
    llama3_factors,
    metadata_of,
    with_factors,
)

GgufKind = Literal["f32", "f16", "q8_0"]
_KINDS = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_BLOCK = 32
"""Rows of q8_0 are whole blocks."""


def write_model(model: Any, tokenizer: Any, file: Path, kind: GgufKind, name: str) -> None:
    """Write one of transformers' models with its tokenizer.

    Raises:
        InputError: its architecture is not one that sparring converts, or a file would not say all of it.
    """
    from transformers import AutoConfig

    from sparring.learn.gguf.vocabulary import END_OF_TURN, metadata_of_tokenizer

    config = model.config.to_dict()
    architecture = architecture_of_config(config["model_type"], name)
    settings = {f"{architecture.name}.{key}": one for key, one in metadata_of(config, name).items()}
    names = TensorNames(architecture, config)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set[str]()
    state = {key: one for key, one in model.state_dict().items() if key not in tied}
    sources = {key: names.of(key) for key in state}
    unknown = next((key for key, source in sources.items() if source is None), None)
    if unknown is not None:
        raise InputError("--gguf", f"{name} has {unknown}, which GGUF has no name for", "Leave it out.")
    tensors: dict[str, Callable[[], np.ndarray]] = {}

    def of(key: str) -> Callable[[], np.ndarray]:
        return lambda: names.stored(key, state[key].float().cpu().numpy())

    shapes = {str(sources[key]): tuple(one.shape) for key, one in state.items()}
    fields = config_of({**settings, "general.architecture": architecture.name}, shapes, name)
    if has_llama3_rotation(config):
        factors_N = llama3_factors(config["rope_parameters"], fields["head_dim"])
        fields = with_factors(fields, factors_N, name)
        tensors[ROPE_FACTORS] = lambda: factors_N
        shapes[ROPE_FACTORS] = factors_N.shape
    check_same_config(config, AutoConfig.for_model(architecture.model_type, **fields).to_dict(), name)
    tensors |= {str(sources[key]): of(key) for key in state}
    vocabulary = metadata_of_tokenizer(tokenizer, config["vocab_size"], name)
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    others = [end for end in (ends if isinstance(ends, list) else []) if end != tokenizer.eos_token_id]
    turn = {END_OF_TURN: others[0]} if others else {}
    about: dict[str, Any] = {"general.type": "model", "general.name": name}
    types = {key: _stored_type(shape, kind) for key, shape in shapes.items()}
    about |= {"general.file_type": int(_KINDS[kind][1]), "general.quantization_version": 2}
    _write(file, architecture.name, {**about, **settings, **vocabulary, **turn}, types, shapes, tensors)


def write_adapter_gguf(
    weights: Mapping[str, Any], adapter: Mapping[str, Any], config: dict[str, Any], file: Path, kind: GgufKind
) -> None:
    """Write a LoRA adapter.

    Args:
        weights: PEFT's tensors by their names in its file.
        adapter: PEFT's configuration.
        config: the base model's configuration, as transformers' dictionary.
        file: where to write it; named as the adapter is.
        kind: of the factors.

    Raises:
        InputError: the adapter or the architecture is not one that llama.cpp's format can say.
    """
    name = file.stem
    architecture = architecture_of_config(config.get("model_type"), name)
    for field in ("rank_pattern", "alpha_pattern", "fan_in_fan_out"):
        if adapter.get(field):
            problem = f"the adapter sets {field}, which GGUF cannot say"
            raise InputError("--gguf", problem, "Add --merge, which writes the whole model.")
    alpha = float(adapter["lora_alpha"])
    if adapter.get("use_rslora"):
        alpha *= adapter["r"] ** 0.5  # llama.cpp divides by the rank, not by its root
    names = TensorNames(architecture, config)
    factors: dict[str, np.ndarray] = {}
    for key, one in weights.items():
        module, _, factor = key.removesuffix(".weight").removeprefix("base_model.model.").rpartition(".")
        source = names.of(f"{module}.weight")
        if source is None or factor not in ("lora_A", "lora_B"):
            raise InputError("--gguf", f"the adapter has {key}, which GGUF has no name for", "Add --merge.")
        values = one.float().cpu().numpy()
        stored = values if factor == "lora_A" else names.stored(f"{module}.lora_B", values)
        factors[f"{source}.{factor.lower()}"] = stored
    about: dict[str, Any] = {"general.type": "adapter", "general.name": name}
    about |= {"general.file_type": int(_KINDS[kind][1]), "adapter.type": "lora", "adapter.lora.alpha": alpha}
    types = dict.fromkeys(factors, _KINDS[kind][0])
    shapes = {key: one.shape for key, one in factors.items()}
    makes: dict[str, Callable[[], np.ndarray]] = {key: one.view for key, one in factors.items()}
    _write(file, architecture.name, about, types, shapes, makes)


def _stored_type(shape: tuple[int, ...], kind: GgufKind) -> GGMLQuantizationType:
    """Return the type of a tensor, as llama.cpp chooses it: vectors stay in float32."""
    if len(shape) < 2:
        return GGMLQuantizationType.F32
    whole = shape[-1] % _BLOCK == 0
    return _KINDS[kind if whole or kind != "q8_0" else "f16"][0]


def _write(
    file: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    types: Mapping[str, GGMLQuantizationType],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Callable[[], np.ndarray]],
) -> None:
    """Write a file; one tensor at a time is in memory."""
    writer = GGUFWriter(file, architecture)
    for key, one in metadata.items():
        _add(writer, key, one)
    for name in tensors:
        shape = quant_shape_to_byte_shape(shapes[name], types[name])
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, make in tensors.items():
        writer.write_tensor_data(quantize(np.ascontiguousarray(make()), types[name]))
    writer.close()


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list) and value:
        writer.add_array(key, value)
