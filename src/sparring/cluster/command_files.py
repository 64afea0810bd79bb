"""CommandFiles: the files of the command's machine, for the nodes of a cluster that do not see them.

Engines take adapters from here, learners what they start from, and both the model. What a learner makes
arrives in chunks beside its place, and is put there when every file has its hash. A repeated call changes
nothing, and this process may be killed between any two.

A learner whose host is cut off is given up and built elsewhere, while its process may live on. So each has a
name (``writer``), and changes nothing any more once another was accepted.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparring.cluster.adapters import AdapterFiles
from sparring.cluster.transfer import CHUNK, Listing, arrived, listing_of, listing_of_known, write_chunk
from sparring.core import SparringError
from sparring.core.adapters import MANIFEST_FILE, SAVED_FILES
from sparring.core.files import (
    PARTIAL,
    Epoch,
    finish_replacements,
    put_in_place,
    remove_directory,
    write_file,
)
from sparring.core.manifest import check_files
from sparring.learn.model_files import model_copy_files
from sparring.learn.saved_states import newest_whole
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import GIVEN, LEARNED, is_written, saved_directories

MODEL, OWN = "model", "own"
"""The places of the base model and of the user's own files; every other is a directory of the run."""
ROOT = Path("/")
WRITTEN = (*LEARNED, "checkpoints", "best", "batches")
"""The folders of a run in which learners write."""


class CommandFiles(AdapterFiles):
    """See the module.

    Args:
        put: see :class:`AdapterFiles`.
        model: the base model's name.
        own: the absolute paths of the user's own files that the configuration names.
        run: the run's directory; ``None`` outside a run.
        epoch: that of the run.
    """

    def __init__(
        self,
        put: Callable[[dict[str, bytes]], Any],
        model: str = "",
        own: Sequence[str] = (),
        run: Path | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        super().__init__(put)
        self._model = model
        self._own = own
        self._run = run
        self._epoch = epoch
        self._writer: str | None = None

    def accept(self, writer: str) -> None:
        """Let this learner, and no other from now on, change anything."""
        self._checked()
        self._writer = writer

    async def saved(self, writer: str) -> tuple[dict[str, bytes], str | None]:
        """Accept a learner; return the manifests of what is saved, by place, and perhaps a line for the user.

        Newest updates that are damaged are set aside; then the line says so.

        Raises:
            DamagedState: all updates are damaged.
        """
        self.accept(writer)
        return await asyncio.to_thread(_saved, RunDirectory(self._checked()))

    async def listing(self, place: str) -> Listing:
        """Return the files at a place: of the model, the user's own, or those of a directory of the run.

        Raises:
            InputError: a file of the model is a link out of its directory.
        """
        if place in (MODEL, OWN):
            return await asyncio.to_thread(listing_of_known, *self._shared(place))
        return await asyncio.to_thread(_saved_in, self._place(place))

    def read(self, place: str, name: str, offset: int) -> bytes:
        """Return the chunk of a file that begins at ``offset``."""
        if place in (MODEL, OWN):
            directory, names = self._shared(place)
            if name not in names:
                raise SparringError(f"{name} is no file of the run's configuration")
        else:
            directory = self._place(place, name)
        with (directory / name).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK)

    async def missing(self, writer: str, place: str, files: Listing) -> dict[str, int]:
        """Return which of ``files`` have yet to arrive, and from which byte on; none if they are in place."""
        target = self._target(writer, place, *files)
        if await asyncio.to_thread(_has, target, files):
            return {}
        return await asyncio.to_thread(arrived, _staging(target), files)

    def write(self, writer: str, place: str, name: str, offset: int, content: bytes) -> None:
        """Write a chunk of a file that arrives."""
        write_chunk(_staging(self._target(writer, place, name)) / name, offset, content)

    async def put(self, writer: str, place: str, files: Listing) -> bool:
        """Put what has arrived in its place; return whether it is what was sent."""
        return await asyncio.to_thread(_put, self._target(writer, place, *files), files)

    def write_log(self, writer: str, name: str, content: bytes) -> None:
        """Write a log of the run that is small."""
        path = self._target(writer, str(Path(name).parent), Path(name).name) / Path(name).name
        path.parent.mkdir(exist_ok=True)
        write_file(path, content)

    def remove(self, writer: str, place: str) -> None:
        """Delete a saved directory."""
        remove_directory(self._target(writer, place))

    def _shared(self, place: str) -> tuple[Path, list[str]]:
        if place == MODEL:
            return model_copy_files(self._model)
        return ROOT, [Path(path).relative_to(ROOT).as_posix() for path in self._own]

    def _target(self, writer: str, place: str, *names: str) -> Path:
        """Return a directory of the run, in which a learner writes files of these names.

        Raises:
            SparringError: learners write no such file, or others have replaced this one.
        """
        if self._writer not in (writer, None):  # None: this process was killed meanwhile
            raise SparringError("the learner was given up and replaced, so this one stops")
        return self._place(place, *names, folders=WRITTEN)

    def _place(self, place: str, *names: str, folders: Sequence[str] = (*WRITTEN, GIVEN)) -> Path:
        """Return a directory of the run, in which a learner reads files of these names.

        Raises:
            SparringError: learners have no such file, or the run was started again since.
        """
        run = self._checked()
        for name in names or (MANIFEST_FILE,):
            path = Path(place, name)
            if path.parts[0] not in folders or ".." in path.parts or not is_written(path):
                raise SparringError(f"learners have no file {path} in a run")
        return run / place

    def _checked(self) -> Path:
        assert self._run is not None
        if self._epoch is not None:
            self._epoch.check()
        return self._run


def _saved(run: RunDirectory) -> tuple[dict[str, bytes], str | None]:
    finish_replacements(run.path / "learner", r"\d+")
    steps, notice = run.saved_updates(), None
    if steps:
        _, notice = newest_whole(steps, run.saved_update, lambda one: check_files(run.saved_update(one)))
    places = [path.relative_to(run.path).as_posix() for path in saved_directories(run.path, LEARNED)]
    return {place: (run.path / place / MANIFEST_FILE).read_bytes() for place in places}, notice


def _staging(target: Path) -> Path:
    """Return where a directory arrives: beside its place, unless that is none yet."""
    return target if target.name.endswith(PARTIAL) else target.with_name(f".{target.name}{PARTIAL}")


def _saved_in(directory: Path) -> Listing:
    """Return the files of a directory without those of others."""
    return {name: one for name, one in listing_of(directory).items() if Path(name).name in SAVED_FILES}


def _has(directory: Path, files: Listing) -> bool:
    return _saved_in(directory) == files


def _put(target: Path, files: Listing) -> bool:
    staging = _staging(target)
    if _has(target, files):
        return True
    if not _has(staging, files):
        shutil.rmtree(staging, ignore_errors=True)
        return False
    put_in_place(staging, target)
    return True
