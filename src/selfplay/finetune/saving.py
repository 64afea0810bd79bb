"""The rollouts of an iteration on disk, complete and in order, with transcripts that people read."""

from pathlib import Path

import msgspec

from selfplay.config.finetune import TextRlParameters
from selfplay.core import InputError, Rollout
from selfplay.core.files import write_file
from selfplay.finetune.run_files import RunFiles
from selfplay.finetune.transcripts import processed_transcripts, prompts_of, raw_transcripts


class _Line(msgspec.Struct):
    rollout: Rollout


def save_rollouts(
    files: RunFiles, rollouts: list[Rollout], split: str, iteration: int, settings: TextRlParameters
) -> None:
    """Write the rollouts of an iteration, then its transcripts, then delete the file that grew.

    Raises:
        OSError: a file cannot be written.
    """
    files.rollouts.mkdir(parents=True, exist_ok=True)
    lines = b"".join(msgspec.json.encode(_Line(one), enc_hook=repr) + b"\n" for one in rollouts)
    write_file(files.sampled(split, iteration), lines)
    if settings.save_transcripts:
        _save_transcripts(files, rollouts, split, iteration, settings.transcript_format)
    files.growing(split, iteration).unlink(missing_ok=True)


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
    except msgspec.MsgspecError as error:
        raise InputError(str(path), f"a line is damaged: {error}", "Restore the file") from None


def _save_transcripts(
    files: RunFiles, rollouts: list[Rollout], split: str, iteration: int, kind: str
) -> None:
    base = str(iteration) if split == "train" else f"{split}_{iteration}"
    contents = {
        files.raw_transcripts / f"raw_{base}.{kind}": raw_transcripts(rollouts),
        files.processed_transcripts / f"processed_{base}.{kind}": processed_transcripts(rollouts),
        files.prompts / f"prompts_{base}.{kind}": prompts_of(rollouts),
    }
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        as_json = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
        write_file(path, as_json if kind == "json" else msgspec.yaml.encode(content))
