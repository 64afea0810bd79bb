"""Journaled: the state of a service with its journal. Every change is written before it is made."""

from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from selfplay.cluster.services.journal import Journal
from selfplay.core import SelfplayError
from selfplay.training.single_writer import Epoch

Entry = TypeVar("Entry", contravariant=True)


class State(Protocol[Entry]):
    """What a journal restores."""

    def apply(self, entry: Entry) -> Any:
        """Change the state as an entry says, and return the answer to who asked for the change."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot, as read from JSON."""


Kept = TypeVar("Kept", bound=State[Any])


class Journaled(Generic[Kept]):
    """See the module. If the state cannot be restored, every use of it raises the reason.

    (Were it raised here, in the constructor of an actor, Ray would pass on only its text.)

    Args:
        new: the state without any change.
        directory: the journal's directory; ``None`` keeps no journal.
        epoch: the run's epoch; see :class:`Journal`.
        entries: the union of the entries' types.
    """

    def __init__(self, new: Kept, directory: str | None, epoch: Epoch | None, entries: Any) -> None:
        self._state = new
        self._journal: Journal[Any] | None = None
        self._failure: SelfplayError | None = None
        try:
            if directory is not None:
                self._journal = Journal(Path(directory), epoch, entries)
                self._restore(self._journal)
        except SelfplayError as error:
            self._failure = error

    @property
    def state(self) -> Kept:
        """The state.

        Raises:
            SelfplayError: the journal is damaged, or the epoch is over.
        """
        if self._failure is not None:
            raise self._failure
        return self._state

    @property
    def journal(self) -> Journal[Any] | None:
        """The journal, unless a snapshot is being written to it."""
        return None if self._journal is None or self._journal.is_writing else self._journal

    def do(self, entry: Any) -> Any:
        """Write an entry to the journal, then apply it; return the answer. If it fails, it is removed."""
        if self._journal is None:
            return self.state.apply(entry)
        with self._journal.noted(entry):
            return self.state.apply(entry)

    def _restore(self, journal: Journal[Any]) -> None:
        snapshot, entries = journal.load()
        if snapshot is not None:
            self._state.load_state_dict(snapshot)
        journal.replay(entries, self._state.apply)
