"""The tracker of a run's metrics, and its sinks."""

from selfplay.record.sinks import JsonlSink, Metrics, Sink, TensorBoardSink, WandbSink, read_metrics
from selfplay.record.tracker import Tracker, is_wall_clock

__all__ = [
    "JsonlSink",
    "Metrics",
    "Sink",
    "TensorBoardSink",
    "Tracker",
    "WandbSink",
    "is_wall_clock",
    "read_metrics",
]
