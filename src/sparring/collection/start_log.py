"""The sessions of a run: when it was started and resumed, with which versions, on what kind of machine."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core.files import write_file

SESSIONS = "sessions.json"


class Session(msgspec.Struct):
    """One start of a run, an entry of ``sessions.json``; it does not identify the machine.

    ``started`` is UTC in ISO 8601; ``failure`` is why this start had to stop, if it did and was not killed;
    ``store`` is what the run's store lacks, if it does.
    """

    started: str = ""
    sparring: str = ""
    python: str = ""
    torch: str = ""
    transformers: str = ""
    system: str = ""
    cpus: int | None = None
    gpus: list[str] = []
    failure: str | None = None
    store: str | None = None


def note_session(run: Path) -> None:
    """Add this process to the sessions of a run. A file that cannot be read is replaced by a new one."""
    import torch  # only training needs it, and a list of runs reads this file too

    session = Session(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        sparring=version("sparring"),
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=version("transformers"),
        system=f"{platform.system()} {platform.machine()}",
        cpus=os.cpu_count(),
        gpus=[torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        store=last_session(run).store,
    )
    _write(run, [*read_sessions(run), session])


def note_failure(run: Path, problem: str) -> None:
    """Record in the last session why that start of the run had to stop."""
    sessions = read_sessions(run)
    if sessions:
        sessions[-1].failure = problem
        _write(run, sessions)


def note_store(run: Path, lack: str | None) -> None:
    """Record in the last session what the run's store lacks; ``None`` if it lacks nothing."""
    sessions = read_sessions(run)
    if sessions and sessions[-1].store != lack:
        sessions[-1].store = lack
        _write(run, sessions)


def last_session(run: Path) -> Session:
    """Return the last session of a run; one that says nothing if there is none."""
    return (read_sessions(run) or [Session()])[-1]


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run, oldest first; none if the file is missing or damaged."""
    try:
        return msgspec.json.decode((run / SESSIONS).read_bytes(), type=list[Session])
    except (OSError, *UNREADABLE):
        return []


def _write(run: Path, sessions: list[Session]) -> None:
    write_file(run / SESSIONS, msgspec.json.format(msgspec.json.encode(sessions), indent=1) + b"\n")
