"""What changes the buffer, and stands in its journal: a class for each kind of entry."""

import msgspec

from selfplay.core import Trajectory


class _Entry(msgspec.Struct, frozen=True, tag=True):
    """An entry; in the file it has the name of its class."""


class AddTrajectory(_Entry, frozen=True):
    """A trajectory that does not come from a collector."""

    trajectory: Trajectory
    player_id: int
    env_id: str


class AddGames(_Entry, frozen=True):
    """Games of a collector, all of them new; see :attr:`Games.packed`."""

    packed: bytes


class GetBatch(_Entry, frozen=True):
    """A batch is drawn at once, for code that trains without selfplay's learner."""

    batch_size: int


class Draw(_Entry, frozen=True):
    """The batch of an update is drawn; without ``batch_size`` it is everything.

    Steps are too old by the version of their policy in ``versions``, or else by the number of updates.
    """

    update: int
    batch_size: int | None
    versions: dict[str, int]


class LearnedBatch(_Entry, frozen=True):
    """The learner has made and saved an update."""

    update: int


class ForgetFailures(_Entry, frozen=True):
    """The games that failed are consumed, so that a resumed run plays others in their place."""


class ForgetAfter(_Entry, frozen=True):
    """The learner has lost the versions after this one."""

    version: int


class Clear(_Entry, frozen=True):
    """Everything that is stored is removed."""


BufferEntry = AddTrajectory | AddGames | GetBatch | Draw | LearnedBatch | ForgetFailures | ForgetAfter | Clear
