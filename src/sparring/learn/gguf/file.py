"""The content of a GGUF file, versions 2 and 3: metadata, and tensors that stay on the disk until used.

The reader of the package ``gguf`` makes an object of each token; that takes half a minute for a large
vocabulary. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from sparring.core import InputError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Of the tensors, in bytes, if the metadata says nothing."""
MOST_DIMENSIONS = 4
SUFFIX = ".gguf"
_ROWS_TOGETHER = 256
_NUMBERS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_TEXT, _LIST = 8, 9
_LENGTH = struct.Struct("<Q")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file; ``shape`` is numpy's, the last dimension is contiguous."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    bytes_N: np.ndarray

    def values(self) -> np.ndarray:
        """Return the dequantised values in float32."""
        number = math.prod(self.shape[:-1])
        together = math.gcd(number, _ROWS_TOGETHER)  # the package goes over rows in Python
        rows = self.bytes_N.reshape(number // together, -1)
        return np.asarray(dequantize(rows, self.kind), dtype=np.float32).reshape(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """What one or several files contain: metadata as plain Python values or numpy arrays of numbers."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def gguf_parts(path: Path) -> list[Path]:
    """Return the files of a GGUF model, in their order: of a file, or of a directory that holds one.

    Nothing is returned if the path is neither, or the directory has a ``config.json``. Any of
    ``NAME-00001-of-00003.gguf`` stands for all.

    Raises:
        InputError: a part is missing, or the directory holds several models.
    """
    if path.is_dir():
        if (path / "config.json").exists():
            return []
        files = sorted(path.glob(f"*{SUFFIX}"))
        models = sorted({_PART.sub(r"\1", file.name) for file in files})
        if len(models) > 1:
            problem = f"{path} holds several GGUF models"
            raise InputError("model", problem, f"Name one of its files, such as {files[0]}")
        return gguf_parts(files[0]) if files else []
    if path.suffix != SUFFIX or not path.is_file():
        return []
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    name, _, number = match.groups()
    parts = [path.with_name(f"{name}-{part:05d}-of-{number}{SUFFIX}") for part in range(1, int(number) + 1)]
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None or not parts:
        raise InputError("model", f"{missing or path} is missing", "Put all parts into one directory.")
    return parts


def read_gguf(parts: list[Path]) -> GgufFile:
    """Read the files of a model; their tensors stay on the disk.

    Raises:
        InputError: a file is damaged, truncated, or of another version.
    """
    metadata, tensors = dict[str, Any](), dict[str, StoredTensor]()
    for part in parts:
        try:
            found, stored = _read(part)
        except OSError as error:
            problem = f"{part} cannot be read ({error.strerror or error})"
            raise InputError("model", problem, "Make it readable.") from error
        except (ValueError, KeyError, struct.error, OverflowError) as error:  # also what is no UTF-8
            problem = f"{part} is no GGUF file, damaged or truncated"
            raise InputError("model", problem, "Download it again.") from error
        metadata = metadata or found
        tensors |= stored
    expected = metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        problem = f"{parts[0]} and its other parts have {len(tensors)} tensors of {expected}"
        raise InputError("model", problem, "Download them again.")
    return GgufFile(metadata, tensors)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    content_N = np.memmap(path, dtype=np.uint8, mode="r")
    cursor = _Cursor(content_N)
    if cursor.take(len(MAGIC)) != MAGIC or cursor.number("I") not in VERSIONS:
        raise ValueError("not a GGUF file of a known version")
    tensors, entries = cursor.number("Q"), cursor.number("Q")
    metadata = {}
    for _ in range(entries):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    table = [cursor.tensor() for _ in range(tensors)]
    step = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(step, int) or step < 1:
        raise ValueError("impossible alignment")
    start = math.ceil(cursor.place / step) * step
    data_N = content_N[start:]
    return metadata, {name: _stored(data_N, shape, kind, offset) for name, shape, kind, offset in table}


def _stored(data_N: np.ndarray, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
    known = GGMLQuantizationType(kind)
    block, size = GGML_QUANT_SIZES[known]
    if shape[-1] % block:
        raise ValueError("rows that are no whole blocks")
    length = math.prod(shape) // block * size
    if offset + length > len(data_N):
        raise ValueError("truncated")
    return StoredTensor(shape, known, data_N[offset : offset + length])


class _Cursor:
    """A place in the content of a file; whatever is read beyond its end raises ``struct.error``."""

    def __init__(self, content_N: np.ndarray) -> None:
        self.content = content_N.data
        self.place = 0

    def take(self, length: int) -> bytes:
        end = self.place + length
        if end > len(self.content):
            raise struct.error("truncated")
        taken = bytes(self.content[self.place : end])
        self.place = end
        return taken

    def number(self, code: str) -> Any:
        number = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]
        return float(str(np.float32(number))) if code == "f" else number  # 1e-06, not 9.99999997e-07

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            return self.number(_NUMBERS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner == _TEXT:
            return self._texts(count)
        code = _NUMBERS[inner]
        return np.frombuffer(self.take(struct.calcsize(f"<{code}") * count), np.dtype(f"<{code}"))

    def _texts(self, count: int) -> list[str]:
        """Read many texts; a vocabulary has 262,144."""
        texts, place, content = list[str](), self.place, self.content
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(content, place)
            place += _LENGTH.size + length
            if place > len(content):
                raise struct.error("truncated")
            texts.append(str(content[place - length : place], "utf-8"))
        self.place = place
        return texts

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, number = self.text(), self.number("I")
        if not 1 <= number <= MOST_DIMENSIONS:
            raise ValueError("impossible number of dimensions")
        shape = tuple(self.number("Q") for _ in range(number))[::-1]
        return name, shape, self.number("I"), self.number("Q")
