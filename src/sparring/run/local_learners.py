"""The learners of a run's policies: how they learn together, and are saved and loaded, wherever they are.

torch is imported by who computes, not with this module.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.collection.rollout_log import AdvantageLog
from sparring.core import SparringError, TrainingRecord
from sparring.core.own_code import own_code
from sparring.core.own_modules import is_own
from sparring.learn.saved_states import newest_whole
from sparring.population.evolution import Child
from sparring.run.answer_lengths import AnswerLimits, lengths_in, notes_on_lengths
from sparring.run.learners import Records, Saved, State, UpdateBatch, learn
from sparring.run.run_directory import RunDirectory
from sparring.run.saved_state import STATE_FORMAT, read_saved_state

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.learn.learner import Learner


class PolicyLearners:
    """The learners of a run's policies, which share a model.

    ``may_start_again`` are the policies that may begin again or be replaced, whose beginnings are kept in
    memory. After the first update, the model's notes say which legal answers are longer than ``limits``
    allow. ``log`` gets the advantages that critics give.
    """

    def __init__(
        self,
        learners: "dict[str, Learner]",
        directory: RunDirectory,
        base_name: str,
        may_start_again: Collection[str] = (),
        limits: AnswerLimits | None = None,
        log: AdvantageLog | None = None,
    ) -> None:
        self.learners = learners
        self.model = next(iter(learners.values())).policy
        self.directory = directory
        self.base_name = base_name
        self._limits = limits
        self._log = log
        self._beginnings = {policy: learners[policy].tensors() for policy in may_start_again}
        self._last: dict[str, Any] = {
            "step": 0,
            "figures": {},
            "seconds": 0.0,
            "trained_tokens": 0.0,
            "trained_records": 0,
        }
        self._state: dict[str, Any] = {}
        self._notice: str | None = None

    def _load_newest(self, steps: Sequence[int], place_of: Callable[[int], Path]) -> None:
        """Load the newest whole state of the updates that were saved."""
        if steps:
            _, self._notice = newest_whole(steps, place_of, partial(self._load, place_of))

    def _load(self, place_of: Callable[[int], Path], step: int) -> None:
        from sparring.learn.checkpoints import check_policies, load_checkpoint
        from sparring.learn.model_files import check_base

        place = place_of(step)
        state, content = read_saved_state(place, step)
        check_base(place, self.model.base, "checkpoint")
        checkpoint = load_checkpoint(place)
        check_policies(place, checkpoint, self.learners)
        for policy, learner in self.learners.items():
            counters = state.versions[policy], state.samples_seen[policy], state.started.get(policy, 0)
            learner.load_tensors(checkpoint.learners[policy], *counters)
            if learner.result != learner.adapter:
                self.model.load_adapter_state(checkpoint.adapters[policy], learner.result)
        self._last = {name: content.get(name, before) for name, before in self._last.items()}
        self._state = content

    def _save(self, place: Path, content: dict[str, Any]) -> None:
        """Write a checkpoint of the learners with what the run needs to continue."""
        from sparring.learn.checkpoints import SavedLearner, save_checkpoint

        self.directory.check_epoch()
        learners = self.learners
        counters = {
            "format": STATE_FORMAT,
            "versions": {policy: learner.version for policy, learner in learners.items()},
            "started": {policy: learner.started for policy, learner in learners.items() if learner.started},
            "samples_seen": {policy: learner.samples_seen for policy, learner in learners.items()},
        }
        parts = [SavedLearner(policy, one.result, one.tensors()) for policy, one in learners.items()]
        save_checkpoint(place, self.model, self.base_name, parts, content | counters)

    def _progress(self) -> Saved:
        return Saved(
            versions={policy: learner.version for policy, learner in self.learners.items()},
            ages={policy: learner.age for policy, learner in self.learners.items()},
            adapters={policy: self._adapter(policy) for policy in self.learners},
            state=self._state,
            notice=self._notice,
            notes=tuple(self.model.notes),
            **self._last,
        )

    def _new_beginnings(
        self, policies: Collection[str], children: Sequence[Child]
    ) -> dict[str, dict[str, "Tensor"]]:
        """Return what policies and children begin with, of those that have not begun so already."""
        from sparring.learn.adapter_evolution import child_of
        from sparring.learn.learner import with_weights

        found = {policy: self._beginnings[policy] for policy in policies if self.learners[policy].age}
        for child in children:
            if self.learners[child.player].age:
                results = [self.learners[parent].result for parent in child.parents]
                parents = [self.model.adapter_state(result) for result in results]
                weights = child_of(parents, child.noise, child.seed)
                found[child.player] = with_weights(self._beginnings[child.player], weights)
        return found

    def _adapter(self, policy: str) -> str | None:
        """Return the directory of the adapter that plays."""
        return None

    def _check_last(self, step: int) -> None:
        last = self._last["step"]
        if step != last:
            raise SparringError(f"the saved state of update {step} is lost; a resume continues from {last}")

    def _learn(self, step: int, records: Records) -> dict[str, Any]:
        """Make update ``step``, and return what to remember of it."""
        if self._limits is not None:  # once, since a batch may have millions of legal answers
            self.model.notes += notes_on_lengths(self._limits, lengths_in(chain(*records.values())))
            self._limits = None
        learned = learn(self.learners, records, self._update)
        if self._log is not None:
            self.directory.check_epoch()
            self._log.write(step, (one for policy in records for one in self.learners[policy].judged))
        before = self._last["trained_records"]
        return {**vars(learned), "step": step, "trained_records": before + learned.trained_records}

    def _update(self, policy: str, records: list[TrainingRecord]) -> dict[str, float]:
        if not is_own(self.learners[policy].algorithm):
            return self._update_one(policy, records)
        with own_code(f"the algorithm of {policy} failed"):
            return self._update_one(policy, records)

    def _update_one(self, policy: str, records: list[TrainingRecord]) -> dict[str, float]:
        return self.learners[policy].update(records)

    def _write_adapters(self, directory: Path) -> None:
        from sparring.learn.checkpoints import write_adapters

        self.directory.check_epoch()
        results = {policy: learner.result for policy, learner in self.learners.items()}
        write_adapters(directory, self.model, self.base_name, results)


class LocalLearners(PolicyLearners):
    """The learners of a run in one process, which share the model with the engine.

    An update is saved only with a checkpoint.
    """

    _loaded = False

    async def saved(self) -> Saved:
        """Return the progress, from the newest checkpoint if this is the first call."""
        if not self._loaded:
            self._load_newest(self.directory.saved_steps(), self.directory.checkpoint)
            self._loaded = True
        return self._progress()

    async def update(self, step: int, batch: UpdateBatch, state: State) -> Saved:
        """Make update ``step``."""
        await self.saved()
        self._check_last(step - 1)
        self._last = self._learn(step, await batch.records(self.model.encode_answer))
        return self._progress()

    async def start_again(
        self, policies: Collection[str], source: State, children: Sequence[Child] = ()
    ) -> Saved:
        """Let policies and children begin; the next checkpoint has them so."""
        for policy, tensors in self._new_beginnings(policies, children).items():
            self.learners[policy].start_again(tensors)
        return self._progress()

    async def results(self) -> dict[str, str | None]:
        """Return ``None`` for every adapter: the engine shares them."""
        return dict.fromkeys(self.learners)

    async def write_adapters(self, directory: Path) -> None:
        """Write the adapters that training produces into a directory."""
        self._write_adapters(directory)

    async def keep(self, state: State) -> None:
        """Write a checkpoint of the last update."""
        self._save(self.directory.checkpoint(self._last["step"]), await state() | self._last)
        self._state = {}  # as large as the buffer, and only a resume reads it
