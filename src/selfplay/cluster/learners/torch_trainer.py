"""TorchTrainer: a learner that saves every update, so that a kill costs at most one update."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from selfplay.cluster.learners.group import LearnerGroup
from selfplay.core import Messages, TrainingRecord
from selfplay.core.files import finish_replacements, put_in_place, scratch_for
from selfplay.learning.checkpoints import (
    LEARNER_FILE,
    STATE_FILE,
    SavedLearner,
    check_format,
    check_lora_shape,
    load_adapter,
    newest_whole,
    read_json,
    read_tensors,
    save_checkpoint,
)
from selfplay.learning.delivery import save_proven_adapter
from selfplay.learning.learner import Learner
from selfplay.learning.policy import TRAINED
from selfplay.training.epoch import Epoch

STATE_FORMAT = 1
AVERAGE = "average."
KEPT_VERSIONS = 6
"""How many of the newest versions are kept even if they are not in use: a request may be about to come."""


class TorchTrainer:
    """See :class:`Trainer`.

    ``directory/versions/000012`` holds the adapter that plays, ``directory/learner/000012`` the trained
    weights, their average, the optimizer and the metrics; a version is saved once the latter exists.
    ``directory/averages/000012`` holds the averaged adapter of versions that play as opponents.

    If the newest of the saved updates is damaged, the one before is loaded, and ``notice`` says so.

    Args:
        group: one learner or several.
        directory: the run's directory.
        base_name: name of the base model, for the adapters' configuration.
        initial_lora_path: an adapter to start from.
        epoch: the run's epoch. Once it is over, writes raise a SelfplayError.

    Raises:
        InputError: the initial adapter is damaged, or it does not have the learner's rank, alpha and target
            modules.
    """

    def __init__(
        self,
        group: LearnerGroup,
        directory: Path,
        base_name: str,
        initial_lora_path: str | None = None,
        *,
        epoch: Epoch | None = None,
    ) -> None:
        self.epoch = epoch
        self._check_epoch()
        self.group = group
        self.learner: Learner = group.learners[TRAINED]
        self.notes = self.learner.policy.notes
        self.directory = directory
        self.base_name = base_name
        self.saved_metrics: dict[str, float] = {}
        self.trained_records = 0
        self._version = 0
        self._started_from_adapter = initial_lora_path is not None
        self.notice: str | None = None
        finish_replacements(directory / "learner")
        if self._saved():
            _, self.notice = newest_whole(self._saved(), self._learner_directory, self._load)
        elif initial_lora_path is not None:
            weights, config = load_adapter(Path(initial_lora_path))
            check_lora_shape(Path(initial_lora_path), config, self.learner.policy.lora)
            self.learner.policy.load_adapter_state(weights, self.learner.adapter)
            self._save_adapter("versions", self.learner.adapter, 0)
        group.start()

    @property
    def version(self) -> int:
        """Number of saved updates."""
        return self._version

    def update(self, records: list[TrainingRecord]) -> dict[str, float]:
        """Make an update; return its metrics."""
        metrics = self.group.update(records)
        self.trained_records += int(metrics["records"])
        return metrics

    def save(self, metrics: dict[str, float]) -> None:
        """Write the adapter, then the learner; the version is saved once the latter is in place."""
        version = self.learner.version
        self._save_adapter("versions", self.learner.adapter, version)
        shutil.rmtree(self._adapter_directory("averages", version), ignore_errors=True)  # of a lost update
        place = self._learner_directory(version)
        scratch = scratch_for(place)
        save_file(self.learner.tensors() | self._average(), scratch / LEARNER_FILE)
        state = {
            "format": STATE_FORMAT,
            "version": version,
            "samples_seen": self.learner.samples_seen,
            "trained_records": self.trained_records,
            "metrics": metrics,
        }
        (scratch / STATE_FILE).write_text(json.dumps(state))
        self._check_epoch()
        put_in_place(scratch, place)
        self._version, self.saved_metrics = version, dict(metrics)
        for older in self._saved()[:-2]:
            shutil.rmtree(self._learner_directory(older), ignore_errors=True)

    def path(self) -> str | None:
        """Return the path of the adapter that plays."""
        if self._version == 0 and not self._started_from_adapter:
            return None
        return str(self._adapter_directory("versions", self._version))

    def opponent_path(self) -> str | None:
        """Return the path of the adapter that is played as an opponent; it is written on demand."""
        result = self.learner.result
        if result == self.learner.adapter:
            return self.path()
        place = self._adapter_directory("averages", self._version)
        if not place.exists():
            self._save_adapter("averages", result, self._version)
        return str(place)

    def tidy(self, paths_in_use: list[str]) -> None:
        """Delete the adapters that are neither in use nor among the newest."""
        self._check_epoch()
        used = {Path(path).resolve() for path in paths_in_use}
        for kind in ("versions", "averages"):
            old = sorted(path for path in (self.directory / kind).glob("*") if path.name.isdigit())
            for path in old[:-KEPT_VERSIONS]:
                if path.resolve() not in used:
                    shutil.rmtree(path, ignore_errors=True)

    def encode_answer(self, prompt: Messages, text: str) -> list[int]:
        """Return the token ids of an answer to ``prompt``, stop token included."""
        return self.learner.policy.encode_answer(prompt, text)

    def save_checkpoint(self, directory: Path, state: dict[str, Any]) -> None:
        """Write a user-facing checkpoint: the adapter to use, the learner, and ``state``."""
        self._check_epoch()
        learner = self.learner
        saved = SavedLearner(learner.adapter, learner.result, learner.tensors())
        save_checkpoint(directory, learner.policy, self.base_name, [saved], state)

    def _save_adapter(self, kind: str, adapter: str, version: int) -> None:
        self._check_epoch()
        place = self._adapter_directory(kind, version)
        save_proven_adapter(place, self.learner.policy, self.base_name, adapter, version)

    def _check_epoch(self) -> None:
        if self.epoch is not None:
            self.epoch.check()

    def _average(self) -> dict[str, Tensor]:
        learner = self.learner
        if learner.result == learner.adapter:
            return {}
        return {f"{AVERAGE}{name}": one for name, one in learner.policy.adapter_state(learner.result).items()}

    def _adapter_directory(self, kind: str, version: int) -> Path:
        return (self.directory / kind / f"{version:06d}").absolute()

    def _learner_directory(self, version: int) -> Path:
        return self.directory / "learner" / f"{version:06d}"

    def _saved(self) -> list[int]:
        return sorted(
            int(path.name) for path in (self.directory / "learner").glob("*") if path.name.isdigit()
        )

    def _load(self, version: int) -> None:
        directory = self._learner_directory(version)
        state = read_json(directory / STATE_FILE)
        check_format(directory, state, STATE_FORMAT)
        tensors = read_tensors(directory / LEARNER_FILE)
        learner = self.learner
        average = {
            name.removeprefix(AVERAGE): one for name, one in tensors.items() if name.startswith(AVERAGE)
        }
        own = {name: one for name, one in tensors.items() if not name.startswith(AVERAGE)}
        learner.load_tensors(own, version, state["samples_seen"])
        if learner.result != learner.adapter:
            learner.policy.load_adapter_state(average, learner.result)
        self._version, self.saved_metrics = version, state["metrics"]
        self.trained_records = state["trained_records"]


KeepCheckpoint = Callable[[int, dict[str, Any]], None]


def keep_checkpoints(
    trainer: TorchTrainer, directory: Path, due: Callable[[int], bool], keep: int = 0
) -> KeepCheckpoint:
    """Return a function to call after each update, which writes a user-facing checkpoint when one is due.

    Args:
        trainer: the trainer to save.
        directory: the directory of the checkpoints.
        due: whether a version gets a checkpoint.
        keep: how many of the newest are kept; 0 for all.
    """

    def checkpoint(version: int, state: dict[str, Any]) -> None:
        path = directory / f"step-{version:06d}"
        if path.exists() or not due(version):
            return
        trainer.save_checkpoint(path, {"step": version, "source": state})
        for old in sorted(directory.glob("step-*"))[:-keep] if keep else []:
            shutil.rmtree(old, ignore_errors=True)

    return checkpoint
