"""The files that the commands of docs/errors.md are about."""

import fcntl
import json
import os
from pathlib import Path

KUHN = '[[envs]]\nid = "kuhn_poker"\n'


def make_files(folder: Path) -> None:
    """Write what docs/errors.md describes under "The files of the examples"."""
    (folder / "syntax.toml").write_text('[[envs]\nid = "kuhn_poker"\n')
    (folder / "empty.toml").write_text("")
    (folder / "typo.toml").write_text('[[env]]\nid = "kuhn_poker"\n')
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "a-file").write_text("")
    (folder / "no-model").mkdir()
    _make_truncated_model(folder / "truncated-model")
    for name in ("old", "done", "busy"):
        _make_run(folder / "runs" / name)
    (folder / "runs" / "notes").mkdir()
    (folder / "runs" / "done" / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "runs" / "done" / "report.html").write_text("")


def hold_run(path: Path) -> int:
    """Lock a run as another process would; returns the open file."""
    lock = os.open(path / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _make_run(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(f"{KUHN}[learning]\nsteps = 2\n")


def _make_truncated_model(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
