"""The rollouts of an iteration on disk, complete and in order, and transcripts that people read."""

from pathlib import Path
from typing import Any

import msgspec

from selfplay.core import InputError, Rollout
from selfplay.core.files import write_file


class _Line(msgspec.Struct):
    rollout: Rollout


def save_rollouts(path: Path, rollouts: list[Rollout]) -> None:
    """Write the rollouts of an iteration.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b"".join(msgspec.json.encode(_Line(one), enc_hook=repr) + b"\n" for one in rollouts)
    write_file(path, lines)


def load_rollouts(path: Path, iteration: int) -> list[Rollout]:
    """Return the rollouts of a file.

    Raises:
        InputError: there is no such file, or a line is damaged.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        problem = f"there are no rollouts of iteration {iteration}"
        raise InputError(str(path), problem, "Check the run and the iteration") from None
    try:
        return [msgspec.json.decode(line, type=_Line).rollout for line in lines]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"a line is damaged: {error}", "Restore the file") from None


def save_transcript(path: Path, content: list[Any]) -> None:
    """Write transcripts or prompts, in the format that the file's name ends in: ``json`` or ``yaml``.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    as_json = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    write_file(path, as_json if path.suffix == ".json" else msgspec.yaml.encode(content))
