"""An object store in memory, which can be gone from a certain write on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FailingStore(MemoryFileSystem):
    """Stands for ``memory://``. The last write before it is gone leaves half of what it was to write."""

    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    writes_left: ClassVar[int | None] = None
    """``None``: it is there."""

    @classmethod
    def empty(cls):
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.writes_left = None

    @classmethod
    def objects(cls) -> dict[str, bytes]:
        return {name: file.getvalue() for name, file in cls.store.items()}

    @classmethod
    def _goes(cls) -> bool:
        """Whether it goes with this write."""
        if cls.writes_left is not None:
            cls.writes_left -= 1
        return cls.writes_left is not None and cls.writes_left < 0

    def pipe_file(self, path, value, mode="overwrite", **options):
        if self._goes():
            if self.writes_left == -1 and mode != "create":
                super().pipe_file(path, value[: len(value) // 2], mode, **options)
            raise ConnectionResetError("the store is gone")
        super().pipe_file(path, value, mode, **options)

    def put_file(self, lpath, rpath, **options):
        with open(lpath, "rb") as file:
            self.pipe_file(rpath, file.read())

    def rm_file(self, path):
        if self._goes():
            raise ConnectionResetError("the store is gone")
        super().rm_file(path)

    def ls(self, path, detail=True, **options):
        if self.writes_left is not None and self.writes_left < 0:
            raise ConnectionResetError("the store is gone")
        return super().ls(path, detail, **options)


@contextmanager
def failing_store() -> Iterator[type[FailingStore]]:
    FailingStore.empty()
    fsspec.register_implementation("memory", FailingStore, clobber=True)
    try:
        yield FailingStore
    finally:
        fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)
