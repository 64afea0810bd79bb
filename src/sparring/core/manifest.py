"""``manifest.json``: the hash of every other file of a saved directory, and of the base model it belongs to.

It is written last and sealed, so that no changed byte in a saved directory goes unnoticed. The folders of a
directory have manifests of their own, which are listed like files.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from sparring.core.adapters import MANIFEST_FILE
from sparring.core.errors import DamagedState
from sparring.core.files import read_regular, sha256_of
from sparring.core.sealed_json import sealed, unsealed

Hashes = Mapping[str, str]
"""SHA-256 in hexadecimal by the name of a file."""
MOST_BYTES = 1 << 20
"""Largest size of a manifest."""


def damaged(path: Path) -> DamagedState:
    """Return the error of a damaged file."""
    return DamagedState("checkpoint", f"{path} is missing or damaged", "Take another checkpoint")


def seal(directory: Path, base: Hashes | None = None, names: Collection[str] | None = None) -> None:
    """Write the manifest of a directory whose files are all written, and those of its folders.

    Args:
        directory: the directory, before it is put in place.
        base: the hashes of the base model's files; by default those that a manifest of before has.
        names: the files that are listed; by default all.

    Raises:
        OSError: a file cannot be read or written.
    """
    if base is None and (directory / MANIFEST_FILE).is_file():
        base = base_of(directory)
    files = {}
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            seal(path, base)
            files[f"{path.name}/{MANIFEST_FILE}"] = sha256_of(path / MANIFEST_FILE)
        elif path.name != MANIFEST_FILE and (names is None or path.name in names):
            files[path.name] = sha256_of(path)
    (directory / MANIFEST_FILE).write_bytes(sealed({"base": dict(base or {}), "files": files}))


def is_sealed(directory: Path) -> bool:
    """Whether a directory has a manifest."""
    return (directory / MANIFEST_FILE).is_file()


def check_if_sealed(directory: Path, names: Collection[str] | None = None) -> None:
    """Do as :func:`check_files` does, if a directory has a manifest: what others wrote has none."""
    if is_sealed(directory):
        check_files(directory, names)


def check_files(directory: Path, names: Collection[str] | None = None) -> None:
    """Check the files of a sealed directory, and of its folders, by their hashes.

    Args:
        directory: the directory.
        names: the files that are checked, if they are listed; by default all.

    Raises:
        DamagedState: a file or the manifest is missing or damaged.
    """
    files, _ = _read(directory)
    for name, expected in files.items():
        path = directory / name
        if names is not None and name not in names:
            continue
        try:
            found = sha256_of(path)
        except OSError as error:
            raise damaged(path) from error
        if found != expected:
            raise damaged(path)
        if path.name == MANIFEST_FILE:
            check_files(path.parent)


def base_of(directory: Path) -> Hashes:
    """Return the hashes of the base model's files with which a directory was sealed.

    Raises:
        DamagedState: the manifest is missing or damaged.
    """
    return _read(directory)[1]


def _read(directory: Path) -> tuple[Hashes, Hashes]:
    path = directory / MANIFEST_FILE
    try:
        found = unsealed(read_regular(path, MOST_BYTES))
        return dict(found["files"]), dict(found["base"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
