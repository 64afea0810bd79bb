"""Start or resume a run: its directory and lock, its number of threads, and its errors in one line."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from safetensors import SafetensorError

from sparring.collection.start_log import note_session, note_store
from sparring.config import Config, load_config
from sparring.config.loading import dump_config
from sparring.config.run import NO_STORE, STORE_FIX, is_store
from sparring.core import InputError, SparringError
from sparring.core.files import put_in_place, scratch_for
from sparring.run.hardware import with_chosen_threads
from sparring.run.progress_views import print_line, working
from sparring.run.resume import check_resume, resumed_config
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import resume_command
from sparring.run.run_names import RUNS
from sparring.run.store import RunStore
from sparring.run.uploads import Uploads, at_once, holder_of

RESUME = "--resume"

Work = Callable[[], Coroutine[Any, Any, None]]


class Runtime(Protocol):
    """Where a run takes place: in one process, or on a cluster."""

    def cores(self, config: Config) -> int | None:
        """Return how many cores an engine or a learner may use; ``None`` if each decides for its own node."""

    def prepared(
        self, config: Config, directory: RunDirectory, console: Console
    ) -> AbstractContextManager[Work]:
        """Prepare the run for as long as the context lasts, and return what trains to the end."""


def start_run(config: Config, run_dir: Path, console: Console, runtime: Runtime) -> None:
    """Train a new run into ``run_dir`` and print its results.

    Raises:
        InputError: the configuration cannot run here, or the directory is taken or not writable.
        SparringError: the run had to stop; it can be resumed from what was saved.
    """
    _run(config, RunDirectory.create(run_dir), console, runtime)


def resume_run(run_dir: Path, console: Console, runtime: Runtime, changes: Mapping[str, str | None]) -> None:
    """Continue a run from what was saved last, or its beginning, with ``changes`` of its configuration.

    Raises:
        InputError: the run does not exist, is in use, is finished or is damaged, or a change is wrong.
        SparringError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    load_config(str(directory.config_file), {})  # nothing is written beside a config.toml of others
    directory.lock()
    try:
        config = resumed_config(directory, changes)
        for line in check_resume(directory, config):
            print_line(console, line)
        _run(config, directory, console, runtime, changed=bool(changes))
    finally:
        directory.unlock()


def _run(
    config: Config, directory: RunDirectory, console: Console, runtime: Runtime, *, changed: bool = False
) -> None:
    print_line(console, f"run directory: {directory.path}")
    try:
        settled, cores = config, runtime.cores(config)
        if cores is not None:
            settled = with_chosen_threads(config, cores, partial(print_line, console))
        with (
            _uploading(settled, directory, console),
            runtime.prepared(settled, directory, console) as work,
        ):
            if changed:  # the report is that of the run as it was, and says that it is complete
                directory.report_file.unlink(missing_ok=True)
            if changed or settled is not config or not directory.config_file.exists():
                directory.write_config(dump_config(settled))
            directory.check_epoch()
            note_session(directory.path)
            asyncio.run(work())
    except InputError:
        directory.remove_new()
        raise
    except SparringError as error:
        raise directory.after_failure(str(error)) from error
    except (OSError, SafetensorError) as error:
        raise directory.cannot_be_written(error) from error
    except BaseException:
        directory.remove_new()
        raise
    finally:
        directory.unlock()


@contextmanager
def _uploading(config: Config, directory: RunDirectory, console: Console) -> Iterator[None]:
    """Keep the run's store, if it has one, for as long as the body runs, and at its end wait for it."""
    if config.run.store is None or directory.epoch is None:
        yield
        return
    url = f"{config.run.store.rstrip('/')}/{directory.name}"
    directory.uploads = uploads = Uploads.begin(directory.path, directory.epoch, url)
    try:
        try:
            yield
        except (SparringError, OSError):
            if not directory.epoch.is_over():
                uploads.finish(console)
            raise
        uploads.finish(console)
    finally:
        uploads.close()


def fetch_run(url: str, console: Console) -> Path:
    """Claim a run in its store, and copy it into a new directory in ``runs``; return that.

    A host that trains the run stops after its update. Raises InputError if the directory exists, or the store
    has no whole run or cannot be used.
    """
    if not is_store(url):
        raise InputError(RESUME, NO_STORE, STORE_FIX)
    path = RUNS / url.rstrip("/").rpartition("/")[2]
    if path.exists():
        fix = f"Continue it with: {resume_command(path)}, or move it away"
        raise InputError(RESUME, f"{path} exists already", fix)
    store = RunStore(url)
    with at_once(RESUME):
        if store.newest() is None:
            raise InputError(RESUME, f"{url} holds no run", "Name a run in its store")
    scratch = scratch_for(path)
    try:
        with at_once(RESUME), working(console, f"fetching {url}"):
            store.claim(store.holder()[0] + 1, holder_of(scratch))
            files = store.newest() or {}  # what was uploaded until the claim
            lost = store.download(files, scratch)
        note_store(scratch, None)  # it may have been uploaded with a note of what was missing
        put_in_place(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in lost:
        print_line(console, f"{line}; the run continues without it if it can")
    return path
