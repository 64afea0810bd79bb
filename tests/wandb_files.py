"""Reads what Weights & Biases keeps of an offline run."""

import time
from pathlib import Path

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
PATIENCE = 60.0
"""Seconds to wait for a file, which its writer closes only some time after the run has finished."""


def records_of(directory: Path) -> list:
    """Return the records of the only offline run in a directory, which has finished, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + PATIENCE
    while True:
        for path in directory.glob("wandb/offline-run-*/*.wandb"):
            records = [Record.FromString(content) for content in _log_entries(path.read_bytes())]
            if records and records[-1].HasField("exit"):
                return records
        assert time.monotonic() < deadline, f"no finished run in {directory}"
        time.sleep(0.05)


def _log_entries(content: bytes) -> list[bytes]:
    """Return the entries of a file in LevelDB's log format after a head of seven bytes."""
    place, entries, parts = HEADER, [], b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            entries.append(parts)
            parts = b""
    return entries
