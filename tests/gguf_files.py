"""GGUF files for tests: written from tiny models, and changed."""

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.learn.gguf.writing import GgufKind, write_model


def gguf_of(directory: Path, file: Path, kind: GgufKind = "f32") -> Path:
    """Write a Hugging Face directory as a GGUF file; return the file."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    write_model(model, AutoTokenizer.from_pretrained(directory), file, kind, "tiny")
    return file


def changed(source: Path, file: Path, *, split: int = 0, **metadata: Any) -> Path:
    """Copy a GGUF file with the package ``gguf`` and other metadata (``None`` leaves an entry out), in files
    of ``split`` tensors each; ``__`` in a name is a dot."""
    reader = GGUFReader(source)
    given = {key.replace("__", "."): value for key, value in metadata.items()}
    architecture = given.pop("general.architecture", reader.fields["general.architecture"].contents())
    writer = GGUFWriter(file, architecture, split_max_tensors=split)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in given:
            continue
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for key, value in given.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
