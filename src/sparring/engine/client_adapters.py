"""Adapters that a server's clients publish and withdraw. Names, paths and files are an attacker's."""

import asyncio
import re
from pathlib import Path

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE
from sparring.engine.adapter_check import DeliveryError
from sparring.engine.answering import Publisher

FINE_TUNED = "ft:"
"""The beginning of the names of fine-tuned models, which no other model may have."""
NAME = re.compile(r"(?=.{1,128}$)[A-Za-z0-9][A-Za-z0-9._:@+-]*(/[A-Za-z0-9._:@+-]+)*")
LONGEST_PATH = 1024


class ClientAdapters:
    """Adapters that clients publish from the directory ``root``, under names that are not ``reserved``."""

    def __init__(self, publisher: Publisher, root: Path, reserved: frozenset[str]) -> None:
        self.publisher = publisher
        self.root = root.resolve()
        self.reserved = reserved
        self._loading = asyncio.Lock()

    async def publish(self, name: str, path: str, *, replace: bool) -> int:
        """Serve the adapter at ``path``, inside the root, as ``name``; return its policy version. Adapters
        are loaded one at a time. Raises InputError."""
        async with self._loading:
            self._check_name(name)
            if name in self.publisher.names() and not replace:
                problem = f"{name} is served already"
                raise InputError("lora_name", problem, "Unload it first, or set load_inplace to true.")
            try:
                directory = self._below_root(path)
                return (await self.publisher.publish_in_background(name, directory)).version
            except DeliveryError as error:
                raise InputError("adapter", error.problem, "Save it again.") from error

    def withdraw(self, name: str) -> None:
        """Stop serving adapter ``name``. Raises InputError: the name is the server's own."""
        self._check_name(name)
        self.publisher.withdraw(name)

    def _check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            problem = f"{_shown(name)} cannot name an adapter"
            raise InputError(
                "lora_name", problem, "Use at most 128 letters, digits and . _ : @ + -, and / between them"
            )
        if name in self.reserved or name.startswith(FINE_TUNED):
            raise InputError("lora_name", f"{name} is the server's own name", "Give another name.")

    def _below_root(self, path: str) -> Path:
        """Return the directory that a client names. Links cannot leave the root, and files are regular ones:
        a pipe would be read forever."""
        fix = "Give a path relative to the directory that --adapters names."
        if len(path) > LONGEST_PATH or not path.isprintable():
            raise InputError("lora_path", f"{_shown(path)} cannot be a path", fix)
        try:
            directory = (self.root / path).resolve()
            if not directory.is_relative_to(self.root):
                raise InputError("lora_path", f"{path!r} is outside the directory of adapters", fix)
            for name in (ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE):
                file = (directory / name).resolve()
                if not file.is_relative_to(self.root):
                    problem = f"{name} in {path!r} is a link out of the directory of adapters"
                    raise InputError("lora_path", problem, "Copy the file.")
                if file.exists() and not file.is_file():
                    raise InputError("lora_path", f"{name} in {path!r} is not a regular file", "Copy it.")
        except (OSError, ValueError, RuntimeError) as error:  # no file can have this name, or a loop of links
            raise InputError("lora_path", f"{_shown(path)} cannot be a path", fix) from error
        return directory


def _shown(text: str) -> str:
    return ascii(text[:60])
