"""RemoteLogger: log to a tracker in another process without waiting for it."""

from collections.abc import Mapping
from typing import Any


class RemoteLogger:
    """Passes metrics on to a tracker's handle and does not wait."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record values by metric name."""
        self.tracker.log.remote(dict(name_value_dict))
