"""LearnerService: the learners of a run's policies in an actor. Every update is saved before it is answered.

``learner/000012`` of the run's directory holds the learners after update 12, and what the run needs besides
them to continue: so whether the learner or the command is killed, the run continues after the newest of
these. Engines load the adapters that it writes as :class:`AdapterVersions`. Slow work is done in a thread, so
that the actor answers meanwhile. torch is imported by the actor, not with this module.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.collection.rollout_log import AdvantageLog
from sparring.core import SparringError, TrainingRecord
from sparring.core.files import Epoch, finish_replacements, remove_directory
from sparring.population.evolution import Child
from sparring.run.adapter_versions import AdapterVersions
from sparring.run.answer_lengths import AnswerLimits
from sparring.run.learners import Records, Saved, UpdateBatch
from sparring.run.local_learners import PolicyLearners
from sparring.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from sparring.cluster.learner_group import LearnerGroup

KEPT = 2
"""How many saved updates are kept."""


class LearnerService(PolicyLearners):
    """The module's learners.

    Args:
        base_name: name of the base model, for the adapters' configuration.
        may_start_again: the policies that :meth:`start_again` is for.
        limits, log: see :class:`PolicyLearners`.

    Raises InputError if the saved updates are damaged or do not fit.
    """

    def __init__(
        self,
        group: "LearnerGroup",
        directory: Path,
        base_name: str,
        *,
        may_start_again: Collection[str] = (),
        limits: AnswerLimits | None = None,
        log: AdvantageLog | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        run = RunDirectory(directory)
        run.epoch = epoch
        run.check_epoch()
        super().__init__(group.learners, run, base_name, may_start_again, limits, log)
        self.group = group
        self.files = AdapterVersions(self.learners, run, base_name, group.compute)
        self._unsaved: int | None = None
        self._one_change = asyncio.Lock()
        finish_replacements(directory / "learner", r"\d+")
        steps = self.directory.saved_updates()
        self._load_newest(steps, self.directory.saved_update)
        for policy in self.learners:
            if steps:
                self.files.write_missing(policy)
            else:
                self.files.write(policy)
        group.start()

    def saved(self) -> Saved:
        """Return the progress; raise a SparringError after an update that failed or could not be saved."""
        self._check_saved()
        return self._progress()

    async def update(self, step: int, batch: UpdateBatch, state: dict[str, Any]) -> Saved:
        """Make the updates of one step and save them with ``state``; a repeated call changes nothing.

        Raises SparringError if the update before it is not saved, or an update fails.
        """
        async with self._one_change:  # Ray may repeat a call that still runs
            if step != self._last["step"]:
                self._check_last(step - 1)
                self._check_saved()
                records = await batch.records(self.model.encode_answer)
                try:
                    await asyncio.to_thread(self._learn_and_save, step, records, state)
                except Exception:
                    self._unsaved = step
                    raise
        return self.saved()

    async def start_again(
        self,
        step: int,
        policies: list[str],
        source: dict[str, Any] | None = None,
        children: Sequence[Child] = (),
    ) -> Saved:
        """Let policies begin again after update ``step`` from what they began with, let children take the
        place of others, and save them so.

        With them, the state of what plays is saved, if ``source`` is given. A repeated call changes nothing.
        Raises SparringError if ``step`` is not the last update.
        """
        async with self._one_change:
            self._check_last(step)
            self._check_saved()
            await asyncio.to_thread(self._start_again, policies, source, children)
        return self.saved()

    async def results(self) -> dict[str, str | None]:
        """Return the directory of the adapter that training produces, by policy: the average if any."""
        return await asyncio.to_thread(self.files.results)

    async def write_adapters(self, directory: str) -> None:
        """Write the adapters that training produces into a directory, with the layout of a checkpoint."""
        await asyncio.to_thread(self._write_adapters, Path(directory))

    async def keep(self, directory: str) -> None:
        """Write a checkpoint of the last update for users, unless it is there."""
        if not Path(directory).exists():
            self._check_saved()
            await asyncio.to_thread(self._save, Path(directory), self._state | self._last)

    async def tidy(self, paths_in_use: list[str]) -> None:
        """Delete the adapters that are neither in use nor among the newest."""
        await asyncio.to_thread(self.files.tidy, {Path(path).resolve() for path in paths_in_use})

    def _check_saved(self) -> None:
        if self._unsaved is not None:
            self.directory.check_epoch()
            last = self._last["step"]
            raise SparringError(f"update {self._unsaved} was not saved; a resume continues from {last}")

    def _learn_and_save(self, step: int, records: Records, state: dict[str, Any]) -> None:
        last = self._learn(step, records)
        for policy in records:
            self.files.write(policy)
        self._save(self.directory.saved_update(step), state | last)
        self._last, self._state = last, state
        for old in self.directory.saved_updates()[:-KEPT]:
            remove_directory(self.directory.saved_update(old))

    def _update_one(self, policy: str, records: list[TrainingRecord]) -> dict[str, float]:
        return self.group.update(records, policy)

    def _start_again(
        self, policies: list[str], source: dict[str, Any] | None, children: Sequence[Child]
    ) -> None:
        beginnings = self._new_beginnings(policies, children)
        if beginnings and source is not None:
            self._state = self._state | {"source": source}
        for policy, tensors in beginnings.items():
            self.group.start_again(policy, tensors)
            self.files.write(policy)
        if beginnings:
            self._save(self.directory.saved_update(self._last["step"]), self._state | self._last)

    def _adapter(self, policy: str) -> str | None:
        return self.files.path(policy)
