"""Uploads: what makes a run's store like its directory, in a thread beside training."""

import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sparring.collection.start_log import note_store
from sparring.core import InputError, SparringError
from sparring.core.errors import reason_of
from sparring.core.files import Epoch, write_file
from sparring.run.progress_views import print_line, working
from sparring.run.run_layout import OF_STORE, files_for_store, resume_command
from sparring.run.store import BYTES_PER_SECOND, FIELD, RunStore, StoreAway, StoredFiles

PATIENCE = 120.0
"""Seconds that a run waits at its end after the last object that came through."""
LONGEST_PAUSE = 60.0
"""Seconds between two attempts, unless an update ends before."""
LISTED = 10
"""How often the files of a run are listed, until none is deleted meanwhile."""
HOLDER = "holder"
"""The file with the name by which a store knows this copy of a run."""
Version = tuple[int, int, int]
"""Of a file: its size, its time in nanoseconds, its inode."""


@dataclass(frozen=True)
class Snapshot:
    """A run after update ``step``: the versions of its files, and links to those that are new, or copies of
    those that grow, in a ``folder``."""

    number: int
    step: int
    folder: Path
    versions: dict[str, Version]
    changed: dict[str, Path]

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Uploads:
    """See the module. While a snapshot is uploaded, at most one more waits, which a newer one replaces.

    Args:
        run: the run's directory, locked by this process in an ``epoch``.
        stored: what is ``stored`` under the URL.
        patience: seconds; see ``PATIENCE``.
    """

    def __init__(
        self, run: Path, epoch: Epoch, url: str, stored: StoredFiles, patience: float = PATIENCE
    ) -> None:
        self.run, self.epoch, self.url, self.patience = run, epoch, url, patience
        self._stored = stored
        self._versions: dict[str, Version] = {}
        self._change = threading.Condition()
        self._waiting: Snapshot | None = None
        self._noted = self._held = 0
        self._step = self._held_step = -1
        self._uploading = 0
        self._trouble = self._told = ""
        self._is_over = self._is_closed = False
        for left in (run / OF_STORE).iterdir():
            if left.is_dir():
                shutil.rmtree(left)
        threading.Thread(target=self._work, daemon=True).start()

    @classmethod
    def begin(cls, run: Path, epoch: Epoch, url: str, patience: float = PATIENCE) -> "Uploads":
        """Claim a run in the store at this URL.

        Raises InputError if another host has continued the run, or the store cannot be used.
        """
        store, ours = RunStore(url), holder_of(run)
        with at_once(FIELD):
            number, holder = store.holder()
            if holder != ours and store.states():
                raise _held_elsewhere(url, run)
            store.claim(number + 1, ours)
            return cls(run, epoch, url, StoredFiles(store, number + 1, ours), patience)

    def figures(self) -> dict[str, float]:
        """Return metrics: how many of the updates that were noted the store lacks, and the bytes sent."""
        return {"store/behind": self._noted - self._held, "store/sent_bytes": self._stored.sent}

    def note(self, step: int) -> str | None:
        """Note the run as it is after update ``step``, while none of its files is being written.

        Returns a line if the store can no longer be used, or can be again. Raises a SparringError if another
        host has resumed the run.
        """
        if self._is_over:
            self.epoch.end()
            raise SparringError(f"{self.url} was resumed on another host, so this one stops")
        if (snapshot := self._snapshot(step)) is not None:
            with self._change:
                if self._waiting is not None:
                    self._waiting.remove()
                self._waiting, self._step, self._noted = snapshot, step, snapshot.number
                self._change.notify_all()
        return self._news()

    def finish(self, console: Console) -> None:
        """Note the run once more, and wait until the store has it, or nothing comes through any more."""
        if not self._noted:
            return
        self.epoch.check()
        self.note(self._step)
        self._write_lack(f"the last upload to {self.url} did not end")
        try:
            with working(console, f"uploading to {self.url}"):
                self._wait()
        except KeyboardInterrupt:
            self._trouble = self._trouble or "was not waited for"
        if self._is_over:
            self.note(self._step)
        if self._held == self._noted:
            print_line(console, f"store:   {self.url}")
            self._write_lack(None)
            return
        lacks = f"lacks what came after update {self._held_step}" if self._held else "has nothing of this run"
        trouble = (self._trouble or "is too slow").removeprefix(f"{self.url} ")
        lack = f"{self.url} {lacks}, and {trouble}"
        print_line(console, f"warning: {lack}; upload it with: {resume_command(self.run)}")
        self._write_lack(lack)

    def close(self) -> None:
        """Upload nothing more."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()

    def _wait(self) -> None:
        with self._change:
            while self._held < self._noted and not self._is_over:
                if not self._change.wait(self.patience + self._uploading / BYTES_PER_SECOND):
                    return

    def _news(self) -> str | None:
        trouble = self._trouble
        if bool(trouble) == bool(self._told):
            return None
        self._told = trouble
        self._write_lack(trouble or None)
        return f"{trouble}; the run goes on and uploads later" if trouble else f"{self.url} is complete again"

    def _write_lack(self, lack: str | None) -> None:
        self.epoch.check()
        note_store(self.run, lack)

    def _snapshot(self, step: int) -> Snapshot | None:
        folder = self.run / OF_STORE / str(self._noted + 1)
        for _ in range(LISTED):
            folder.mkdir(parents=True)
            try:
                return self._listed(step, folder)
            except FileNotFoundError:  # an actor deletes what is no longer needed
                shutil.rmtree(folder)
        return None

    def _listed(self, step: int, folder: Path) -> Snapshot:
        found = Snapshot(self._noted + 1, step, folder, {}, {})
        for name, grows in files_for_store(self.run).items():
            path, status = self.run / name, (self.run / name).stat()
            version = found.versions[name] = status.st_size, status.st_mtime_ns, status.st_ino
            if self._versions.get(name) != version:
                found.changed[name] = folder / str(len(found.changed))
                (shutil.copyfile if grows else _link)(path, found.changed[name])
        return found

    def _work(self) -> None:
        pause = 1.0
        while (snapshot := self._next()) is not None:
            try:
                self._upload(snapshot)
            except Exception as error:  # noqa: BLE001 - said by the run, which goes on
                self._trouble = reason_of(error)
                self._try_later(snapshot, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause, self._trouble = 1.0, ""
            snapshot.remove()
            with self._change:
                self._change.notify_all()
                if self._is_over:
                    return
                self._held, self._held_step = snapshot.number, snapshot.step

    def _next(self) -> Snapshot | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting is not None or self._is_closed)
            snapshot, self._waiting = self._waiting, None
            return None if self._is_closed else snapshot

    def _upload(self, snapshot: Snapshot) -> None:
        self._is_over = self._stored.is_over()
        if self._is_over:
            return
        for name, path in snapshot.changed.items():
            self._uploading = path.stat().st_size
            self._stored.put_file(name, path)
            self._versions[name] = snapshot.versions[name]
            with self._change:
                self._change.notify_all()
        self._stored.put_state(snapshot.versions)
        self._versions = dict(snapshot.versions)

    def _try_later(self, snapshot: Snapshot, pause: float) -> None:
        with self._change:
            if self._waiting is None:
                self._waiting = snapshot
            else:
                snapshot.remove()
            self._change.wait_for(lambda: self._is_closed or self._waiting is not snapshot, pause)


def holder_of(run: Path) -> str:
    """Return the name by which a store knows this copy of a run; it is made at the first call."""
    file = run / OF_STORE / HOLDER
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        write_file(file, secrets.token_hex(16).encode())
    return file.read_text()


@contextmanager
def at_once(field: str) -> Iterator[None]:
    """Turn a StoreAway of the body into an InputError: here nothing is tried again."""
    try:
        yield
    except StoreAway as error:
        fix = "Check the address, the network, and the keys in the environment"
        raise InputError(field, str(error), fix) from error


def _held_elsewhere(url: str, run: Path) -> InputError:
    again = f"sparring train --resume {url}"
    if (run / "config.toml").exists():
        problem = f"{url} was continued on another host"
        return InputError(FIELD, problem, f"Move {run} away, and continue with: {again}")
    return InputError(FIELD, f"{url} holds a run already", f"Choose another --name, or continue it: {again}")


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(path, target)
