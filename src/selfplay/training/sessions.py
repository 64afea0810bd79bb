"""The sessions of a run: when it was started and resumed, with which versions, on what kind of machine."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

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
    path = run / SESSIONS
    try:
        sessions = list(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        sessions = []
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
    write_file(path, (json.dumps(sessions, indent=1) + "\n").encode())
