"""What learns: the learners of a run's policies, in this process (``LocalLearners``) or in an actor."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from sparring.core import GenerateResult, SparringError, TrainingRecord
from sparring.core.adapters import AdapterRef, Weights
from sparring.core.records import EncodeAnswer, with_alternatives
from sparring.population.evolution import Child
from sparring.run.metrics import answer_figures, learned_figures, staleness_shares

if TYPE_CHECKING:
    from sparring.learn.learner import Learner

Records = Mapping[str, list[TrainingRecord]]
"""Records by policy. A policy without records is not updated."""

State = Callable[[], Awaitable[dict[str, Any]]]
"""Returns what the run needs to continue after an update, as JSON-able data."""


class UpdateBatch(Protocol):
    """The records of one update, which may still be in another process."""

    async def records(self, encode_answer: EncodeAnswer) -> Records:
        """Return the records; ``encode_answer`` gives the token ids of an answer to a prompt."""


def by_policy(records: Iterable[TrainingRecord]) -> dict[str, list[TrainingRecord]]:
    """Return records by the policy that they train."""
    found: dict[str, list[TrainingRecord]] = {}
    for record in records:
        found.setdefault(record.policy, []).append(record)
    return found


@dataclass(frozen=True)
class BatchOf:
    """A batch that is here; ``results`` are whole episodes of a program.

    It ``may_be_empty`` where players learn in turns: one that did not speak learns nothing in its own.
    """

    by_policy: Records
    results: Sequence[GenerateResult] = ()
    may_be_empty: bool = False

    async def records(self, encode_answer: EncodeAnswer) -> Records:
        """Return the records."""
        self.check_tokens()
        return {policy: with_alternatives(some, encode_answer) for policy, some in self.by_policy.items()}

    def check_tokens(self) -> None:
        """Raise a SparringError unless token ids came with all steps, and some can be trained on."""
        rollouts = (rollout for result in self.results for rollout in result.trainable_rollouts())
        text_only = sum(step.text_only for one in rollouts for step in one.steps if step.policy)
        if text_only:
            raise SparringError(f"{text_only} steps have no token ids; train with a client that returns them")
        if not self.may_be_empty and not any(self.by_policy.values()):
            raise SparringError("no step of this update's episodes can be trained on; look at the rollouts")


@dataclass(frozen=True)
class Saved:
    """The progress of a run: what its learners made last.

    Attributes:
        step: updates of the run.
        versions: updates of each policy; a policy without records keeps its version.
        ages: updates of each policy since it began, or last began again.
        adapters: directory of the adapter that plays, by policy; ``None`` for an untrained one, and for one
            that the engines share with the learners.
        figures: metrics of the last update: of the learners, of the answers, and of their staleness.
        seconds: duration of the last update.
        trained_tokens: tokens of the last update, those of shared prefixes counted once for each record.
        trained_records: answers trained on in all updates.
        state: what the run gave to the last update, or to the last checkpoint; empty at the beginning.
        notice: a line to show if the newest saved state is damaged and the one before was loaded.
        notes: lines to show about the model.
    """

    step: int
    versions: dict[str, int]
    adapters: dict[str, str | None]
    ages: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    trained_tokens: float = 0.0
    trained_records: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    notice: str | None = None
    notes: tuple[str, ...] = ()

    def weights(self) -> Weights:
        """Return the adapters that play."""
        refs = {name: AdapterRef(name, self.versions[name], path) for name, path in self.adapters.items()}
        return Weights(self.step, refs)


class Learners(Protocol):
    """Makes the updates of all policies. A repeated call of any method changes nothing."""

    async def saved(self) -> Saved:
        """Return the progress, from the newest saved state if this is the first call."""

    async def update(self, step: int, batch: UpdateBatch, state: State) -> Saved:
        """Make update ``step``; learners that save every update call ``state`` and save it as well.

        Raises SparringError if the update before it was not made, or an update fails.
        """

    async def start_again(
        self, policies: Collection[str], source: State, children: Sequence[Child] = ()
    ) -> Saved:
        """Let policies begin again after the last update from what they began with, and let children take
        the place of others, once.

        Learners that save every update call ``source`` and save it as well: the state of what plays.
        """

    async def results(self) -> dict[str, str | None]:
        """Return the directory of the adapter that training produces, by policy: the average if any."""

    async def write_adapters(self, directory: Path) -> None:
        """Write the adapters that training produces into a directory, with the layout of a checkpoint."""

    async def keep(self, state: State) -> None:
        """Write a checkpoint of the last update, from which users take adapters."""


@dataclass(frozen=True)
class Learned:
    """What an update of all policies gives, as in :class:`Saved`."""

    figures: dict[str, float]
    seconds: float
    trained_tokens: float
    trained_records: int


def learn(
    learners: Mapping[str, "Learner"],
    records: Records,
    update: Callable[[str, list[TrainingRecord]], dict[str, float]],
) -> Learned:
    """Update every policy that has records with ``update``, and return the figures."""
    started = perf_counter()
    ages: list[int] = []
    metrics: dict[str, dict[str, float]] = {}
    for policy, learner in learners.items():
        if records.get(policy):
            answers = (answer for record in records[policy] for answer in record.answers)
            ages += [learner.version - answer.policy_version for answer in answers]
            metrics[policy] = update(policy, records[policy])
    seconds = perf_counter() - started
    judged = {
        policy
        for policy, learner in learners.items()
        if learner.critic is not None or not learner.algorithm.learns_from_advantages
    }
    of_answers = answer_figures((one for of_policy in records.values() for one in of_policy), judged)
    return Learned(
        figures=staleness_shares(ages) | of_answers | learned_figures(metrics, alone=len(learners) == 1),
        seconds=seconds,
        trained_tokens=sum(one["separate_tokens"] for one in metrics.values()),
        trained_records=int(sum(one["records"] for one in metrics.values())),
    )
