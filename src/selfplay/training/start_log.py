"""The sessions of a run: when it was started and resumed, with which versions, on what kind of machine."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from selfplay.core.files import write_file

SESSIONS = "sessions.json"


def note_session(run: Path) -> None:
    """Add this process to ``sessions.json`` of a run, a list with an entry for each start.

    An entry has ``started`` (UTC, ISO 8601), the versions of ``selfplay``, ``python``, ``torch`` and
    ``transformers``, ``system``, ``cpus`` and the names of the ``gpus`` that torch sees. An entry does not
    identify the machine. A file that cannot be read is replaced by a new one.

    Raises:
        OSError: the directory cannot be written.
    """
    import torch  # only training needs it, and a list of runs reads this file too

    sessions = _read(run)
    sessions.append(
        {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "selfplay": version("selfplay-rl"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        }
    )
    _write(run, sessions)


def note_failure(run: Path, problem: str) -> None:
    """Record in the last entry, as ``failure``, why that start of the run had to stop.

    Raises:
        OSError: the directory cannot be written.
    """
    sessions = _read(run)
    if sessions:
        sessions[-1]["failure"] = problem
        _write(run, sessions)


def failure_of(run: Path) -> str | None:
    """Return why the last start of the run had to stop; ``None`` if it did not, or was killed."""
    sessions = _read(run)
    failure = sessions[-1].get("failure") if sessions else None
    return None if failure is None else str(failure)


def _read(run: Path) -> list[dict[str, Any]]:
    """Return the entries of a run; none if the file is missing or damaged."""
    try:
        sessions = json.loads((run / SESSIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for one in sessions if isinstance(one, dict)] if isinstance(sessions, list) else []


def _write(run: Path, sessions: list[dict[str, Any]]) -> None:
    write_file(run / SESSIONS, (json.dumps(sessions, indent=1) + "\n").encode())
