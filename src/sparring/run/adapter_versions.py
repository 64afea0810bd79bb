"""AdapterVersions: a run's adapters as files, for engines that do not share the learners' weights.

``versions/000012`` of the run's directory holds the adapter that plays as version 12, ``averages/000012``
what opponents and evaluations use if that differs, and ``beginnings`` the adapters with which policies begin
again. Their weights have the type in which engines compute with them. torch is imported by who computes, not
with this module.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.core.adapters import TRAINED
from sparring.core.files import remove_directory
from sparring.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from sparring.learn.learner import Learner

KEPT_VERSIONS = 6
"""How many of a policy's newest adapters are kept if they are not in use: a request may be about to come."""


def _here(work: Callable[[], None]) -> None:
    work()


class AdapterVersions:
    """The module's files of the ``learners``, by policy, each with the learner's description.

    Args:
        compute: does work on the model, by default here.
    """

    def __init__(
        self,
        learners: "dict[str, Learner]",
        directory: RunDirectory,
        base_name: str,
        compute: Callable[[Callable[[], None]], None] = _here,
    ) -> None:
        self.learners = learners
        self.directory = directory
        self.base_name = base_name
        self.compute = compute
        self.alone = list(learners) == [TRAINED]

    def path(self, policy: str) -> str | None:
        """Return the directory of the adapter that plays now; ``None`` for an untrained one."""
        return str(self._place("versions", policy)) if self._differs(policy) else None

    def write(self, policy: str) -> None:
        """Write the adapter that plays now, unless it is untrained."""
        if self._differs(policy):
            learner = self.learners[policy]
            if learner.age:  # else it began again, and the pool may hold its average
                averages = self._folder("averages", policy)
                remove_directory(averages / f"{learner.version:06d}")  # of a lost update
            self._write("versions", policy, self.learners[policy].adapter)

    def write_missing(self, policy: str) -> None:
        """Write the adapter that plays now, unless it is there."""
        if not self._place("versions", policy).exists():
            self.write(policy)

    def results(self) -> dict[str, str | None]:
        """Return the directory of the adapter that training produces, by policy: the average if any."""
        results = {}
        for policy, learner in self.learners.items():
            kind = "averages" if learner.result != learner.adapter else "versions"
            place = self._place(kind, policy)
            if kind == "averages" and self._differs(policy) and not place.exists():
                self._write(kind, policy, learner.result)
            results[policy] = str(place) if self._differs(policy) else None
        return results

    def tidy(self, used: Collection[Path] = ()) -> None:
        """Delete the adapters that are neither among the ``used`` ones, as resolved paths, nor the newest."""
        self.directory.check_epoch()
        for policy in self.learners:
            for kind in ("versions", "averages", "beginnings"):
                folder = self._folder(kind, policy)
                old = sorted(path for path in folder.glob("*") if path.name.isdigit())
                for path in old[:-KEPT_VERSIONS]:
                    if path.resolve() not in used:
                        remove_directory(path)

    def _folder(self, kind: str, policy: str) -> Path:
        folder = self.directory.path / kind
        return (folder if self.alone else folder / policy).absolute()

    def _place(self, kind: str, policy: str) -> Path:
        learner = self.learners[policy]
        kind = "beginnings" if learner.started and not learner.age else kind
        return self._folder(kind, policy) / f"{learner.version:06d}"

    def _differs(self, policy: str) -> bool:
        """Return whether an adapter has learned, here or before it began, or is a child of such adapters."""
        learner = self.learners[policy]
        factors = learner.policy.adapter_factor("B", learner.adapter)
        return learner.age > 0 or any(bool(b_OR.any()) for b_OR in factors)

    def _write(self, kind: str, policy: str, adapter: str) -> None:
        import torch

        from sparring.learn.checkpoints import save_adapter

        self.directory.check_epoch()
        learner, place = self.learners[policy], self._place(kind, policy)
        model = learner.policy
        dtype = model.dtype if model.quantization == "none" else torch.float32
        self.compute(
            partial(save_adapter, place, model, self.base_name, adapter, version=learner.version, dtype=dtype)
        )
