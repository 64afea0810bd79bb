"""What an actor does that does not see the files of the command's machine: it works with copies of them."""

import asyncio
import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import RayError

from sparring.cluster.adapters import COMMAND_FILES, AdapterCache
from sparring.cluster.calls import RETRY_SECONDS, Handle, Named, error_of, found
from sparring.cluster.command_files import MODEL, OWN
from sparring.cluster.transfer import Listing, listing_of_known, take
from sparring.config import Config
from sparring.config.run import RaySettings
from sparring.core import InputError
from sparring.core.files import LOCK, cache_directory, is_locked, lock_directory, read_copies
from sparring.core.locks import lock
from sparring.learn.gguf.file import SUFFIX
from sparring.learn.model_files import model_copy_files
from sparring.run.run_layout import GIVEN

Result = TypeVar("Result")


@dataclass(frozen=True)
class CommandHost:
    """The command's machine, as the actors of a cluster know it.

    Attributes:
        files: the handle of its :class:`CommandFiles`.
        node: its node; ``None`` if every node sees its files.
    """

    files: Handle
    node: str | None

    def files_if_elsewhere(self) -> Any:
        """Return the handle if this process is on a node that does not see the files, else ``None``."""
        import ray

        if self.node in (None, ray.get_runtime_context().get_node_id()):
            return None
        return found(self.files)


def command_host(settings: RaySettings, namespace: str) -> CommandHost:
    """Return the machine of the command, which calls this."""
    import ray

    node = None if settings.shared_directory else ray.get_runtime_context().get_node_id()
    return CommandHost(Named(COMMAND_FILES, namespace), node)


def own_scratch() -> Path:
    """Return a new directory in the node's cache, after deleting those of processes that have ended."""
    parent, here = cache_directory() / "scratch", f"{platform.node()}-"
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / LOCK).open("w") as file:
        lock(file.fileno(), wait=True)
        for old in parent.iterdir():  # nodes may share a home, in which locks hold for one node only
            if re.fullmatch(rf"{re.escape(here)}[^-]+", old.name) and not is_locked(old):
                shutil.rmtree(old, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=here, dir=parent))
        lock_directory(scratch)  # until this process ends
    return scratch


class NodeCopies(AdapterCache):
    """Copies, in the user's cache of this node, of adapters and of the model.

    Args:
        files: the handle of :class:`CommandFiles`.
        model: the model's name on the command's machine.

    Attributes:
        model: its name here, once :meth:`prepare` has been awaited.
    """

    def __init__(self, files: Any, model: str) -> None:
        super().__init__(files, cache_directory() / "adapters")
        self.model = model

    async def prepare(self) -> None:
        """Make a copy of the model, unless this node has the same files at the same path.

        Raises:
            InputError: a file of the model is a link out of its directory.
            SparringError: the copy cannot be made.
        """
        name = self.model
        with errors_of_files():
            listing: Listing = await self._files.listing.remote(MODEL)
            if listing and not await asyncio.to_thread(_has, name, listing):
                place = await copy_here(self._files, MODEL, listing, Path(name).name)
                self.model = str(place / Path(name).name if name.endswith(SUFFIX) else place)


def _has(model: str, listing: Listing) -> bool:
    try:
        return listing_of_known(*model_copy_files(model)) == listing
    except (InputError, OSError):  # of a directory that is another's
        return False


@contextmanager
def errors_of_files() -> Iterator[None]:
    """Raise errors of :class:`CommandFiles`, or of calls to it, in one line."""
    try:
        yield
    except RayError as error:
        raise error_of(COMMAND_FILES, error) from error


async def copy_here(files: Any, place: str, listing: Listing, name: str) -> Path:
    """Return a copy in this node's cache; one process makes or checks it at a time."""
    key = hashlib.sha256(json.dumps(listing, sort_keys=True).encode()).hexdigest()[:16]
    copy = cache_directory() / "copies" / f"{name}-{key}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{copy}.lock").open("w") as file:
        while not _locked(file.fileno()):
            await asyncio.sleep(RETRY_SECONDS)
        await take(files, place, copy)
    return copy


def _locked(descriptor: int) -> bool:
    try:
        lock(descriptor, wait=False)
    except BlockingIOError:
        return False
    return True


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns, in a thread of its own: an event loop of this one may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def read_own_copies(command: CommandHost) -> None:
    """Let this process read copies of the user's own files, if it does not see the command's."""
    files = command.files_if_elsewhere()
    if files is not None:
        read_copies(wait_for(_own_copies(files)))


async def _own_copies(files: Any) -> Path:
    with errors_of_files():
        return await copy_here(files, OWN, await files.listing.remote(OWN), OWN)


async def with_copies(files: Any, config: Config, scratch: Path) -> Config:
    """Return the configuration with copies of the model and of the adapters of ``[start]`` and ``[frozen]``.

    Those of adapters are in ``scratch``.
    """
    given: dict[str, dict[str, str]] = {"start": {}, "frozen": {}}
    for field, adapters in (("start", config.start), ("frozen", config.frozen)):
        for name in adapters:
            with errors_of_files():
                await take(files, f"{GIVEN}/{name}", scratch / name)
            given[field][name] = str(scratch / name)
    copies = NodeCopies(files, config.model.name)
    await copies.prepare()
    model = config.model.model_copy(update={"name": copies.model})
    return config.model_copy(update={**given, "model": model})
