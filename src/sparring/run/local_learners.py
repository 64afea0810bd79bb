"""The learners of a run in one process, which share the model with the engine."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from sparring.core import SparringError, TrainingRecord
from sparring.core.adapters import STATE_FILE
from sparring.core.manifest import damaged
from sparring.core.own_code import is_own, own_code
from sparring.learn.checkpoints import write_adapters
from sparring.learn.learner import Learner
from sparring.learn.policy import PolicyModel
from sparring.learn.saved_states import newest_whole
from sparring.run.learners import Saved, State, UpdateBatch, learn
from sparring.run.run_directory import RunDirectory
from sparring.run.saved_state import SavedState, load_learners, save_learners


class LocalLearners:
    """The learners of a run in one process. An update is saved only with a checkpoint.

    ``may_start_again`` are the policies that :meth:`start_again` is for, whose beginnings are kept.
    """

    def __init__(
        self,
        model: PolicyModel,
        learners: dict[str, Learner],
        directory: RunDirectory,
        base_name: str,
        may_start_again: Collection[str] = (),
    ) -> None:
        self.model = model
        self.learners = learners
        self.directory = directory
        self.base_name = base_name
        self._beginnings = {policy: learners[policy].tensors() for policy in may_start_again}
        self._saved: Saved | None = None

    async def saved(self) -> Saved:
        """Return the progress, from the newest checkpoint if this is the first call."""
        if self._saved is None:
            steps, notice = self.directory.saved_steps(), None
            state: dict[str, Any] = {}
            step = trained = 0
            if steps:
                (known, state), notice = newest_whole(steps, self.directory.checkpoint, self._load)
                step, trained = known.step, known.trained_records
            self._saved = Saved(
                step=step,
                versions=self._versions(),
                adapters=dict.fromkeys(self.learners),
                trained_records=trained,
                state=state,
                notice=notice,
                notes=tuple(self.model.notes),
            )
        return self._saved

    async def update(self, step: int, batch: UpdateBatch, state: State) -> Saved:
        """Make update ``step``."""
        before = await self.saved()
        if step != before.step + 1:
            raise SparringError(f"update {step} is requested but the last one is {before.step}")
        records = await batch.records(self.model.encode_answer)
        learned = learn(self.learners, records, self._update)
        self._saved = Saved(
            step=step,
            versions=self._versions(),
            adapters=dict.fromkeys(self.learners),
            figures=learned.figures,
            seconds=learned.seconds,
            trained_tokens=learned.trained_tokens,
            trained_records=before.trained_records + learned.trained_records,
            notes=tuple(self.model.notes),
        )
        return self._saved

    async def start_again(self, policies: Collection[str]) -> Saved:
        """Let policies begin again; the next checkpoint has them so."""
        for policy in policies:
            if self.learners[policy].age:
                self.learners[policy].start_again(self._beginnings[policy])
        return await self.saved()

    async def results(self) -> dict[str, str | None]:
        """Return that every adapter is shared with the engine."""
        return dict.fromkeys(self.learners)

    async def write_adapters(self, directory: Path) -> None:
        """Write the adapters that training produces into a directory."""
        results = {policy: learner.result for policy, learner in self.learners.items()}
        write_adapters(directory, self.model, self.base_name, results)

    async def keep(self, state: State) -> None:
        """Write a checkpoint of the last update."""
        saved = await self.saved()
        content = await state() | {"step": saved.step, "trained_records": saved.trained_records}
        self.directory.check_epoch()
        path = self.directory.checkpoint(saved.step)
        save_learners(path, self.model, self.base_name, self.learners, content)

    def _update(self, policy: str, records: list[TrainingRecord]) -> dict[str, float]:
        learner = self.learners[policy]
        if not is_own(learner.algorithm):
            return learner.update(records)
        with own_code(f"the algorithm of {policy} failed"):
            return learner.update(records)

    def _versions(self) -> dict[str, int]:
        return {policy: learner.version for policy, learner in self.learners.items()}

    def _load(self, step: int) -> tuple[SavedState, dict[str, Any]]:
        path = self.directory.checkpoint(step)
        state, content = load_learners(path, step, self.model, self.learners)
        if not isinstance(state.source, dict):
            raise damaged(path / STATE_FILE)
        return state, content
