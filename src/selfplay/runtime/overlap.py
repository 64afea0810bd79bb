"""How stale the records of an update are, and how long play and learning wait for each other."""

from collections import Counter
from collections.abc import Iterable


def staleness_shares(acted: Iterable[int], version: int) -> dict[str, float]:
    """Return the share of records by staleness: ``overlap/staleness_0``, ``overlap/staleness_1`` and so on.

    Staleness is the version that learns minus the version that acted; time spent waiting counts, because
    the version increases meanwhile.

    Args:
        acted: for each record, the version that acted.
        version: the version that learns.
    """
    ages = Counter(version - one for one in acted)
    return {f"overlap/staleness_{age}": count / ages.total() for age, count in sorted(ages.items())}


def idle_share(waited: float, worked: float) -> float:
    """Return the share of an update's seconds in which one side waited for the other."""
    return waited / max(waited + worked, 1e-9)
