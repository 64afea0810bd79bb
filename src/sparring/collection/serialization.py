"""What services send to each other and keep as msgpack or JSON: Ray's own way inspects every object."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self

import msgspec

from sparring.core import TrainingRecord


class Packed:
    """A dataclass of this kind is sent between processes as msgpack."""

    def __reduce__(self) -> tuple[Callable[[type[Self], bytes], Self], tuple[type[Self], bytes]]:
        """Serialise as msgpack."""
        return _unpacked, (type(self), packed(self))


def _unpacked(kind: type[Any], content: bytes) -> Any:
    return msgspec.msgpack.decode(content, type=kind, strict=False)


class PackedRecords(dict[str, list[TrainingRecord]]):
    """Training records by policy, which are sent between processes as msgpack."""

    def __reduce__(self) -> tuple[Callable[[bytes], "PackedRecords"], tuple[bytes]]:
        """Serialise the records as msgpack."""
        return _unpacked_records, (packed(dict(self)),)


def _unpacked_records(content: bytes) -> PackedRecords:
    return PackedRecords(_RECORDS.decode(content))


_RECORDS = msgspec.msgpack.Decoder(dict[str, list[TrainingRecord]], strict=False)


def packed(content: Any) -> bytes:
    """Encode as msgpack; see :func:`plain`."""
    return msgspec.msgpack.encode(content, enc_hook=plain)


def plain(value: Any) -> Any:
    """Return a number of another library as Python's own, and any other object as its text.

    A game library may leave any object in a step's info.
    """
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else repr(value)
