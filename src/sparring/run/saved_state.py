"""SavedState: what ``state.json`` of a checkpoint holds, for those who write it and those who read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from sparring.core.adapters import STATE_FILE
from sparring.core.manifest import damaged
from sparring.learn.saved_states import read_state

if TYPE_CHECKING:
    from sparring.learn.learner import Learner
    from sparring.learn.policy import PolicyModel

STATE_FORMAT = 5
"""Format of a checkpoint. It changes with the other files too."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Logs = dict[str, tuple[Count, str]]
"""The size and the hash of the files that a run has written, by their paths in it."""


class LoopTurn(msgspec.Struct, forbid_unknown_fields=True):
    """The seconds of play of the last update, and how much was played."""

    play: float
    played: float


class SavedState(msgspec.Struct, kw_only=True):
    """See the module. What the loop of a run needs besides its learners is all there or, before the first
    update of a run on Ray, all absent.

    Attributes:
        format: ``STATE_FORMAT``.
        step: updates of the run.
        versions: updates of each policy.
        samples_seen: what each policy has learned from.
        started: the update after which a policy began again, if it did.
        trained_records: answers trained on in all updates.
        figures: see :class:`sparring.run.learners.Saved`, as the two after it.
        source: the state of what is played.
        metrics: the state of the metrics.
        turn: the last turn of the loop.
        config: the configuration.
        logs: the run's other files.
    """

    format: int
    step: Count
    versions: dict[str, Count]
    samples_seen: dict[str, Count]
    started: dict[str, Count]
    trained_records: Count
    figures: dict[str, float | None] = {}
    seconds: float = 0.0
    trained_tokens: float = 0.0
    source: dict[str, Any] | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    turn: LoopTurn | UnsetType = UNSET
    config: dict[str, Any] | UnsetType = UNSET
    logs: Logs | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raise a ValueError if parts of the state are missing."""
        of_the_loop = (self.source, self.metrics, self.turn, self.config, self.logs)
        if UNSET in of_the_loop and any(one is not UNSET for one in of_the_loop):
            raise ValueError("a part of the state is missing")
        if self.versions.keys() != self.samples_seen.keys():
            raise ValueError("the policies differ")


def read_saved_state(directory: Path, step: int) -> tuple[SavedState, dict[str, Any]]:
    """Return the state in a checkpoint of update ``step``: typed, and as it is. All its files are checked.

    Raises:
        DamagedState: a file is missing or damaged, or the state is of another update.
        InputError: another version of sparring wrote it.
    """
    state, content = read_state(directory, SavedState, STATE_FORMAT)
    if state.step != step:
        raise damaged(directory / STATE_FILE)
    return state, content


def save_learners(
    directory: Path,
    model: "PolicyModel",
    base_name: str,
    learners: Mapping[str, "Learner"],
    content: dict[str, Any],
) -> None:
    """Write a checkpoint of all learners, by policy, with what else ``state.json`` is to hold."""
    from sparring.learn.checkpoints import SavedLearner, save_checkpoint

    counters = {
        "format": STATE_FORMAT,
        "versions": {policy: learner.version for policy, learner in learners.items()},
        "started": {policy: learner.started for policy, learner in learners.items() if learner.started},
        "samples_seen": {policy: learner.samples_seen for policy, learner in learners.items()},
    }
    parts = [SavedLearner(policy, one.result, one.tensors()) for policy, one in learners.items()]
    save_checkpoint(directory, model, base_name, parts, content | counters)


def load_learners(
    directory: Path, step: int, model: "PolicyModel", learners: Mapping[str, "Learner"]
) -> tuple[SavedState, dict[str, Any]]:
    """Load the checkpoint of update ``step`` into all learners; return its state, typed and as it is.

    Raises:
        DamagedState: it is damaged, or of another update.
        InputError: it is of another base model, of other policies or of another version of sparring.
    """
    from sparring.learn.base_fingerprint import check_base
    from sparring.learn.checkpoints import check_policies, load_checkpoint

    state, content = read_saved_state(directory, step)
    check_base(directory, model.base, "checkpoint")
    checkpoint = load_checkpoint(directory)
    check_policies(directory, checkpoint, learners)
    for policy, learner in learners.items():
        version, seen = state.versions[policy], state.samples_seen[policy]
        learner.load_tensors(checkpoint.learners[policy], version, seen, state.started.get(policy, 0))
        if learner.result != learner.adapter:
            model.load_adapter_state(checkpoint.adapters[policy], learner.result)
    return state, content
