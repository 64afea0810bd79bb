"""BatchLog: keeps every training batch for later inspection."""

import gzip
from pathlib import Path
from typing import Any

import msgspec

from sparring.core import Step
from sparring.core.files import write_file

BATCH_SCHEMA_VERSION = 1


class BatchLine(msgspec.Struct):
    """A step of a batch: whose it was, the last message of its prompt, and its reward at each stage."""

    role_id: str
    pid: int
    env_id: str
    rollout_id: str
    step_index: int
    policy_version: int
    obs: str
    act: str
    rewards: dict[str, Any]
    schema_version: int = BATCH_SCHEMA_VERSION


class BatchLog:
    """Writes each batch to ``directory/batch-000012.jsonl.gz``, one step per line.

    A batch that is written again after a resume replaces the old file.

    Args:
        directory: directory of the files; created with the first batch.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def write(self, number: int, steps: list[Step]) -> None:
        """Write batch ``number``, counted from 1.

        Raises:
            OSError: the directory cannot be written.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = b"".join(msgspec.json.encode(_line(step)) + b"\n" for step in steps)
        write_file(self._path(number), gzip.compress(lines, compresslevel=1, mtime=0))

    def read(self, number: int) -> list[dict[str, Any]]:
        """Return the lines of batch ``number``.

        Raises:
            OSError: there is no such batch.
        """
        lines = gzip.decompress(self._path(number).read_bytes()).splitlines()
        return [msgspec.json.decode(line) for line in lines]

    def _path(self, number: int) -> Path:
        return self.directory / f"batch-{number:06d}.jsonl.gz"


def reward_stages(step: Step) -> dict[str, float]:
    """Return what a drawn step earned at each stage: at the game's end, after the final and after the step
    transforms, and its advantage after the sampling transforms."""
    return {**step.info.get("reward_stages", {}), "step": step.reward, "sampled": step.advantage}


def _line(step: Step) -> BatchLine:
    return BatchLine(
        role_id=step.role_id,
        pid=step.pid,
        env_id=step.env_id,
        rollout_id=step.info.get("rollout_id", ""),
        step_index=step.info.get("step_index", 0),
        policy_version=step.policy_version,
        obs=step.prompt[-1]["content"] if step.prompt else "",
        act=step.completion_text,
        rewards=reward_stages(step),
    )
