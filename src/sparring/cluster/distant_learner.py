"""The learners of a run on a node that does not see its directory.

They work in a directory of their own with the same layout. Before a call is answered, everything that it
changed there is changed in the run's directory too, so whoever is killed meanwhile, the run continues from
what its directory has.
"""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.cluster.elsewhere import errors_of_files, wait_for
from sparring.cluster.learner import LearnerService
from sparring.cluster.transfer import send, take
from sparring.core import InputError
from sparring.core.adapters import MANIFEST_FILE
from sparring.core.files import remove_directory
from sparring.population.evolution import Child
from sparring.run.learners import Saved, UpdateBatch
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import LEARNED, log_files, saved_directories


class DistantRun:
    """A directory with the layout of a run's, on another node.

    What is in the run's directory is here as its manifest alone, except for the update from which the
    learners continue.

    Args:
        files: a handle of :class:`CommandFiles`.
        run: the run's directory on the command's machine.
        path: the directory here, which is empty.
    """

    def __init__(self, files: Any, run: Path, path: Path) -> None:
        self.run = run
        self.path = path
        self._files = files
        self._writer = uuid.uuid4().hex
        self._there: dict[str, bytes] = {}

    async def begin(self) -> str | None:
        """Take what the learners continue from; return a line for the user if newer updates were damaged."""
        saved: tuple[dict[str, bytes], str | None] = await self._files.saved.remote(self._writer)
        self._there, notice = saved
        for place, manifest in self._there.items():
            (self.path / place).mkdir(parents=True)
            (self.path / place / MANIFEST_FILE).write_bytes(manifest)
        run = RunDirectory(self.path)
        for newest in run.saved_updates()[-1:]:
            directory = run.saved_update(newest)
            await take(self._files, self._place(directory), directory)
        return notice

    async def push(self) -> None:
        """Save in the run's directory what is new here, and delete there what was deleted here."""
        for path in log_files(self.path):
            await self._files.write_log.remote(self._writer, self._place(path), path.read_bytes())
            path.unlink()
        for directory in [*saved_directories(self.path, ("checkpoints",))]:
            await self.move(directory)
        here = set()
        for directory in [*saved_directories(self.path, LEARNED)]:
            place, manifest = self._place(directory), (directory / MANIFEST_FILE).read_bytes()
            here.add(place)
            if self._there.get(place) != manifest:
                await send(self._files, self._writer, place, directory)
                self._there[place] = manifest
                _leave_manifest(directory)
        for place in self._there.keys() - here:
            await self._files.remove.remote(self._writer, place)
            del self._there[place]

    async def move(self, directory: Path) -> None:
        """Save a directory in the run's directory only."""
        await send(self._files, self._writer, self._place(directory), directory)
        shutil.rmtree(directory)

    def here(self, path: str) -> str:
        """Return the directory here that is at ``path`` on the command's machine."""
        return str(self.path / os.path.relpath(path, self.run))

    def there(self, path: str | None) -> str | None:
        """Return where a directory is on the command's machine."""
        return None if path is None else str(self.run / Path(path).relative_to(self.path))

    def _place(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


class DistantLearner:
    """A :class:`LearnerService` in a :class:`DistantRun`, called like one; paths are the command's machine's.

    Args:
        build: builds the service in a directory.
        run: that directory.
    """

    def __init__(self, build: Callable[[Path], LearnerService], run: DistantRun) -> None:
        self._run = run
        self._one_call = asyncio.Lock()
        with errors_of_files():
            self._notice = wait_for(run.begin())
        try:
            self._service = build(run.path)
        except InputError as error:
            problem = error.problem.replace(str(run.path), str(run.run))
            raise InputError(error.field, problem, error.fix) from error
        with errors_of_files():
            wait_for(run.push())

    async def saved(self) -> Saved:
        """See :meth:`LearnerService.saved`."""
        async with self._pushed():
            return self._told(self._service.saved())

    async def update(self, step: int, batch: UpdateBatch, state: dict[str, Any]) -> Saved:
        """See :meth:`LearnerService.update`."""
        async with self._pushed():
            return self._told(await self._service.update(step, batch, state))

    async def start_again(
        self,
        step: int,
        policies: list[str],
        source: dict[str, Any] | None = None,
        children: Sequence[Child] = (),
    ) -> Saved:
        """See :meth:`LearnerService.start_again`."""
        async with self._pushed():
            return self._told(await self._service.start_again(step, policies, source, children))

    async def results(self) -> dict[str, str | None]:
        """See :meth:`LearnerService.results`."""
        async with self._pushed():
            results = await self._service.results()
            return {policy: self._run.there(path) for policy, path in results.items()}

    async def write_adapters(self, directory: str) -> None:
        """See :meth:`LearnerService.write_adapters`."""
        here = Path(self._run.here(directory))
        here.mkdir(parents=True, exist_ok=True)
        async with self._pushed():
            await self._service.write_adapters(str(here))
            with errors_of_files():
                await self._run.move(here)

    async def keep(self, directory: str) -> None:
        """See :meth:`LearnerService.keep`."""
        async with self._pushed():
            await self._service.keep(self._run.here(directory))

    async def tidy(self, paths_in_use: list[str]) -> None:
        """See :meth:`LearnerService.tidy`."""
        async with self._pushed():
            await self._service.tidy([self._run.here(path) for path in paths_in_use])

    @asynccontextmanager
    async def _pushed(self) -> AsyncIterator[None]:
        """Push what the body has changed. What a call before could not push is pushed too."""
        async with self._one_call:
            yield
            with errors_of_files():
                await self._run.push()

    def _told(self, saved: Saved) -> Saved:
        adapters = {policy: self._run.there(path) for policy, path in saved.adapters.items()}
        return replace(saved, adapters=adapters, notice=saved.notice or self._notice)


def _leave_manifest(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            remove_directory(path)
        elif path.name != MANIFEST_FILE:
            path.unlink()
