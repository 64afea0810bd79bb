"""Adapters that clients load into a server, and unload."""

import asyncio
from contextlib import suppress
from pathlib import Path

from selfplay.core import InputError
from selfplay.inference.answering import AdapterLoader
from selfplay.jobs.service import FINE_TUNED


class ClientAdapters:
    """Adapters that clients load and unload: from one directory, under names that are not reserved.

    Args:
        loader: serves them.
        root: the only directory from which clients may load adapters.
        reserved: names that clients may not take, replace or unload: the aliases, and the models served from
            the start.
    """

    def __init__(self, loader: AdapterLoader, root: Path, reserved: frozenset[str]) -> None:
        self.loader = loader
        self.root = root.resolve()
        self.reserved = reserved
        self._loading = asyncio.Lock()

    async def load(self, name: str, path: str, *, replace: bool) -> int:
        """Serve the adapter at ``path``, inside the root, as ``name``; return its policy version.

        Other requests are answered meanwhile; adapters are loaded one at a time.

        Raises:
            InputError: the adapter cannot be read, does not fit the model, is outside the root, or cannot
                have this name.
        """
        async with self._loading:
            self._check_name(name)
            if name in self.loader.names() and not replace:
                problem = f"{name} is served already"
                raise InputError("lora_name", problem, "Unload it first, or set load_inplace to true.")
            return await self.loader.load_while_serving(name, self._below_root(path))

    def unload(self, name: str) -> None:
        """Stop serving adapter ``name``.

        Raises:
            InputError: no client loaded such an adapter.
        """
        self._check_name(name)
        self.loader.unload(name)

    def _check_name(self, name: str) -> None:
        if name in self.reserved or name.startswith(FINE_TUNED):
            raise InputError("lora_name", f"{name} is the server's own name", "Give another name.")

    def _below_root(self, path: str) -> Path:
        """Return the directory that a client names, relative or absolute; links cannot leave the root."""
        with suppress(OSError, ValueError, RuntimeError):  # a name that no file can have, or a loop of links
            directory = (self.root / path).resolve()
            if directory.is_relative_to(self.root):
                return directory
        problem = f"{path!r} is outside the directory of adapters"
        raise InputError("lora_path", problem, "Give a path relative to the directory that --adapters names.")
