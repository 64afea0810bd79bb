"""Protobuf's wire format, as far as the SDK's messages need it: fields by number, without a schema."""

import struct
from collections.abc import Iterator

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
"""The wire types; those of groups are no longer used."""
LONGEST_VARINT = 10


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an int of a varint, else bytes. Raises ValueError: the
    message is broken."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind not in (DOUBLE, BYTES, FLOAT):
            raise ValueError(f"field {number} has the wire type {kind}")
        length = 8 if kind == DOUBLE else 4
        if kind == BYTES:
            length, place = _varint(message, place)
        if place + length > len(message):
            raise ValueError(f"field {number} ends after the message")
        yield number, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(message[place : place + LONGEST_VARINT]):
        number |= (byte & 127) << (7 * shift)
        if byte < 128:
            return number, place + shift + 1
    raise ValueError("a number does not end")


def varints(packed: int | bytes) -> list[int]:
    """Return the numbers of a repeated field, of which this is one, or all if they are packed."""
    if isinstance(packed, int):
        return [packed]
    numbers, place = [], 0
    while place < len(packed):
        number, place = _varint(packed, place)
        numbers.append(number)
    return numbers


def as_bytes(value: int | bytes) -> bytes:
    """Return a value that should be bytes. Raises ValueError: it is a number."""
    if isinstance(value, int):
        raise ValueError("a number is where bytes should be")
    return value


def as_text(value: int | bytes) -> str:
    """Return a value that should be text. Raises ValueError."""
    return as_bytes(value).decode()


def as_double(value: int | bytes) -> float:
    """Return a value that should be a double. Raises ValueError."""
    if len(as_bytes(value)) != 8:
        raise ValueError("a double has 8 bytes")
    return float(struct.unpack("<d", as_bytes(value))[0])


def varint(number: int) -> bytes:
    """Return a number that is not negative, encoded."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field, encoded: a varint, a double, or bytes."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | DOUBLE) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(content)) + content
