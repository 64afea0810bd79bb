"""Data that is sent between services or kept, as compressed msgpack or JSON: Ray's own way inspects every
object. The prompts of a batch share most of their text, so that little is left of them.
"""

import zlib
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self, TypeVar

import msgspec

from sparring.core import InputError, Step, TrainingRecord
from sparring.core.errors import NOT_JSON

UNREADABLE = (*NOT_JSON, msgspec.DecodeError)
"""What msgspec raises for damaged JSON; before version 0.21, its errors are no ValueErrors."""
FASTEST = 1
"""The level of zlib: higher ones save a tenth more for several times the work."""

MOST_BYTES = 1 << 31
"""What is unpacked may have this size: a few damaged or hostile bytes could fill the memory."""

Decoded = TypeVar("Decoded")


class Packed:
    """A dataclass of this kind is sent between processes packed."""

    def __reduce__(self) -> tuple[Callable[[type[Self], bytes], Self], tuple[type[Self], bytes]]:
        """Serialise packed."""
        return _unpacked, (type(self), packed(self))


def _unpacked(kind: type[Any], content: bytes) -> Any:
    return unpacked(content, msgspec.msgpack.Decoder(kind, strict=False))


class PackedRecords(dict[str, list[TrainingRecord]]):
    """Training records by policy, which are sent between processes packed."""

    def __reduce__(self) -> tuple[Callable[[bytes], "PackedRecords"], tuple[bytes]]:
        """Serialise the records packed."""
        return _unpacked_records, (packed(dict(self)),)


def _unpacked_records(content: bytes) -> PackedRecords:
    records: dict[str, list[TrainingRecord]] = unpacked(content, _RECORDS)
    return PackedRecords(records)


_RECORDS = msgspec.msgpack.Decoder(dict[str, list[TrainingRecord]], strict=False)


class CheckedLine(msgspec.Struct, kw_only=True):
    """A line of a file of JSON with the checksum of its other fields, by which damage is noticed."""

    crc: int = 0

    def line(self) -> bytes:
        """Return the line with its checksum."""
        return msgspec.json.encode(msgspec.structs.replace(self, crc=self._checksum())) + b"\n"

    @property
    def is_whole(self) -> bool:
        """Whether it is a line as it was written."""
        return self.crc == self._checksum()

    def _checksum(self) -> int:
        values = [getattr(self, name) for name in self.__struct_fields__ if name != "crc"]
        return zlib.crc32(msgspec.json.encode(values))


def packed(content: Any) -> bytes:
    """Encode as msgpack, and compress it."""
    return zlib.compress(msgspec.msgpack.encode(content, enc_hook=plain), FASTEST)


def unpacked(content: bytes, decoder: msgspec.msgpack.Decoder[Decoded]) -> Decoded:
    """Return what :func:`packed` encoded; raise DecodeError if it is damaged, or too large when unpacked."""
    reader = zlib.decompressobj()
    try:
        plain_content = reader.decompress(content, MOST_BYTES)
    except zlib.error as error:
        raise msgspec.DecodeError(str(error)) from error
    if not reader.eof:
        raise msgspec.DecodeError(f"it is not whole, or more than {MOST_BYTES} bytes")
    return decoder.decode(plain_content)


def plain(value: Any) -> Any:
    """Return a number of another library as Python's own, and any other object as its text."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else repr(value)


CLASS = "class"
"""The key of a step that is of a subclass, for its name."""


def plain_groups(groups: list[list[Step]]) -> list[list[dict[str, Any]]]:
    """Return the steps as JSON-able data, with the names of classes other than ``Step``."""
    plain: list[list[dict[str, Any]]] = msgspec.to_builtins(groups, str_keys=True)
    for steps, rows in zip(groups, plain, strict=True):
        for step, row in zip(steps, rows, strict=True):
            if type(step) is not Step:
                row[CLASS] = _name_of(type(step))
    return plain


def groups_of(plain: list[list[Any]]) -> list[list[Step]]:
    """Return the steps of :func:`plain_groups`.

    Nothing is imported for a step's class, because a checkpoint's content is not trusted: raises InputError
    if the program has no such class.
    """
    classes = {_name_of(one): one for one in _subclasses(Step)}

    def step_of(row: dict[str, Any]) -> Step:
        name = row.get(CLASS)
        if name is not None and name not in classes:
            problem = f"its buffer has steps of {name}, which this program does not define"
            raise InputError("checkpoint", problem, "Import the module of that class before resuming.")
        fields = {key: value for key, value in row.items() if key != CLASS}
        return msgspec.convert(fields, Step if name is None else classes[name])

    if not any(CLASS in row for rows in plain for row in rows):
        return msgspec.convert(plain, list[list[Step]])
    return [[step_of(row) for row in rows] for rows in plain]


def _name_of(kind: type[Step]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _subclasses(kind: type[Step]) -> list[type[Step]]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]
