"""Data that is sent between services or kept, as compressed msgpack or JSON: Ray's own way inspects every
object. The prompts of a batch share most of their text, so that little is left of them.
"""

import zlib
from collections.abc import Callable, Sequence
from copy import copy
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


LeftOut = list[tuple[int, int]]
"""How many messages and token ids each step's prompt leaves out; it begins with the role's last ones."""


def without_histories(steps: Sequence[Step]) -> tuple[list[Step], LeftOut]:
    """Return steps as they are sent, and what they leave out: the prompt of one that continues the step
    before has only what is new. Otherwise a conversation would grow with the square of its turns."""
    last: dict[str, Step] = {}
    short, left_out = [], []
    for step in steps:
        before = last.get(step.role_id)
        messages, ids = (0, 0) if before is None else _continued(before, step)
        last[step.role_id] = step
        short.append(step)
        if messages or ids:
            short[-1] = copy(step)
            short[-1].prompt = step.prompt[messages:]
            short[-1].prompt_token_ids = step.prompt_token_ids and step.prompt_token_ids[ids:]
        left_out.append((messages, ids))
    return short, left_out


def add_histories(steps: Sequence[Step], left_out: LeftOut) -> None:
    """Make the steps of :func:`without_histories` whole."""
    last: dict[str, Step] = {}
    for step, (messages, ids) in zip(steps, left_out, strict=True):
        if messages or ids:
            before = last[step.role_id]
            step.prompt = [*before.prompt[:messages], *step.prompt]
            if ids and step.prompt_token_ids is not None:
                step.prompt_token_ids = _history(before)[:ids] + step.prompt_token_ids
        last[step.role_id] = step


def _continued(before: Step, step: Step) -> tuple[int, int]:
    messages, history = len(before.prompt), _history(before)
    same_texts = len(step.prompt) > messages and step.prompt[:messages] == before.prompt
    same_ids = step.prompt_token_ids is not None and step.prompt_token_ids[: len(history)] == history
    return messages if same_texts else 0, len(history) if same_ids else 0


def _history(step: Step) -> list[int]:
    return [*(step.prompt_token_ids or ()), *(step.completion_token_ids or ())]
