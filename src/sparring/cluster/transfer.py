"""Directories on their way between the command's machine and others: in chunks, hashed, and resumed.

A side that receives keeps what has arrived; after a kill of either side the rest is sent. A directory counts
once every file has the hash that it had where it came from.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparring.core import TransientError
from sparring.core.files import sha256_of
from sparring.learn.model_cache import known_hash

CHUNK = 8 << 20
"""Bytes in one message."""
ATTEMPTS = 2
"""How often a directory is sent: the beginning of a file may be that of another one."""

Listing = dict[str, tuple[int, str]]
"""The size and the SHA-256 of the files of a directory, by their paths in it."""


def listing_of(directory: Path) -> Listing:
    """Return the files of a directory."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): (path.stat().st_size, sha256_of(path)) for path in paths}


def listing_of_known(directory: Path, names: Iterable[str]) -> Listing:
    """Return some files of a directory, which may be large; unchanged ones are read once in a process."""
    return {name: ((directory / name).stat().st_size, known_hash(directory / name)) for name in names}


def arrived(directory: Path, files: Listing) -> dict[str, int]:
    """Return which files of a directory have yet to arrive, and how many bytes of each are there.

    What can be of none of them is deleted.
    """
    for path in [one for one in directory.rglob("*") if one.is_file()]:
        name = path.relative_to(directory).as_posix()
        size, sha256 = files.get(name, (-1, ""))
        there = path.stat().st_size
        if there > size or (there == size and sha256_of(path) != sha256):
            path.unlink()
    sizes = {name: (directory / name).stat().st_size for name in files if (directory / name).is_file()}
    return {name: sizes.get(name, 0) for name, (size, _) in files.items() if sizes.get(name) != size}


def write_chunk(path: Path, offset: int, content: bytes) -> None:
    """Write a chunk to its place in a file; a repeated one changes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "xb") as file:
        file.seek(offset)
        file.write(content)


async def take(files: Any, place: str, target: Path) -> None:
    """Copy a directory of the command's machine into one here, which may hold a part of it.

    Args:
        files: a handle of :class:`CommandFiles`.

    Raises:
        TransientError: something was damaged on its way.
    """
    listing: Listing = await files.listing.remote(place)
    for _ in range(ATTEMPTS):
        for name, offset in (await asyncio.to_thread(arrived, target, listing)).items():
            size, content = listing[name][0], b"more"
            while content and offset < size:
                content = await files.read.remote(place, name, offset)
                write_chunk(target / name, offset, content)
                offset += len(content)
            if not size:
                write_chunk(target / name, 0, b"")
    if await asyncio.to_thread(arrived, target, listing):
        raise TransientError(f"{place} was damaged on its way")


async def send(files: Any, writer: str, place: str, source: Path) -> None:
    """Copy a directory to a place in the run's directory, where it appears complete or not at all.

    Args:
        files: a handle of :class:`CommandFiles`.
        writer: who sends it.

    Raises:
        TransientError: it was damaged on its way.
    """
    listing = await asyncio.to_thread(listing_of, source)
    for _ in range(ATTEMPTS):
        for name, offset in (await files.missing.remote(writer, place, listing)).items():
            with (source / name).open("rb") as file:
                file.seek(offset)
                while content := file.read(CHUNK):
                    await files.write.remote(writer, place, name, offset, content)
                    offset += len(content)
        if await files.put.remote(writer, place, listing):
            return
    raise TransientError(f"{place} was damaged on its way")
