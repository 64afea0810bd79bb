"""TimeEstimate: measure the first updates of a run, and say how long the others will take on this machine."""

from sparring.core.text import counted, duration_text

MEASURED = 3
"""Number of updates that are measured, after a first one, in which much happens that happens only once."""


class TimeEstimate:
    """See the module.

    Args:
        total: updates of the whole run.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._first: tuple[int, float] | None = None
        self._evaluating = 0.0
        self._told = False

    def evaluated(self, seconds: float) -> None:
        """Leave out the seconds of an evaluation, which most updates do not have."""
        self._evaluating += seconds

    def updated(self, step: int, now: float) -> str | None:
        """Return the line to print after update ``step``, once in a run; ``None`` otherwise.

        Args:
            step: number of updates that are done; 0 at the start.
            now: seconds on a clock that never goes back.
        """
        now -= self._evaluating
        if step < 1 or self._told:
            return None
        if self._first is None:
            self._first = step, now
        first, started = self._first
        left = self.total - step
        if step - first < MEASURED or left < 1:
            return None
        self._told = True
        each = (now - started) / (step - first)
        return (
            f"an update takes about {duration_text(each) if each >= 10 else f'{each:.1f} s'} here, "
            f"so the {counted(left, 'update')} left will take about {duration_text(left * each)}, "
            "without evaluations; often less, as the first ones tend to be slower"
        )
