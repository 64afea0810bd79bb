"""A GGUF file as a directory of Hugging Face: configuration, safetensors and tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from sparring.core import InputError
from sparring.learn.gguf.architectures import (
    ROPE_FACTORS,
    USE_OWN,
    Architecture,
    TensorNames,
    architecture_of,
    config_of,
    with_factors,
)
from sparring.learn.gguf.file import GgufFile, StoredTensor, read_gguf

KEPT = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}
"""The types of tensors that stay as they are; others are dequantised into float16."""
MOST_FLOAT16 = 65504.0
SHARD_BYTES = 2 << 30


def check_gguf(parts: list[Path]) -> GgufFile:
    """Return the content of a model's files, after the checks that need no tensor and no torch.

    Raises:
        InputError: the files are damaged, or of a model that sparring cannot convert.
    """
    content = read_gguf(parts)
    config_of(content.metadata, {name: one.shape for name, one in content.tensors.items()}, str(parts[0]))
    from sparring.learn.gguf.vocabulary import check_vocabulary

    check_vocabulary(content.metadata, str(parts[0]))
    return content


def convert_gguf(parts: list[Path], template: str | None, directory: Path) -> None:
    """Write the files of a model as a new directory; ``template`` replaces its chat template.

    Raises:
        InputError: the files are damaged, or of a model that sparring cannot convert.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from sparring.learn.gguf.vocabulary import END_OF_TURN, NAMED, tokenizer_of

    content, where = check_gguf(parts), str(parts[0])
    architecture = architecture_of(content.metadata["general.architecture"], where)
    fields = config_of(content.metadata, {name: one.shape for name, one in content.tensors.items()}, where)
    if ROPE_FACTORS in content.tensors:
        fields = with_factors(fields, content.tensors[ROPE_FACTORS].values(), where)
    ids = {f"{name}_id": content.metadata.get(key) for name, key in NAMED.items() if name != "unk_token"}
    ends = {ids["eos_token_id"], content.metadata.get(END_OF_TURN)} - {None}
    ids["eos_token_id"] = sorted(ends) if len(ends) > 1 else next(iter(ends), None)
    config = AutoConfig.for_model(architecture.model_type, **fields, **ids)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.dtype = _kind_of(content.tensors["token_embd.weight"])
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    directory.mkdir()
    _write_weights(content, architecture, config.to_dict(), shapes, directory, where)
    config.save_pretrained(directory)
    GenerationConfig(**ids).save_pretrained(directory)
    tokenizer_of(content.metadata, template).save_pretrained(directory)


def _write_weights(
    content: GgufFile,
    architecture: Architecture,
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    directory: Path,
    where: str,
) -> None:
    import torch
    from safetensors.torch import save_file

    names = TensorNames(architecture, config)
    sources = {name: names.of(name) for name in shapes}
    for name, source in sources.items():
        if source not in content.tensors or content.tensors[source].shape != shapes[name]:
            raise InputError("model", f"{where} has no {source} as its metadata say", "Download it again.")
    left = sorted({*content.tensors} - {*sources.values(), ROPE_FACTORS})
    if left:
        problem = f"{where} has the tensor {left[0]:.100}, which sparring cannot convert"
        raise InputError("model", problem, USE_OWN)
    shards = _shards({name: content.tensors[str(source)] for name, source in sources.items()})
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if shards[1:] else "model.safetensors"
        state = {}
        for name, stored in shard.items():
            values = np.array(names.restored(name, stored.values()), order="C")
            state[name] = torch.from_numpy(values).to(getattr(torch, _kind_of(stored, values)))
        save_file(state, directory / file, metadata={"format": "pt"})
        files |= dict.fromkeys(shard, file)
    if shards[1:]:
        total = sum((directory / file).stat().st_size for file in {*files.values()})
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _kind_of(stored: StoredTensor, values: np.ndarray | None = None) -> str:
    """Return the type in which a tensor is kept; ``values`` may be too large for float16."""
    kind = KEPT.get(stored.kind, "float16")
    fits = values is None or kind != "float16" or np.abs(values).max(initial=0) <= MOST_FLOAT16
    return kind if fits else "float32"


def _shards(tensors: dict[str, StoredTensor]) -> list[dict[str, StoredTensor]]:
    """Return the tensors in groups that fit into memory, also in float32."""
    shards: list[dict[str, StoredTensor]] = [{}]
    taken = 0
    for name, stored in tensors.items():
        size = 4 * int(np.prod(stored.shape))
        if shards[-1] and taken + size > SHARD_BYTES:
            shards.append({})
            taken = 0
        shards[-1][name] = stored
        taken += size
    return shards
