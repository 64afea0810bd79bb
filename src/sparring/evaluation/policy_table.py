"""A model's log-probabilities in millions of information states, in a file that grows block by block.

The file begins with one line, a sealed JSON text (``core/manifest.py``): whose answers these are, and to
what. Blocks follow. A block has ``block_rows`` rows, the last one what remains. A row has a little-endian
float32 for each action: the log-probability of the whole answer, -inf for an illegal action. A block ends
with the SHA-256 of the line, the block's number and its rows, so it is valid in its place only.

A writer that is killed leaves whole blocks and perhaps a part of another, which is written again.

Dimensions: R rows, A actions.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from sparring.core.errors import NOT_JSON, DamagedState, InputError
from sparring.core.files import append_at, sync, write_file
from sparring.core.locks import lock
from sparring.core.manifest import sealed, unsealed

Float32Array = NDArray[np.float32]

BLOCK_ROWS = 4096
_FLOAT = np.dtype("<f4")
_DIGEST = 32
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class TableHeader:
    """What a table is about.

    Attributes:
        game: OpenSpiel's id.
        template: the template of the prompts.
        model: the model's name.
        fingerprint: SHA-256 of the files that decide its answers, by name.
        dtype: the type in which the model computes.
        rows: the number of information states, whose order belongs to the game.
        actions: the number of OpenSpiel's actions.
        block_rows: rows of a block.
        start: the actions after which the game starts.
    """

    game: str
    template: str
    model: str
    fingerprint: dict[str, str]
    dtype: str
    rows: int
    actions: int
    block_rows: int = BLOCK_ROWS
    start: tuple[int, ...] = ()

    def line(self) -> bytes:
        """Return the first line of a table."""
        content = json.loads(sealed(asdict(self)))
        return json.dumps(content).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        """Return the header in a first line; raise a ValueError if it is none, or damaged."""
        content = json.loads(line)
        content = unsealed(json.dumps(content, indent=1).encode() + b"\n")
        header = cls(**content | {"start": tuple(content["start"])})
        if header.line() != line:
            raise ValueError("it is another text")
        return header


class PolicyTable:
    """A table to which one process appends. Use it as a context, which ends the process's claim on it.

    Raises:
        InputError: the file is about something else, or another process writes it.
        DamagedState: a byte has changed, other than in the last block.
    """

    def __init__(self, path: Path, header: TableHeader) -> None:
        self.path, self.header = path, header
        if not path.exists():
            write_file(path, header.line())
            sync(path.parent)
        if not path.is_file():
            raise InputError(str(path), "is not a regular file", "Name another file")
        self._file = FileIO(path, "r+")
        try:
            lock(self._file.fileno(), wait=False)
            with path.open("rb") as file:
                if _read_header(path, file) != header:
                    problem = "it is about another model, game or template"
                    raise InputError(str(path), problem, "Name another file, or delete this one")
                self._blocks = sum(1 for _ in _whole_blocks(path, file, header, may_end=True))
        except BlockingIOError as error:
            self._file.close()
            raise InputError(str(path), "another process writes it", "Wait until it ends") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        """The number of rows in whole blocks."""
        return min(self._blocks * self.header.block_rows, self.header.rows)

    @property
    def next_rows(self) -> range:
        """The rows of the next block; none if the table is complete."""
        return range(self.done, min(self.done + self.header.block_rows, self.header.rows))

    def append(self, logprobs_RA: Float32Array) -> None:
        """Write the next block, :attr:`next_rows`; it is on disk when this returns."""
        expected = (len(self.next_rows), self.header.actions)
        if logprobs_RA.shape != expected:
            raise ValueError(f"the next block is an array of {expected}, not {logprobs_RA.shape}")
        content = np.ascontiguousarray(logprobs_RA, dtype=_FLOAT).tobytes()
        end = len(self.header.line()) + self._blocks * _block_bytes(self.header)
        append_at(self._file, end, content + _digest(self.header, self._blocks, content))
        sync(self.path)
        self._blocks += 1


def read_table(path: Path) -> tuple[TableHeader, Float32Array]:
    """Return the header of a complete table, and its logprobs_RA.

    Raises:
        InputError: there is none, or it is not complete.
        DamagedState: a byte has changed.
    """
    if not path.is_file():
        raise InputError(str(path), "there is no such table", "Name a file that a PolicyTable has written")
    with path.open("rb") as file:
        header = _read_header(path, file)
        rows = [np.frombuffer(one, _FLOAT) for one in _whole_blocks(path, file, header, may_end=False)]
    return header, np.concatenate(rows).astype(np.float32, copy=False).reshape(-1, header.actions)


def _block_bytes(header: TableHeader) -> int:
    return header.block_rows * header.actions * _FLOAT.itemsize + _DIGEST


def _digest(header: TableHeader, block: int, content: bytes) -> bytes:
    return hashlib.sha256(header.line() + f"{block}\n".encode() + content).digest()


def _read_header(path: Path, file: BinaryIO) -> TableHeader:
    try:
        return TableHeader.of_line(file.readline(_LONGEST_LINE))
    except (*NOT_JSON, TypeError, KeyError) as error:
        raise _damaged(path, "its first line") from error


def _whole_blocks(path: Path, file: BinaryIO, header: TableHeader, *, may_end: bool) -> Iterator[bytes]:
    """Yield the rows of each block, read after the header; ``may_end`` before the last, or with a part of a
    block."""
    for block, first in enumerate(range(0, header.rows, header.block_rows)):
        size = min(header.block_rows, header.rows - first) * header.actions * _FLOAT.itemsize
        found = file.read(size + _DIGEST)
        if found[size:] == _digest(header, block, found[:size]):
            yield found[:size]
        elif may_end and not file.read(1):
            return
        elif not may_end and len(found) < size + _DIGEST:
            problem = f"it has {first:,} of {header.rows:,} rows"
            raise InputError(str(path), problem, "Go on with it until it is complete")
        else:
            raise _damaged(path, f"block {block}")
    if file.read(1):
        raise _damaged(path, "its end")


def _damaged(path: Path, what: str) -> DamagedState:
    return DamagedState(str(path), f"{what} is damaged", "Restore the file, or delete it and begin again")
