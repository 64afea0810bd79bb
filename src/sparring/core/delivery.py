"""The canary and ``delivery.json``: what a learner writes about an adapter, and who publishes it checks.

The canary is a fixed text whose log-probability shows which weights answer: the learner of an adapter and the
engine that serves it each compute that of its tokens.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sparring.core.adapters import DELIVERY_FILE
from sparring.core.errors import InputError
from sparring.core.files import read_regular, write_file

CANARY_TEXT = "The canary sang in the mine: 7 times at dawn, 12 times at noon, and once more before the dark."
MAX_CANARY_TOKENS = 96
"""At most this many tokens of the text are used, without special tokens and without a chat template."""
MOST_BYTES = 1 << 16
"""Largest size of ``delivery.json``."""


@dataclass(frozen=True)
class Expectation:
    """The learner's description of an adapter in ``delivery.json``.

    Attributes:
        version: the policy version.
        sha256: SHA-256 of the weight file, in hexadecimal.
        canary: mean log-probability of the canary's tokens without the first, at temperature 1.
        base: the same value of the base model; the difference shows whether an engine can tell them apart.
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
        """Return the description of an adapter; ``None`` if there is none.

        Raises:
            InputError: ``delivery.json`` is damaged.
        """
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
        except (OSError, ValueError, RecursionError) as error:
            raise damaged from error
        raise damaged

    @classmethod
    def must_read(cls, directory: Path) -> Self:
        """Return the description of an adapter.

        Raises:
            InputError: there is none, or it is damaged.
        """
        said = cls.read(directory)
        if said is None:
            raise InputError("adapter", f"{directory} has no description", "Train it again.")
        return said
