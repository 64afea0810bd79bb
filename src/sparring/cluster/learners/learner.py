"""LearnerService: the learners of a run's policies in an actor. Every update is saved before it is answered.

``learner/000012`` of the run's directory holds the learners after update 12, and what the run needs besides
them to continue: so whether the learner or the command is killed, the run continues after the newest of
these. ``versions`` holds the adapters that play, ``averages`` those that opponents and evaluations use, where
these differ, and ``beginnings`` those with which policies begin again; engines load them from there. Slow
work is done in a thread, so that the actor answers meanwhile. torch is imported by the actor, not with this
module.
"""

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.core import SparringError
from sparring.core.adapters import TRAINED
from sparring.core.files import Epoch, finish_replacements, remove_directory
from sparring.run.learners import Records, Saved, UpdateBatch, learn
from sparring.run.saved_state import load_learners, save_learners

if TYPE_CHECKING:
    from sparring.cluster.learners.group import LearnerGroup

KEPT = 2
"""How many saved updates are kept."""
KEPT_VERSIONS = 6
"""How many of a policy's newest adapters are kept if they are not in use: a request may be about to come."""


class LearnerService:
    """See the module.

    Args:
        group: the learners of all policies.
        directory: the run's directory.
        base_name: name of the base model, for the adapters' configuration.
        started: the policies that start from an adapter; the others play as the base model until their first
            update.
        may_start_again: the policies that :meth:`start_again` is for, whose beginnings are kept in memory.
        epoch: the run's epoch. Once it is over, writes raise a SparringError.

    Raises:
        InputError: the saved updates are damaged or do not fit.
    """

    def __init__(
        self,
        group: "LearnerGroup",
        directory: Path,
        base_name: str,
        *,
        started: Collection[str] = (),
        may_start_again: Collection[str] = (),
        epoch: Epoch | None = None,
    ) -> None:
        from sparring.learn.saved_states import newest_whole

        self.epoch = epoch
        self._check_epoch()
        self.group = group
        self.learners = group.learners
        self.model = next(iter(self.learners.values())).policy
        self.directory = directory
        self.base_name = base_name
        self.alone = list(self.learners) == [TRAINED]
        self.started = started
        self._beginnings = {policy: self.learners[policy].tensors() for policy in may_start_again}
        self._last: dict[str, Any] = {
            "step": 0,
            "figures": {},
            "seconds": 0.0,
            "trained_tokens": 0.0,
            "trained_records": 0,
        }
        self._state: dict[str, Any] = {}
        self._notice: str | None = None
        finish_replacements(directory / "learner", r"\d+")
        steps = self._saved_steps()
        if steps:
            _, self._notice = newest_whole(steps, self._step_directory, self._load)
        else:
            for policy in started:
                self._write_adapter("versions", policy, policy)
        group.start()

    def saved(self) -> Saved:
        """Return the progress."""
        return Saved(
            versions={policy: learner.version for policy, learner in self.learners.items()},
            adapters={policy: self._adapter("versions", policy) for policy in self.learners},
            state=self._state,
            notice=self._notice,
            notes=tuple(self.model.notes),
            **self._last,
        )

    async def update(self, step: int, batch: UpdateBatch, state: dict[str, Any]) -> Saved:
        """Make the updates of one step and save them with ``state``; a repeated call changes nothing.

        Raises:
            SparringError: the update before it is not saved, or an update fails.
        """
        last: int = self._last["step"]
        if step == last:
            return self.saved()
        if step != last + 1:
            raise _lost(step - 1, last)
        records = await batch.records(self.model.encode_answer)
        await asyncio.to_thread(self._learn, step, records, state)
        return self.saved()

    async def start_again(self, step: int, policies: list[str]) -> Saved:
        """Let policies begin again after update ``step`` from what they began with, and save them so.

        See :meth:`Learner.start_again`. A repeated call changes nothing.

        Raises:
            SparringError: ``step`` is not the last update.
        """
        if step != self._last["step"]:
            raise _lost(step, self._last["step"])
        await asyncio.to_thread(self._start_again, [one for one in policies if self.learners[one].age])
        return self.saved()

    async def results(self) -> dict[str, str | None]:
        """Return the directory of the adapter that training produces, by policy: the average if any."""
        return await asyncio.to_thread(self._results)

    async def write_adapters(self, directory: str) -> None:
        """Write the adapters that training produces into a directory, with the layout of a checkpoint."""
        await asyncio.to_thread(self._write_adapters, Path(directory))

    async def keep(self, directory: str) -> None:
        """Write a checkpoint of the last update for users, unless it is there."""
        place = Path(directory)
        if not place.exists():
            await asyncio.to_thread(self._write_checkpoint, place, self._last, self._state)

    async def tidy(self, paths_in_use: list[str]) -> None:
        """Delete the adapters that are neither in use nor among the newest."""
        await asyncio.to_thread(self._tidy, {Path(path).resolve() for path in paths_in_use})

    def _learn(self, step: int, records: Records, state: dict[str, Any]) -> None:
        learned = learn(
            self.learners, records, lambda policy, of_policy: self.group.update(of_policy, policy)
        )
        for policy in records:
            self._write_adapter("versions", policy, self.learners[policy].adapter)
            remove_directory(self._place("averages", policy))  # of a lost update
        new = {
            "step": step,
            "figures": learned.figures,
            "seconds": learned.seconds,
            "trained_tokens": learned.trained_tokens,
            "trained_records": self._last["trained_records"] + learned.trained_records,
        }
        self._write_checkpoint(self._step_directory(step), new, state)
        self._last, self._state = new, state
        for old in self._saved_steps()[:-KEPT]:
            remove_directory(self._step_directory(old))

    def _start_again(self, policies: list[str]) -> None:
        for policy in policies:
            self.group.start_again(policy, self._beginnings[policy])
            if self._differs(policy):
                self._write_adapter("versions", policy, self.learners[policy].adapter)
        if policies:
            self._write_checkpoint(self._step_directory(self._last["step"]), self._last, self._state)

    def _results(self) -> dict[str, str | None]:
        results = {}
        for policy, learner in self.learners.items():
            averages = learner.result != learner.adapter
            if averages and self._differs(policy) and not self._place("averages", policy).exists():
                self._write_adapter("averages", policy, learner.result)
            results[policy] = self._adapter("averages" if averages else "versions", policy)
        return results

    def _write_adapters(self, directory: Path) -> None:
        from sparring.learn.checkpoints import write_adapters

        self._check_epoch()
        results = {policy: learner.result for policy, learner in self.learners.items()}
        write_adapters(directory, self.model, self.base_name, results)

    def _write_checkpoint(self, place: Path, last: dict[str, Any], state: dict[str, Any]) -> None:
        self._check_epoch()
        save_learners(place, self.model, self.base_name, self.learners, state | last)

    def _load(self, step: int) -> None:
        _, content = load_learners(self._step_directory(step), step, self.model, self.learners)
        for policy, learner in self.learners.items():
            if self._differs(policy) and not self._place("versions", policy).exists():
                self._write_adapter("versions", policy, learner.adapter)
        self._last = {name: content[name] for name in self._last}
        self._state = content

    def _saved_steps(self) -> list[int]:
        names = [path.name for path in (self.directory / "learner").glob("*")]
        return sorted(int(name) for name in names if name.isdigit())

    def _step_directory(self, step: int) -> Path:
        return self.directory / "learner" / f"{step:06d}"

    def _folder(self, kind: str, policy: str) -> Path:
        folder = self.directory / kind
        return (folder if self.alone else folder / policy).absolute()

    def _place(self, kind: str, policy: str) -> Path:
        learner = self.learners[policy]
        kind = "beginnings" if learner.started and not learner.age else kind
        return self._folder(kind, policy) / f"{learner.version:06d}"

    def _adapter(self, kind: str, policy: str) -> str | None:
        return str(self._place(kind, policy)) if self._differs(policy) else None

    def _differs(self, policy: str) -> bool:
        """Return whether a policy is not the base model any more."""
        return self.learners[policy].age > 0 or policy in self.started

    def _write_adapter(self, kind: str, policy: str, adapter: str) -> None:
        from sparring.learn.checkpoints import save_adapter

        self._check_epoch()
        place, version = self._place(kind, policy), self.learners[policy].version
        self.group.compute(partial(save_adapter, place, self.model, self.base_name, adapter, version=version))

    def _tidy(self, used: set[Path]) -> None:
        self._check_epoch()
        for policy in self.learners:
            for kind in ("versions", "averages", "beginnings"):
                folder = self._folder(kind, policy)
                old = sorted(path for path in folder.glob("*") if path.name.isdigit())
                for path in old[:-KEPT_VERSIONS]:
                    if path.resolve() not in used:
                        remove_directory(path)

    def _check_epoch(self) -> None:
        if self.epoch is not None:
            self.epoch.check()


def _lost(step: int, last: int) -> SparringError:
    return SparringError(f"the saved state of update {step} is lost; a resume continues from {last}")
