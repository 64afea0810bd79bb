"""ProgramLearner: the learners of a program's policies on a cluster. Each step is saved with the run's state.

A program plays and learns in turns. Everything that must survive a kill is in one place, ``learner/000012``
of the run's directory: the learners after update 12 and the state that the run passed with it. So whether
the learner or the command is killed, the run continues after the newest of these. Slow work is done in a
thread, so that the actor answers meanwhile. torch is imported by the actor, not with this module.
"""

import asyncio
import functools
import shutil
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from selfplay.core import SelfplayError, TrainingRecord
from selfplay.core.files import finish_replacements
from selfplay.training.epoch import Epoch

if TYPE_CHECKING:
    from selfplay.cluster.learners.group import LearnerGroup

STATE_FORMAT = 1
KEPT = 2
"""How many steps, and versions of a policy, are kept."""


@dataclass(frozen=True)
class SavedStep:
    """The progress of a run.

    Attributes:
        step: updates of the run.
        versions: updates of each policy; a policy without records keeps its version.
        adapters: directory of the adapter that plays, by policy; ``None`` for an untrained one.
        learned: metrics of the learners that had records, by policy.
        learn_seconds: duration of the step's updates.
        trained_records: records trained on in all steps.
        state: the state that the run passed with the step; empty before the first update.
        notice: a line to show if the newest step was damaged and the one before was loaded.
        notes: lines to show about the model; see ``Trainer``.
    """

    step: int
    versions: dict[str, int]
    adapters: dict[str, str | None]
    learned: dict[str, dict[str, float]]
    learn_seconds: float
    trained_records: int
    state: dict[str, Any]
    notice: str | None = None
    notes: tuple[str, ...] = ()


class ProgramLearner:
    """See the module.

    Args:
        group: the learners of all policies.
        directory: the run's directory.
        base_name: name of the base model, for the adapters' configuration.
        epoch: the run's epoch. Once it is over, writes raise a SelfplayError.
    """

    def __init__(
        self, group: "LearnerGroup", directory: Path, base_name: str, epoch: Epoch | None = None
    ) -> None:
        from selfplay.learning.checkpoints import newest_whole

        self.epoch = epoch
        self._check_epoch()
        self.group = group
        self.learners = group.learners
        self.model = next(iter(self.learners.values())).policy
        self.directory = directory
        self.base_name = base_name
        self._last: dict[str, Any] = {
            "step": 0,
            "learned": {},
            "learn_seconds": 0.0,
            "trained_records": 0,
            "state": {},
        }
        self.notice: str | None = None
        finish_replacements(directory / "learner")
        steps = self._saved_steps()
        if steps:
            place = functools.partial(step_directory, directory)
            _, self.notice = newest_whole(steps, place, self._load)
        else:
            self._save(self._last)
        group.start()

    def saved(self) -> SavedStep:
        """Return the step that was saved last."""
        versions = {policy: learner.version for policy, learner in self.learners.items()}
        adapters = {policy: self._adapter("versions", policy) for policy in self.learners}
        notes = tuple(self.model.notes)
        return SavedStep(versions=versions, adapters=adapters, notice=self.notice, notes=notes, **self._last)

    async def update(
        self, step: int, records: dict[str, list[TrainingRecord]], state: dict[str, Any]
    ) -> SavedStep:
        """Make the updates of one step and save them with ``state``; a repeated call changes nothing.

        Args:
            step: the number of this update.
            records: the records of each policy that has any.
            state: the state that the run needs to continue after this step, JSON-able.

        Raises:
            SelfplayError: the previous update is not saved, or an update fails.
        """
        last: int = self._last["step"]
        if step == last:
            return self.saved()
        if step != last + 1:
            raise SelfplayError(f"update {step} is requested but the last saved update is {last}")
        await asyncio.to_thread(self._learn, step, records, state)
        return self.saved()

    async def results(self) -> dict[str, str | None]:
        """Return the directory of the adapter that training produces, by policy: the average if any."""
        return await asyncio.to_thread(self._results)

    def _learn(self, step: int, records: dict[str, list[TrainingRecord]], state: dict[str, Any]) -> None:
        started = perf_counter()
        learned = {policy: self.group.update(of_policy, policy) for policy, of_policy in records.items()}
        new = {
            "step": step,
            "learned": learned,
            "learn_seconds": perf_counter() - started,
            "trained_records": self._last["trained_records"]
            + int(sum(metrics["records"] for metrics in learned.values())),
            "state": state,
        }
        for policy in learned:
            self._write_adapter("versions", policy, self.learners[policy].adapter)
            shutil.rmtree(self._place("averages", policy), ignore_errors=True)  # of a lost step
        self._save(new)

    def _results(self) -> dict[str, str | None]:
        results = {}
        for policy, learner in self.learners.items():
            averages = learner.result != learner.adapter
            if averages and learner.version and not self._place("averages", policy).exists():
                self._write_adapter("averages", policy, learner.result)
            results[policy] = self._adapter("averages" if averages else "versions", policy)
        return results

    def _save(self, new: dict[str, Any]) -> None:
        """Save the learners with ``new``, which becomes the last step."""
        from selfplay.learning.checkpoints import SavedLearner, save_checkpoint

        self._check_epoch()
        learners = self.learners.items()
        state = new | {
            "format": STATE_FORMAT,
            "versions": {policy: learner.version for policy, learner in learners},
            "samples_seen": {policy: learner.samples_seen for policy, learner in learners},
        }
        saved = [SavedLearner(policy, learner.result, learner.tensors()) for policy, learner in learners]
        place = step_directory(self.directory, new["step"])
        save_checkpoint(place, self.model, self.base_name, saved, state)
        self._last = new
        for old in self._saved_steps()[:-KEPT]:
            shutil.rmtree(step_directory(self.directory, old), ignore_errors=True)

    def _load(self, step: int) -> None:
        from selfplay.learning.checkpoints import check_format, check_policies, load_checkpoint

        place = step_directory(self.directory, step)
        checkpoint = load_checkpoint(place)
        check_format(place, checkpoint.state, STATE_FORMAT)
        check_policies(place, checkpoint, self.learners)
        for policy, learner in self.learners.items():
            versions, seen = checkpoint.state["versions"], checkpoint.state["samples_seen"]
            learner.load_tensors(checkpoint.learners[policy], versions[policy], seen[policy])
            if learner.result != learner.adapter:
                self.model.load_adapter_state(checkpoint.adapters[policy], learner.result)
            if learner.version and not self._place("versions", policy).exists():
                self._write_adapter("versions", policy, learner.adapter)
        self._last = {name: checkpoint.state[name] for name in self._last}

    def _saved_steps(self) -> list[int]:
        names = [path.name for path in (self.directory / "learner").glob("*")]
        return sorted(int(name) for name in names if name.isdigit())

    def _place(self, kind: str, policy: str) -> Path:
        return (self.directory / kind / policy / f"{self.learners[policy].version:06d}").absolute()

    def _adapter(self, kind: str, policy: str) -> str | None:
        return str(self._place(kind, policy)) if self.learners[policy].version else None

    def _check_epoch(self) -> None:
        if self.epoch is not None:
            self.epoch.check()

    def _write_adapter(self, kind: str, policy: str, adapter: str) -> None:
        from selfplay.learning.delivery import save_proven_adapter

        self._check_epoch()
        place = self._place(kind, policy)
        save_proven_adapter(place, self.model, self.base_name, adapter, self.learners[policy].version)
        for old in sorted(path for path in place.parent.glob("*") if path.name.isdigit())[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def step_directory(run: Path, step: int) -> Path:
    """Return the directory of a saved step, which is a checkpoint."""
    return run / "learner" / f"{step:06d}"
