"""What an actor does that does not see the files of the command's machine: it works with copies of them."""

import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.cluster.calls import Handle, Named, found
from sparring.cluster.transfer import take
from sparring.config import Config
from sparring.config.run import RaySettings
from sparring.core.files import LOCK, is_locked, lock_directory
from sparring.core.locks import lock
from sparring.learn.model_cache import cache_directory
from sparring.run.run_layout import GIVEN


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


COMMAND_FILES = "CommandFiles"
"""The actor's name."""


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
        for old in parent.glob(f"{here}*"):  # nodes may share a home, in which locks hold for one node only
            if not is_locked(old):
                shutil.rmtree(old, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=here, dir=parent))
        lock_directory(scratch)  # until this process ends
    return scratch


async def take_given(files: Any, config: Config, scratch: Path) -> Config:
    """Return the configuration with copies in ``scratch`` of the adapters of ``[start]`` and ``[frozen]``."""
    copies: dict[str, dict[str, str]] = {"start": {}, "frozen": {}}
    for field, given in (("start", config.start), ("frozen", config.frozen)):
        for name in given:
            await take(files, f"{GIVEN}/{name}", scratch / name)
            copies[field][name] = str(scratch / name)
    return config.model_copy(update=copies)
