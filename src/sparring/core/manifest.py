"""What proves that saved files are unchanged: sealed JSON, ``manifest.json``, the canary and
``delivery.json``.

``manifest.json`` holds the hash of every other file of a saved directory, and of the base model it belongs
to. It is written last and sealed, so that no changed byte goes unnoticed. Folders have manifests of their
own, which are listed like files. A learner describes an adapter in ``delivery.json`` for whoever publishes
it: the log-probability of a fixed text, the canary, shows which weights answer.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sparring.core.adapters import DELIVERY_FILE, MANIFEST_FILE
from sparring.core.errors import NOT_JSON, DamagedState, InputError
from sparring.core.files import read_regular, sha256_of, write_file

MOST_BYTES = 1 << 20
"""Largest size of the files of this module."""
CANARY_TEXT = "The canary sang in the mine: 7 times at dawn, 12 times at noon, and once more before the dark."
MAX_CANARY_TOKENS = 96
"""At most this many tokens of the text are used, without special tokens and without a chat template."""


@dataclass(frozen=True)
class Expectation:
    """The learner's description of an adapter in ``delivery.json``.

    Attributes:
        version: the policy version.
        sha256: SHA-256 of the weight file, in hexadecimal.
        canary: mean log-probability of the canary's tokens without the first, at temperature 1.
        base: the same of the base model; the difference shows whether an engine can tell them apart.
    """

    version: int
    sha256: str
    canary: float
    base: float

    def write(self, directory: Path) -> None:
        """Write the description beside an adapter's files."""
        write_file(directory / DELIVERY_FILE, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return an adapter's description, ``None`` if there is none; raise an InputError if it is
        damaged."""
        path = directory / DELIVERY_FILE
        fix = "Save the adapter again, or delete the file to skip this check."
        damaged = InputError("adapter", f"{path} is damaged", fix)
        try:
            match json.loads(read_regular(path, MOST_BYTES)):
                case {
                    "version": version,
                    "sha256": str(sha256),
                    "canary": float(canary),
                    "base": float(base),
                }:
                    if type(version) is int and math.isfinite(canary + base):
                        return cls(version, sha256, canary, base)
        except FileNotFoundError:
            return None
        except (OSError, *NOT_JSON) as error:
            raise damaged from error
        raise damaged

    @classmethod
    def must_read(cls, directory: Path) -> Self:
        """Return an adapter's description; raise an InputError if there is none or it is damaged."""
        said = cls.read(directory)
        if said is None:
            raise InputError("adapter", f"{directory} has no description", "Train it again.")
        return said


HASH = "sha256"
"""The field with the hash of all others."""


def sealed(content: Mapping[str, object]) -> bytes:
    """Return the only text that a sealed file with this content can have."""
    text = json.dumps(content).encode()
    whole = {**content, HASH: hashlib.sha256(text).hexdigest()}
    return json.dumps(whole, indent=1).encode() + b"\n"


def unsealed(text: bytes) -> dict[str, Any]:
    """Return the content of a sealed file; raise a ValueError if it is not a text that :func:`sealed`
    returns."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or HASH not in content:
            raise ValueError(f"there is no {HASH}")
        del content[HASH]
        if sealed(content) != text:
            raise ValueError(f"its {HASH} is that of another content")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


Hashes = Mapping[str, str]
"""SHA-256 in hexadecimal by the name of a file."""


def damaged(path: Path) -> DamagedState:
    """Return the error of a damaged file."""
    return DamagedState("checkpoint", f"{path} is missing or damaged", "Take another checkpoint")


def seal(directory: Path, base: Hashes | None = None, names: Collection[str] | None = None) -> None:
    """Write the manifests of a directory whose files are all written, and of its folders.

    Args:
        directory: the directory, before it is put in place.
        base: the hashes of the base model's files; by default those of the manifest before.
        names: the files that are listed; by default all.
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
    """Check the files as :func:`check_files` does if there is a manifest: what others wrote has none."""
    if is_sealed(directory):
        check_files(directory, names)


def check_files(directory: Path, names: Collection[str] | None = None) -> None:
    """Check the files of a sealed directory and of its folders, or those of ``names``, by their hashes.

    Raises DamagedState if a file or the manifest is missing or damaged.
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
    """Return the hashes of the base model's files; raise DamagedState if the manifest is damaged."""
    return _read(directory)[1]


def _read(directory: Path) -> tuple[Hashes, Hashes]:
    path = directory / MANIFEST_FILE
    try:
        found = unsealed(read_regular(path, MOST_BYTES))
        return dict(found["files"]), dict(found["base"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
